"""The rules by which orders are taken, and what becomes of a workload, over a runtime in memory."""

from __future__ import annotations

import asyncio
import pathlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from agent.actions import Actions
from agent.records import Code, ContainerSpec, Desired, Failure, Order, State
from agent.roster import Busy, Full, Roster, Superseded
from agent.runtimes import Runtimes
from agent.shelf import Shelf
from agent.workload import Parts, Workload
from tests.support.fake_runtime import FakeRuntime
from tests.support.waiting import eventually


@dataclass
class Node:
    """A roster over a fake runtime and a real folder."""

    shelf: Shelf
    runtime: FakeRuntime = field(default_factory=FakeRuntime)
    actions: Actions = field(default_factory=Actions)
    changes: int = 0
    roster: Roster = field(init=False)

    def __post_init__(self) -> None:
        """Make the roster."""
        self.restart()

    def restart(self) -> None:
        """Begin anew with what is in the folder, as a restarted agent does; the drivers of before are just dropped."""
        runtimes = Runtimes()
        runtimes.offer(self.runtime)
        parts = Parts(self.shelf, runtimes, self.actions, 0.1, self._changed)
        self.roster = Roster(parts, self.shelf.load_deleted())
        self.roster.restore(self.shelf.load_records())

    def _changed(self) -> int:
        self.changes += 1
        return self.changes

    def workload(self, workload_id: str = "w") -> Workload:
        """Return a workload that is there."""
        found = self.roster.get(workload_id)
        assert found
        return found

    async def state(self, state: State, workload_id: str = "w") -> Workload:
        """Wait until a workload is in this state."""
        await eventually(lambda: self.workload(workload_id).record.state is state, 5, f"{workload_id} is {state}")
        return self.workload(workload_id)

    async def gone(self, workload_id: str = "w") -> None:
        """Wait until a workload is gone."""
        await eventually(lambda: self.roster.get(workload_id) is None, 5, f"{workload_id} is gone")


@pytest.fixture
async def node(tmp_path: pathlib.Path) -> AsyncIterator[Node]:
    """A node whose drivers end with the test."""
    shelf = Shelf(tmp_path)
    shelf.open("n-1")
    node = Node(shelf)
    yield node
    await node.roster.close()
    shelf.close()


def an_order(
    workload_id: str = "w",
    *,
    revision: str = "r1",
    epoch: int = 1,
    desired: Desired = Desired.RUNNING,
    restart: str = "no",
) -> Order:
    """Return an order for a process."""
    spec = ContainerSpec(image="host", command=("run",), restart=restart)
    return Order(workload_id, "container", revision, epoch, desired, spec)


async def test_the_same_order_again_changes_nothing(node: Node) -> None:
    """Apply is idempotent by id, revision, desired state and epoch."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    changes = node.changes
    taken = await node.roster.apply(an_order())
    assert taken.action is None
    assert (node.runtime.starts, node.changes) == (1, changes)


async def test_a_failed_workload_is_started_again_by_the_same_order(node: Node) -> None:
    """So is one that ended by itself."""
    await node.roster.apply(an_order())
    for starts, code, state in ((2, 3, State.FAILED), (3, 0, State.STOPPED)):
        await node.state(State.RUNNING)
        node.runtime.running[0].end(code)
        await node.state(state)
        assert (await node.roster.apply(an_order())).action
        await node.state(State.RUNNING)
        assert node.runtime.starts == starts


async def test_an_older_epoch_is_refused_and_changes_nothing(node: Node) -> None:
    """Also as part of a new revision; also 0, which says that the caller knows no epochs."""
    await node.roster.apply(an_order(epoch=5))
    workload = await node.state(State.RUNNING)
    for epoch in (4, 0):
        with pytest.raises(Superseded, match="older than 5"):
            await node.roster.apply(an_order(epoch=epoch, revision="r2", desired=Desired.STOPPED))
    assert workload.record.order == an_order(epoch=5)
    assert len(node.runtime.running) == 1


async def test_a_newer_epoch_of_the_same_revision_keeps_the_copy_and_takes_the_epoch(node: Node) -> None:
    """It is another placement of the same thing on the same node; what it reports, bears the new epoch."""
    await node.roster.apply(an_order(epoch=5))
    await node.state(State.RUNNING)
    changes = node.changes
    taken = await node.roster.apply(an_order(epoch=6))
    assert taken.action is None
    assert node.workload().record.order.epoch == 6
    assert node.shelf.load_records()[0].order.epoch == 6
    assert node.runtime.starts == 1
    assert node.changes == changes + 1


async def test_a_new_revision_replaces_the_copy_one_after_the_other(node: Node) -> None:
    """Stop, then start; never both."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    await node.roster.apply(an_order(revision="r2"))
    assert node.workload().record.state is State.PENDING
    await eventually(lambda: node.workload().record.state is State.RUNNING)
    assert [c.revision for c in node.runtime.running] == ["r2"]
    assert node.runtime.most_at_once == 1


async def test_stopped_and_running_again(node: Node) -> None:
    """The desired state alone can change."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    await node.roster.apply(an_order(desired=Desired.STOPPED))
    await node.state(State.STOPPED)
    assert node.runtime.running == []
    assert (await node.roster.apply(an_order(desired=Desired.STOPPED))).action is None
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)


@pytest.mark.parametrize("between", [an_order(desired=Desired.STOPPED), an_order(revision="r2")], ids=["stop", "other"])
async def test_an_order_that_is_taken_back_before_it_is_carried_out_leaves_the_workload_running(
    node: Node, between: Order
) -> None:
    """The copy that was to go runs on, and is told as running: nobody would order it again while it is Pending."""
    await node.roster.apply(an_order())
    workload = await node.state(State.RUNNING)
    workload.take(between)
    action = workload.take(an_order())  # at once: the driver cannot have looked in between
    await workload.save()
    workload.wake()
    await node.state(State.RUNNING)
    await asyncio.wait_for(action.done.wait(), 5)
    assert (action.status, node.runtime.starts) == ("completed", 1)
    await eventually(lambda: node.shelf.load_records()[0].state is State.RUNNING, 5, "that is on disk as well")


async def test_delete_is_idempotent_and_removes_the_record(node: Node) -> None:
    """Once, again, and of what never was."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    assert await node.roster.delete("w", 1)
    await node.gone()
    assert node.runtime.running == []
    assert node.shelf.load_records() == []
    assert await node.roster.delete("w", 1) is None
    assert await node.roster.delete("never-seen", 0) is None


async def test_a_delete_of_an_older_placement_is_refused(node: Node) -> None:
    """The text says so; epoch 0 deletes whatever is here."""
    await node.roster.apply(an_order(epoch=5))
    await node.state(State.RUNNING)
    with pytest.raises(Superseded, match="newer epoch"):
        await node.roster.delete("w", 4)
    assert len(node.runtime.running) == 1
    await node.roster.delete("w", 0)
    await node.gone()


async def test_scenario_O7_an_apply_that_arrives_after_its_delete_starts_nothing(node: Node) -> None:
    """The delete is remembered, also over a restart of the agent, and also when there was nothing to delete."""
    await node.roster.delete("w", 5)
    for _ in range(2):
        with pytest.raises(Superseded, match="deleted here"):
            await node.roster.apply(an_order(epoch=5))
        await node.roster.close()
        node.restart()
    assert node.runtime.starts == 0
    await node.roster.apply(an_order(epoch=6))
    await node.state(State.RUNNING)


async def test_scenario_O4_a_delete_while_the_image_is_pulled_does_not_wait_for_it(node: Node) -> None:
    """It wins over the start, and no copy ever runs."""
    node.runtime.prepared.clear()
    await node.roster.apply(an_order())
    await node.runtime.preparing.wait()
    await node.roster.delete("w", 1)
    await node.gone()
    assert node.runtime.starts == 0


async def test_a_new_revision_while_the_image_is_pulled_takes_its_place(node: Node) -> None:
    """The old one is never started."""
    node.runtime.prepared.clear()
    await node.roster.apply(an_order())
    await node.runtime.preparing.wait()
    await node.roster.apply(an_order(revision="r2"))
    node.runtime.prepared.set()
    await node.state(State.RUNNING)
    assert [c.revision for c in node.runtime.running] == ["r2"]
    assert node.runtime.starts == 1


async def test_an_order_for_an_id_that_is_being_deleted_waits_for_the_end(node: Node) -> None:
    """Then it is a new workload; when the end does not come, it is told to try later."""
    await node.roster.apply(an_order(epoch=1))
    await node.state(State.RUNNING)
    await node.roster.delete("w", 1)
    await node.roster.apply(an_order(epoch=2))
    await node.state(State.RUNNING)
    assert node.runtime.starts == 2


async def test_an_order_does_not_wait_for_ever_for_a_delete(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete that cannot be finished yet is told as such."""
    monkeypatch.setattr("agent.roster._REPLACE_SECONDS", 0.05)
    await node.roster.apply(an_order(epoch=1))
    await node.state(State.RUNNING)
    node.runtime.away = True
    await node.roster.delete("w", 1)
    with pytest.raises(Busy, match="being deleted"):
        await node.roster.apply(an_order(epoch=2))
    node.runtime.away = False
    await node.gone()


async def test_a_start_that_fails_is_told_with_its_code(node: Node) -> None:
    """Nothing is tried again until the order comes again."""
    node.runtime.fails = Failure(Code.PORT_BIND_CONFLICT, "port 80 is taken")
    taken = await node.roster.apply(an_order())
    workload = await node.state(State.FAILED)
    assert workload.record.failure == node.runtime.fails
    assert taken.action
    assert (taken.action.status, taken.action.error) == ("failed", "port 80 is taken")
    node.runtime.fails = None
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    assert workload.record.failure is None


async def test_an_order_that_the_node_cannot_run_is_recorded_as_failed(node: Node) -> None:
    """A copy of an earlier revision is stopped, as the order wants it no more."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    node.runtime.refuses = Failure(Code.INVALID_SPECIFICATION, "not allowed")
    taken = await node.roster.apply(an_order(revision="r2"))
    assert taken.text == "not allowed"
    await node.state(State.FAILED)
    await eventually(lambda: node.runtime.running == [])
    assert node.workload().record.failure == node.runtime.refuses


async def test_a_restart_policy_starts_again_after_a_while(node: Node) -> None:
    """In between the workload is pending, and the reason is told."""
    await node.roster.apply(an_order(restart="always"))
    await node.state(State.RUNNING)
    node.runtime.running[0].end(7)
    pending = await node.state(State.PENDING)
    assert "exited with code 7; restart 1 in 0.1 s" in pending.record.message
    await node.state(State.RUNNING)
    assert node.runtime.starts == 2
    kinds = [a.kind for a in node.actions.list("w", "", "", 0, newest_first=False)]
    assert kinds == ["apply", "restart"]


async def test_a_restart_that_is_due_is_called_off_by_a_stop(node: Node) -> None:
    """The order counts more than the policy."""
    await node.roster.apply(an_order(restart="always"))
    await node.state(State.RUNNING)
    node.runtime.running[0].end(1)
    await node.state(State.PENDING)
    await node.roster.apply(an_order(restart="always", desired=Desired.STOPPED))
    await node.state(State.STOPPED)
    await asyncio.sleep(0.3)
    assert node.runtime.starts == 1


async def test_scenario_O2_a_restarted_agent_takes_over_what_runs_and_starts_nothing(node: Node) -> None:
    """What ended meanwhile is reported, and waits for the control plane: it may run elsewhere by now."""
    await node.roster.apply(an_order("runs", restart="always"))
    await node.roster.apply(an_order("ended", restart="always"))
    await node.state(State.RUNNING, "runs")
    await node.state(State.RUNNING, "ended")
    await node.roster.close()
    node.runtime.running = [c for c in node.runtime.running if c.workload_id == "runs"]
    node.restart()
    await node.roster.adopted(5)
    assert node.workload("runs").record.state is State.RUNNING
    ended = node.workload("ended").record
    assert (ended.state, ended.message) == (State.FAILED, "process ended while the agent was away")
    assert node.runtime.starts == 2
    assert (await node.roster.apply(an_order("runs", restart="always"))).action is None
    await node.roster.apply(an_order("ended", restart="always"))
    await node.state(State.RUNNING, "ended")
    assert node.runtime.starts == 3


async def test_a_restarted_agent_goes_on_with_a_delete_and_a_stop(node: Node) -> None:
    """Both are safe, whoever else runs the workload."""
    for name in ("deleted", "stopped"):
        await node.roster.apply(an_order(name))
        await node.state(State.RUNNING, name)
    await node.roster.close()
    for name, change in (("deleted", {"deleting": True}), ("stopped", {})):
        record = node.workload(name).record
        if not change:
            record.order = an_order(name, desired=Desired.STOPPED)
        record.deleting = bool(change)
        await node.shelf.save(record)
    node.restart()
    await node.gone("deleted")
    await node.state(State.STOPPED, "stopped")
    assert node.runtime.running == []


async def test_a_restarted_agent_replaces_no_copy_of_an_older_revision_by_itself(node: Node) -> None:
    """The old copy is stopped, as nobody wants it; the new one waits for the control plane."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    await node.roster.close()
    record = node.workload().record
    record.order = an_order(revision="r2")
    await node.shelf.save(record)
    node.restart()
    await node.state(State.FAILED)
    assert node.runtime.running == []
    assert node.runtime.starts == 1


async def test_while_a_runtime_is_away_the_state_is_unknown_and_nothing_is_given_up(node: Node) -> None:
    """When it is back, the copy is found."""
    await node.roster.apply(an_order())
    await node.state(State.RUNNING)
    await node.roster.close()
    node.runtime.away = True
    node.restart()
    workload = await node.state(State.UNKNOWN)
    assert "the runtime is away" in workload.record.message
    node.runtime.away = False
    await node.state(State.RUNNING)
    assert node.runtime.starts == 1


async def test_an_agent_that_ends_with_its_workloads_stops_them_all(node: Node) -> None:
    """No order is taken any more, and the records say that they are stopped."""
    for number in range(5):
        await node.roster.apply(an_order(f"w{number}", restart="always"))
        await node.state(State.RUNNING, f"w{number}")
    await node.roster.stop_all()
    assert node.runtime.running == []
    with pytest.raises(Busy, match="ending"):
        await node.roster.apply(an_order("late"))
    assert {r.state for r in node.shelf.load_records()} == {State.STOPPED}


async def test_an_order_whose_caller_hangs_up_is_carried_out_all_the_same(node: Node) -> None:
    """A call that runs into its deadline is cancelled; half an order would never be looked at again."""
    for number in range(20):
        call = asyncio.create_task(node.roster.apply(an_order(f"w{number}")))
        await asyncio.sleep(0.0005 * (number % 5))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    for workload in node.roster.all():
        await node.state(State.RUNNING, workload.record.order.id)
    assert len(node.runtime.running) == len(node.roster.all()) > 0
    assert len(node.shelf.load_records()) == len(node.runtime.running)


async def test_the_roster_is_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One workload too many is refused; those that are here can still be ordered."""
    monkeypatch.setattr("agent.roster.MAX_WORKLOADS", 2)
    await node.roster.apply(an_order("a"))
    await node.roster.apply(an_order("b"))
    with pytest.raises(Full, match="2 workloads"):
        await node.roster.apply(an_order("c"))
    await node.roster.apply(an_order("a", revision="r2"))


@pytest.mark.parametrize("seed", range(8))
async def test_under_any_interleaving_at_most_one_copy_runs_and_the_last_order_prevails(node: Node, seed: int) -> None:
    """Random orders, deletes, crashes and restarts of the agent, all at once, over a slow runtime."""
    chance = random.Random(seed)  # noqa: S311 - repeatable
    node.runtime = FakeRuntime(most_pause_seconds=0.004, seed=seed)
    node.restart()
    epoch = 0

    async def act() -> None:
        nonlocal epoch
        kind = chance.choice(("apply", "apply", "apply", "stop", "delete", "crash", "sleep"))
        try:
            if kind in ("apply", "stop"):
                epoch += chance.choice((0, 1))
                desired = Desired.STOPPED if kind == "stop" else Desired.RUNNING
                revision = chance.choice(("r1", "r2"))
                await node.roster.apply(an_order(revision=revision, epoch=epoch, desired=desired, restart="always"))
            elif kind == "delete":
                await node.roster.delete("w", epoch)
            elif kind == "crash" and node.runtime.running:
                node.runtime.running[0].end(1)
            else:
                await asyncio.sleep(chance.uniform(0, 0.01))
        except (Superseded, Busy):
            pass

    for _ in range(25):
        await asyncio.gather(*(act() for _ in range(chance.randint(1, 4))))
    await node.roster.apply(an_order(revision="last", epoch=epoch + 1))
    await eventually(lambda: [c.revision for c in node.runtime.running] == ["last"], 10)
    await node.state(State.RUNNING)
    assert node.runtime.most_at_once == 1
    await node.roster.delete("w", epoch + 1)
    await node.gone()
    assert node.runtime.running == []
