"""One workload on this node: its order, its copy, and the task that brings the two together.

The driver is the only one that starts, stops or removes anything of the workload. Orders only
change what it aims at and wake it. So a delete that comes while a start is under way needs no
interruption: the start ends, "what next?" is asked again, and the answer is "remove".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from agent.actions import Action, Actions
from agent.guard import Unguarded
from agent.records import Code, ContainerSpec, CopyRef, Desired, Failure, Order, Record, State, Volume
from agent.runtimes import Copy, Runtime, RuntimeAway, Runtimes, Seen, StartFailed, Trouble
from agent.shelf import Shelf
from agent.steps import Ended, Facts, Step, is_new_series, next_step, restart_delay
from agent.unbroken import to_the_end
from agent.volumes import VolumeUsers, joined, provide, remove, volumes_of, without

log = structlog.get_logger(__name__)

_FIRST_TROUBLE_SECONDS = 0.5
_MAX_TROUBLE_SECONDS = 30.0
_NOT_STARTED = "the agent ended before the workload was started"
_UNHEARD = Failure(
    Code.STOPPED_UNHEARD, "stopped by the node itself: it is exclusive, and the control plane had not been heard"
)
SUPERSEDED = Failure(Code.SUPERSEDED, "stopped by the node itself: another agent has this node's id")


@dataclass(frozen=True)
class Parts:
    """What drivers share."""

    shelf: Shelf
    runtimes: Runtimes
    actions: Actions
    grace_seconds: float
    changed: Callable[[], int]
    """Tells that a status changed; returns a number that grows with each call."""
    guard: Unguarded = field(default_factory=Unguarded)
    users: VolumeUsers = field(default_factory=VolumeUsers)


class Workload:
    """A workload and its driver."""

    def __init__(self, record: Record, parts: Parts, *, restored: bool = False) -> None:
        """Take the record of a new order, or one from disk, whose copy is yet to be found."""
        self.record = record
        self.copy: Copy | None = None
        self.held = restored
        self.version = 0
        """Grows with each change that is worth reporting."""
        self.is_new = not restored
        """No order has been taken yet."""
        self.at_rest = asyncio.Event()
        """Set when nothing runs any more after park()."""
        self.lock = asyncio.Lock()
        """Held by whoever hands in an order, from the check until it is on disk."""
        self.adopted = asyncio.Event()
        self.gone = asyncio.Event()
        parts.users.use(record.order.id, record.volumes)
        if not restored:
            self.adopted.set()
        self._parts = parts
        self._parked = False
        self._unwanted: Failure | None = None
        """Why nothing of it may run until it is ordered anew."""
        self._renew = False
        """The copy, though of the wanted revision, has failed and is to be replaced."""
        self._action: Action | None = None
        self._saving = asyncio.Lock()
        self._wake = asyncio.Event()
        self._watch: asyncio.Task[Seen] | None = None
        self._not_before = 0.0
        self._series = 0
        self._started = time.monotonic()
        self._trouble = 0

    # Orders. These change what the driver aims at; the caller saves and then wakes it.

    def take(self, order: Order) -> Action:
        """Aim at this order."""
        self.is_new = False
        self._unwanted = None
        self._parts.guard.forget(order.id)
        self._renew = self.copy is not None and self.record.state is State.FAILED
        self.record.order = order
        self.held = order.refusal is not None
        self._not_before, self._series = 0.0, 0
        action = self._begin("apply")
        self.record.exit_code = None
        if order.desired is Desired.STOPPED:
            if self.copy is None and self.adopted.is_set():
                self._settle(State.STOPPED, "stopped")
            else:
                self._set(self.record.state, "stopping")
        elif order.refusal:
            self._fail(order.refusal)
        else:
            self._set(State.PENDING, "accepted")
        return action

    def take_terms(self, order: Order) -> bool:
        """Take over what an order for the same copy says anew, its epoch and how it is guarded; the copy runs on."""
        known = self.record.order
        self.record.order = msgspec.structs.replace(
            known,
            epoch=max(order.epoch, known.epoch),
            exclusive=order.exclusive,
            stop_after_ms=order.stop_after_ms,
            generation=order.generation,
        )
        if self.record.order == known:
            return False
        self._note()
        return True

    def take_delete(self, kept_volumes: Sequence[str] = ()) -> None:
        """Aim at being gone; nothing takes that back. What was to be kept once is."""
        self.record.kept_volumes = tuple(dict.fromkeys((*self.record.kept_volumes, *kept_volumes)))
        if not self.record.deleting:
            self.record.deleting = True
            self._begin("delete")
            self._set(self.record.state, "being deleted")

    def give_up(self, why: Failure) -> None:
        """Aim at running nothing until it is ordered anew."""
        self._unwanted = why
        self.held = True
        if self.copy is None and self.adopted.is_set() and self.record.state is not State.FAILED:
            self._set(State.STOPPED, why.message, why)
        self.wake()

    def park(self) -> None:
        """Aim at running nothing, as the agent ends."""
        self._parked = True
        self.wake()

    def wake(self) -> None:
        """Have the driver look again."""
        self._wake.set()

    async def save(self) -> None:
        """Bring the record to disk; saves never overtake each other."""
        await to_the_end(self._save())

    async def saved(self) -> None:
        """Wait for a save that is under way."""
        async with self._saving:
            return

    async def _save(self) -> None:
        async with self._saving:
            if not self.gone.is_set():
                await self._parts.shelf.save(self.record)

    # The driver.

    async def run(self) -> None:
        """Drive the workload until it is gone."""
        while not self.gone.is_set():
            self._wake.clear()
            try:
                await self._act(next_step(self._facts()))
                self._trouble = 0
            except (Trouble, OSError) as error:
                await self._rest_after(error)
            except Exception as error:
                log.exception("driver_failed", workload=self.record.order.id)
                await self._rest_after(error)

    def _facts(self) -> Facts:
        return Facts(
            order=self.record.order,
            adopted=self.adopted.is_set(),
            deleting=self.record.deleting,
            parked=self._parked or self._unwanted is not None,
            copy_revision=self._copy_revision(),
            held=self.held,
            wait_seconds=self._not_before - time.monotonic(),
        )

    def _copy_revision(self) -> str | None:
        if self.copy is None:
            return None
        return "" if self._renew else self.copy.revision

    async def _act(self, step: Step) -> None:
        if self._action and step is not Step.WAIT:
            self._action.start()
        match step:
            case Step.ADOPT:
                await self._adopt()
            case Step.REMOVE:
                await self._remove()
            case Step.STOP:
                await self._stop()
            case Step.START:
                await self._start()
            case Step.WAIT:
                await self._wait()

    async def _rest_after(self, error: Exception) -> None:
        """Tell what is wrong and wait a little, longer each time, before trying again."""
        pause = min(_FIRST_TROUBLE_SECONDS * 2.0**self._trouble, _MAX_TROUBLE_SECONDS)
        self._trouble = min(self._trouble + 1, 10)
        log.warning("workload_in_trouble", workload=self.record.order.id, error=str(error), retry_seconds=pause)
        self._set(self.record.state if self.adopted.is_set() else State.UNKNOWN, f"{error}; trying again")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), pause)

    async def _adopt(self) -> None:
        """Find the copy that an earlier agent left. Nothing is started in its place: it may run elsewhere by now."""
        copy = await self._find()
        self.adopted.set()
        record = self.record
        if copy:
            self.held = self.held and copy.revision != record.order.revision
            self._run_with(copy, "running; found again by a restarted agent")
        elif self.held:
            self._account_for_absence()
        if not copy:
            record.process = None
        await self.save()

    def _account_for_absence(self) -> None:
        """Say why a workload of an earlier agent does not run; the control plane decides what follows."""
        record = self.record
        if record.order.desired is Desired.STOPPED:
            self._set(State.STOPPED, "stopped")
        elif self._was_ended():
            self._set(State.STOPPED, _UNHEARD.message, _UNHEARD)
        elif record.process or record.state in (State.RUNNING, State.UNKNOWN):
            self._fail(Failure(Code.RUNTIME_ERROR, "process ended while the agent was away"))
        elif record.state is State.PENDING:
            self._fail(Failure(Code.RUNTIME_ERROR, _NOT_STARTED))

    async def _find(self) -> Copy | None:
        away: RuntimeAway | None = None
        for name in self.record.runtimes:
            try:
                copy = await self._parts.runtimes.get(name).find(self.record)
            except RuntimeAway as error:
                away = error
            else:
                if copy:
                    return copy
        if away:
            raise away
        return None

    async def _start(self) -> None:
        order = self.record.order
        try:
            runtime = self._parts.runtimes.pick(order)
            if not await self._prepared(runtime, order):
                return
            if not self._parts.guard.may_run(order):
                self.held = True
                self._set(State.STOPPED, _UNHEARD.message, _UNHEARD)
                await self.save()
                return
            if runtime.name not in self.record.runtimes:
                self.record.runtimes += (runtime.name,)
                await self.save()
            await self._provide(order)
            copy = await runtime.start(order, self._remember)
        except StartFailed as error:
            await self._start_failed(order, error.failure)
        except OSError as error:
            await self._start_failed(order, Failure(Code.STORAGE_FULL, f"cannot store the start: {error}"))
        else:
            self._run_with(copy, "running")
            await self.save()
            await self._drop_volumes(order)

    async def _provide(self, order: Order) -> None:
        """Have the order's volumes; they are recorded first, so that none is left over. Raises StartFailed."""
        if wanted := volumes_of(order):
            self.record.volumes = joined(self.record.volumes, wanted)
            self._parts.users.use(order.id, self.record.volumes)
            await self.save()
            try:
                async with self._parts.users.lock:
                    await asyncio.to_thread(provide, self._parts.shelf, wanted)
            except OSError as error:
                text = f"its volumes cannot be made: {error}"
                raise StartFailed(Failure(Code.STORAGE_PROVISION_FAILED, text)) from None

    async def _drop_volumes(self, order: Order) -> None:
        """Remove what an earlier revision had and this one, which now runs, has not."""
        dropped = without(self.record.volumes, volumes_of(order))
        if dropped:
            self.record.volumes = volumes_of(order)
            await self._remove_volumes(dropped)
            await self.save()

    async def _remove_volumes(self, volumes: Sequence[Volume]) -> None:
        """Remove the data of those that nothing keeps."""
        record = self.record
        self._parts.users.use(record.order.id, without(record.volumes, volumes))
        async with self._parts.users.lock:
            gone = [v for v in volumes if v.id not in record.kept_volumes and not self._parts.users.keep(v)]
            await asyncio.to_thread(remove, self._parts.shelf, gone)

    async def _prepared(self, runtime: Runtime, order: Order) -> bool:
        """Prepare the start; give up, and say so, as soon as something else is wanted."""
        preparing = asyncio.create_task(runtime.prepare(order))
        preparing.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also when given up
        try:
            while not preparing.done():
                waking = asyncio.create_task(self._wake.wait())
                await asyncio.wait({preparing, waking}, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                self._wake.clear()
                if self.record.order.revision != order.revision or next_step(self._facts()) is not Step.START:
                    return False
        finally:
            preparing.cancel()
        preparing.result()
        return True

    async def _start_failed(self, order: Order, failure: Failure) -> None:
        self.record.process = None
        if self.record.order.revision == order.revision:
            self._fail(failure)
        await self.save()

    async def _remember(self, ref: CopyRef) -> None:
        self.record.process = ref
        await self.save()

    def _run_with(self, copy: Copy, message: str) -> None:
        """Have this copy; it shows as running only while it is the one that is wanted."""
        self.copy = copy
        self._renew = False
        self._started = time.monotonic()
        if next_step(self._facts()) is Step.WAIT:
            self._settle(State.RUNNING, message)

    async def _stop(self) -> None:
        """End the copy that is not wanted any more."""
        await self._stop_copy()
        self._without_copy()
        await self.save()

    async def _stop_copy(self) -> None:
        if self._watch:
            self._watch.cancel()
            self._watch = None
        if self.copy:
            await self.copy.stop(self._parts.grace_seconds)
        self.copy = None
        self._renew = False
        self.record.process = None

    def _without_copy(self) -> None:
        """Show the state of a workload whose unwanted copy has ended."""
        order = self.record.order
        if order.desired is Desired.STOPPED:
            self._settle(State.STOPPED, "stopped")
        elif self._parked:
            self._settle(State.STOPPED, "stopped as the agent ended")
        elif self._unwanted:
            self.held = True
            self._set(State.STOPPED, self._unwanted.message, self._unwanted)
        elif order.refusal:
            self._fail(order.refusal)
        elif self.record.deleting:
            return
        elif self.held:
            self._fail(Failure(Code.RUNTIME_ERROR, _NOT_STARTED))
        else:
            self._set(State.PENDING, "the former revision is stopped")

    async def _remove(self) -> None:
        """End the copy, remove every trace, and be gone."""
        await self._stop_copy()
        workload_id = self.record.order.id
        for name in self.record.runtimes:
            await self._parts.runtimes.get(name).remove(workload_id)
        await asyncio.to_thread(self._parts.shelf.remove_work, workload_id)
        await self._remove_volumes(joined(self.record.volumes, volumes_of(self.record.order)))
        await to_the_end(self._forget())
        if self._action:
            self._action.end("completed")
        self._note()

    async def _forget(self) -> None:
        async with self._saving:
            await self._parts.shelf.forget(self.record.order.id)
            self._parts.guard.forget(self.record.order.id)
            self.gone.set()

    async def _wait(self) -> None:
        """Wait until there is something to do: an order, a change of the copy, or a restart that is due."""
        if self._parked and self.copy is None:
            self.at_rest.set()
        if self.copy and self._action and not self._action.done.is_set():
            # An order asked for what runs, before the one that came in between was carried out.
            self._settle(State.RUNNING if self.record.state is State.PENDING else self.record.state, "running")
            await self.save()
        if self.copy and self._watch is None:
            self._watch = asyncio.create_task(self.copy.changed())
        restarts = self.copy is None and not self.held and self.record.order.desired is Desired.RUNNING
        pause = max(0.0, self._not_before - time.monotonic()) if restarts and not self._parked else None
        waking = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait(
                {waking, self._watch} if self._watch else {waking},
                timeout=pause,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waking.cancel()
        if self._watch and self._watch.done():
            watch, self._watch = self._watch, None
            await self._take_note_of(watch.result())

    async def _take_note_of(self, seen: Seen) -> None:
        wanted = next_step(self._facts()) is Step.WAIT
        if seen.ended:
            self.copy = None
            self.record.process = None
        if not wanted:
            if seen.ended:
                self._without_copy()
        elif not seen.ended:
            self._set(seen.state, seen.message, seen.failure)
        elif self._was_ended():
            self.held = True
            self._set(State.STOPPED, _UNHEARD.message, _UNHEARD)
        elif not self._restarts_after(seen):
            self.held = True
            self.record.exit_code = seen.exit_code
            self._set(seen.state, seen.message, seen.failure)
        await self.save()

    def _was_ended(self) -> bool:
        """Say whether the guardian has ended it, or its time is over: then no restart policy counts."""
        order = self.record.order
        if not order.exclusive:
            return False
        return self._parts.guard.stopped(order.id) is not None or not self._parts.guard.may_run(order)

    def _restarts_after(self, seen: Seen) -> bool:
        """Plan the next start when the restart policy wants one; say whether it does."""
        spec = self.record.order.spec
        if not isinstance(spec, ContainerSpec) or self._parts.runtimes.pick(self.record.order).restarts_itself:
            return False
        ended = Ended(seen.exit_code, time.monotonic() - self._started)
        series = 0 if is_new_series(ended) else self._series
        delay = restart_delay(spec.restart, spec.max_restarts, series, ended)
        if delay is None:
            return False
        self._series = series + 1
        self._not_before = time.monotonic() + delay
        self.record.restarts += 1
        self.record.exit_code = seen.exit_code
        self._begin("restart")
        self._set(State.PENDING, f"{seen.message}; restart {self.record.restarts} in {delay:.1f} s", seen.failure)
        return True

    # State.

    def _begin(self, kind: str) -> Action:
        if self._action:
            self._action.end("superseded")
        self._action = self._parts.actions.add(self.record.order.id, kind)
        return self._action

    def _settle(self, state: State, message: str) -> None:
        self._set(state, message)
        if self._action and not self.record.deleting:
            self._action.end("completed")

    def _fail(self, failure: Failure) -> None:
        self.held = True
        self._set(State.FAILED, failure.message, failure)
        if self._action and not self.record.deleting:
            self._action.end("failed", failure.message)

    def _set(self, state: State, message: str, failure: Failure | None = None) -> None:
        record = self.record
        if (record.state, record.message, record.failure) != (state, message, failure):
            record.state, record.message, record.failure = state, message, failure
            self._note()

    def _note(self) -> None:
        """Have the change reported."""
        self.record.updated_at = int(time.time())
        self.version = self._parts.changed()
