"""All workloads of this node, and the rules by which orders are taken or refused."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from agent.actions import Action
from agent.records import Desired, Failure, Order, Record
from agent.shelf import MAX_DELETED, Deleted
from agent.steps import is_on_its_way, is_same
from agent.unbroken import to_the_end
from agent.workload import Parts, Workload

log = structlog.get_logger(__name__)

MAX_WORKLOADS = 2048
"""A full report of that many stays below the 4 MiB of a gRPC message."""
_CLOSE_SECONDS = 5.0
_REPLACE_SECONDS = 4.0
"""How long an order waits for the delete of the workload that had its id before; within a call's deadline."""


class Superseded(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The order belongs to an older placement than what the node knows."""


class Busy(Exception):  # noqa: N818
    """The agent takes no such order now, but soon may."""


class Full(Exception):  # noqa: N818
    """The node has as many workloads as an agent keeps."""


@dataclass(frozen=True)
class Taken:
    """What became of an order."""

    workload: Workload
    action: Action | None
    """None: there was nothing to do."""
    text: str


class Roster:
    """The workloads of this node."""

    def __init__(self, parts: Parts, deleted: dict[str, Deleted]) -> None:
        """Take the parts that drivers share and the deletes that are remembered, oldest first."""
        self._parts = parts
        self._workloads: dict[str, Workload] = {}
        self._drivers: dict[str, asyncio.Task[None]] = {}
        self._deleted = OrderedDict(deleted)
        self._remembering = asyncio.Lock()
        """Saves of one file must not overtake each other."""
        self._closing = False

    def all(self) -> list[Workload]:
        """Return the workloads, by id."""
        return [w for _, w in sorted(self._workloads.items()) if not w.gone.is_set()]

    def get(self, workload_id: str) -> Workload | None:
        """Return the workload, if it is here."""
        workload = self._workloads.get(workload_id)
        return None if workload is None or workload.gone.is_set() else workload

    def restore(self, records: list[Record]) -> None:
        """Take back the workloads of an earlier agent; their drivers look for their copies."""
        for record in records:
            self._add(Workload(record, self._parts, restored=True))

    async def adopted(self, timeout_seconds: float) -> None:
        """Wait until every restored workload knows whether it runs; gives up quietly after the time-out."""
        await _all_set([w.adopted for w in self._workloads.values()], timeout_seconds)

    async def apply(self, order: Order) -> Taken:
        """Take an order, on disk when this returns; raises Superseded, Busy, Full or OSError.

        The same order again changes nothing, unless the workload has failed or ended meanwhile. A newer
        epoch of the same order is taken and keeps what runs.
        """
        return await to_the_end(self._apply(order))

    async def _apply(self, order: Order) -> Taken:
        order = msgspec.structs.replace(order, refusal=self._parts.runtimes.refusal(order))
        order = await self._guarded(order)
        while True:
            self._check(order)
            workload = self.get(order.id) or self._new(order)
            if workload.record.deleting:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(workload.gone.wait(), _REPLACE_SECONDS)
            async with workload.lock:
                if not workload.gone.is_set():
                    return await self._take(workload, order)

    async def _guarded(self, order: Order) -> Order:
        """Return an order with its stop_after; an exclusive one is refused while nothing could end it in time."""
        if not order.exclusive:
            return msgspec.structs.replace(order, stop_after_ms=0)
        guard = self._parts.guard
        order = msgspec.structs.replace(order, stop_after_ms=order.stop_after_ms or guard.default_stop_after_ms)
        if order.desired is Desired.STOPPED or order.refusal:
            return order
        if not await guard.ready():
            raise Busy(f"workload {order.id!r} is exclusive, and no guardian runs here that would end it in time")
        if not guard.is_settled():
            raise Busy(f"workload {order.id!r} is exclusive, and this node has only just been heard again")
        if not guard.may_run(order):
            raise Busy(f"workload {order.id!r} is exclusive, and the control plane has not heard this node lately")
        ended = guard.stopped(order.id)
        if ended and not ended.done:
            raise Busy(f"workload {order.id!r} is exclusive, and its former copy is still being ended")
        return order

    def _check(self, order: Order) -> None:
        """Raise when the order comes too late, or cannot be taken now."""
        deleted = self._deleted.get(order.id)
        if deleted and 0 < order.epoch <= deleted.epoch:
            raise Superseded(
                f"workload {order.id!r}: epoch {order.epoch} was deleted here; the node knows of epoch {deleted.epoch}"
            )
        if self._closing:
            raise Busy("the agent is ending")
        if order.id not in self._workloads and len(self._workloads) >= MAX_WORKLOADS:
            raise Full(f"the node has {MAX_WORKLOADS} workloads, and takes no more")

    async def _take(self, workload: Workload, order: Order) -> Taken:
        self._check(order)
        record = workload.record
        known = record.order
        if record.deleting:
            raise Busy(f"workload {order.id!r} is being deleted; apply it again when it is gone")
        if order.epoch < known.epoch:
            raise Superseded(
                f"workload {order.id!r}: assignment epoch {order.epoch} is older than {known.epoch}, "
                "which this node has; nothing was changed"
            )
        if order.epoch == known.epoch and 0 < order.generation < known.generation:
            raise Busy(
                f"workload {order.id!r}: generation {order.generation} is older than {known.generation}, "
                "which this node has; nothing was changed"
            )
        is_repeated = not workload.is_new and is_same(known, order)
        if is_repeated and is_on_its_way(known, record.state, held=workload.held):
            if workload.take_terms(order):
                await workload.save()
            return Taken(workload, None, "this revision is already applied")
        action = workload.take(order)
        await workload.save()
        workload.wake()
        if order.refusal and order.desired == "Running":
            return Taken(workload, action, order.refusal.message)
        return Taken(workload, action, "accepted")

    async def delete(self, workload_id: str, epoch: int, kept_volumes: Sequence[str] = ()) -> Workload | None:
        """Have the workload go, with every trace but volumes to be kept; None when it is not here; raises Superseded.

        The delete is remembered first: an apply of the same or an older epoch, sent before and arriving after, is
        refused. Epoch 0 deletes whatever is here.
        """
        return await to_the_end(self._delete(workload_id, epoch, kept_volumes))

    async def _delete(self, workload_id: str, epoch: int, kept_volumes: Sequence[str]) -> Workload | None:
        workload = self.get(workload_id)
        if workload and 0 < epoch < workload.record.order.epoch:
            raise Superseded(
                f"workload {workload_id!r} runs here with a newer epoch, {workload.record.order.epoch}, than {epoch}; "
                "nothing was deleted"
            )
        if epoch:
            await self._remember_delete(workload_id, epoch)
        if workload is None:
            return None
        async with workload.lock:
            workload.take_delete(kept_volumes)
            await workload.save()
        workload.wake()
        return workload

    async def _remember_delete(self, workload_id: str, epoch: int) -> None:
        known = self._deleted.get(workload_id)
        if known and known.epoch >= epoch:
            return
        self._deleted[workload_id] = deleted = Deleted(epoch, int(time.time()))
        self._deleted.move_to_end(workload_id)
        async with self._remembering:
            await self._parts.shelf.save_deleted(workload_id, self._deleted.get(workload_id, deleted))
        while len(self._deleted) > MAX_DELETED:
            oldest, _ = self._deleted.popitem(last=False)
            await self._parts.shelf.forget_deleted(oldest)

    def give_up_all(self, why: Failure) -> None:
        """Stop what runs until it is ordered anew; records and drivers stay."""
        for workload in self.all():
            workload.give_up(why)

    async def stop_all(self) -> None:
        """Stop what runs and take no more orders; the records stay."""
        self._closing = True
        for workload in self.all():
            workload.park()
        await _all_set([w.at_rest for w in self.all()], self._parts.grace_seconds + _CLOSE_SECONDS)

    async def close(self) -> None:
        """End the drivers; what runs, runs on."""
        self._closing = True
        tasks = list(self._drivers.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *(w.saved() for w in self._workloads.values()), return_exceptions=True)

    def _new(self, order: Order) -> Workload:
        now = int(time.time())
        return self._add(Workload(Record(order, created_at=now, updated_at=now), self._parts))

    def _add(self, workload: Workload) -> Workload:
        workload_id = workload.record.order.id
        self._workloads[workload_id] = workload
        self._drivers[workload_id] = driver = asyncio.create_task(workload.run(), name=f"drive-{workload_id}")
        driver.add_done_callback(lambda done: self._drop(workload_id, workload, done))
        return workload

    def _drop(self, workload_id: str, workload: Workload, driver: asyncio.Task[None]) -> None:
        if not driver.cancelled() and driver.exception():
            log.error("driver_ended", workload=workload_id, error=str(driver.exception()))
        if workload.gone.is_set() and self._workloads.get(workload_id) is workload:
            del self._workloads[workload_id]
            del self._drivers[workload_id]


async def _all_set(events: list[asyncio.Event], timeout_seconds: float) -> None:
    """Wait until all events are set, or the time is up."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    if not waits:
        return
    _, late = await asyncio.wait(waits, timeout=timeout_seconds)
    for task in late:
        task.cancel()
