"""Two at once: what users, workers, fronts and agents may do to each other's work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from scheduler.domain.errors import Fenced
from scheduler.domain.report import Report
from scheduler.domain.shard import FenceRecord
from scheduler.domain.workload import Actual, Desired
from scheduler.loops import step
from scheduler.store.keys import FENCES, SPECS, STATUSES
from scheduler.store.workloads import finalize_delete, set_desired
from tests.support.fake_agent import FakeAgent
from tests.support.loop_world import World, world
from tests.support.placement import check_history, put, spec


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Two nodes, our own agents."""
    async with world() as this:
        await this.add_node("n-1")
        await this.add_node("n-2")
        yield this


async def placed(fleet: World) -> FakeAgent:
    """Place a workload without applying it; return its node's agent, which holds every call at its gate."""
    await fleet.apply(spec())
    await fleet.settle()
    await fleet.ctx.placer.place("web")
    fake = fleet.fakes[(await fleet.status()).node_id]
    fake.gate.clear()
    fake.arrived.clear()
    return fake


async def caught_applying(fleet: World) -> tuple[FakeAgent, asyncio.Task[str]]:
    """Return an agent that a worker's apply has just reached, and the worker."""
    fake = await placed(fleet)
    worker = asyncio.create_task(fleet.wake("web"))
    await fake.arrived.wait()
    return fake, worker


async def test_scenario_O4_a_delete_wins_over_a_start_that_is_under_way(fleet: World) -> None:
    """Accepted at once; whatever the start does, no copy and no record is left."""
    fake, worker = await caught_applying(fleet)
    await fleet.delete("web")
    fake.gate.set()
    await worker
    await fleet.wake("web")
    assert fleet.copies() == []
    assert not await fleet.exists(SPECS, "web")
    assert not await fleet.exists(STATUSES, "web")


async def test_scenario_O7_a_start_that_arrives_after_the_delete_leaves_no_copy(fleet: World) -> None:
    """The worker slept between its decision and its call: the agent refuses the epoch it was told to delete."""
    fake, worker = await caught_applying(fleet)
    await fleet.delete("web")
    epoch = (await fleet.status()).epoch
    fake.deleted["web"] = epoch
    assert await finalize_delete(fleet.store, "web", tombstone=False, now=fleet.clock())
    fake.gate.set()
    await worker
    assert fleet.copies() == []


async def test_scenario_O7_a_start_on_an_agent_that_remembers_no_delete_is_taken_back(fleet: World) -> None:
    """The reference system's agent starts it; the worker finds the assignment over and has the copy removed."""
    fake, worker = await caught_applying(fleet)
    await fleet.delete("web")
    assert await finalize_delete(fleet.store, "web", tombstone=False, now=fleet.clock())
    fake.gate.set()
    await worker
    assert fake.calls["ApplyWorkload"] == 1
    assert fleet.copies() == []
    assert await fleet.tombstone(fake.node_id) is None


async def test_scenario_E4_a_start_sent_by_a_cycle_that_is_over_is_taken_back(fleet: World) -> None:
    """The cycle that was overtaken writes nothing more, but the copy it has just ordered does not stay."""
    fake = await placed(fleet)
    worker = asyncio.create_task(fleet.cycle())
    await fake.arrived.wait()
    await fleet.delete("web")
    assert await finalize_delete(fleet.store, "web", tombstone=False, now=fleet.clock())
    await put(fleet.store, FENCES, "0/reconcile", FenceRecord(term=1, slot=50))
    fake.gate.set()
    with pytest.raises(Fenced):
        await worker
    assert fleet.copies() == []
    assert await fleet.tombstone(fake.node_id)
    fleet.slot = 50
    await fleet.cycle()
    assert await fleet.tombstone(fake.node_id) is None


async def test_scenario_E4_an_answer_that_is_fenced_off_leaves_a_tombstone_if_the_assignment_is_over(
    fleet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fenced while recording: the assignment is looked up once more, and a copy that must go is owed."""
    fake = await placed(fleet)
    fake.gate.set()

    async def fenced(*_arguments: object, **_options: object) -> object:
        await fleet.delete("web")
        await finalize_delete(fleet.store, "web", tombstone=False, now=fleet.clock())
        raise Fenced

    with monkeypatch.context() as patch:
        patch.setattr(step, "record_applied", fenced)
        with pytest.raises(Fenced):
            await fleet.cycle()
    assert fleet.copies() == [fake.node_id]
    await fleet.cycle()
    assert fleet.copies() == []


async def test_F13_a_spec_changed_while_the_old_one_is_applied_is_applied_next(fleet: World) -> None:
    """Neither is lost: the old revision is seen for what it is, and replaced."""
    fake, worker = await caught_applying(fleet)
    new = await fleet.apply(spec(image="new"))
    fake.gate.set()
    await worker
    await fleet.wake("web")
    assert fake.copies["web"].revision_id == new.revision_id
    assert (await fleet.status()).observed_revision == new.revision_id


async def test_F19_a_stop_asked_while_the_start_is_under_way_is_carried_out(fleet: World) -> None:
    """The answer to the start does not hide the newer wish."""
    fake, worker = await caught_applying(fleet)
    await set_desired(fleet.store, "web", Desired.STOPPED, now=fleet.clock())
    fake.gate.set()
    await worker
    await fleet.wake("web")
    assert fleet.copies() == []
    assert (await fleet.status()).actual == Actual.STOPPED


async def test_F49_a_report_that_overtakes_the_answer_stays(fleet: World) -> None:
    """The agent reports Running before its answer, given earlier, is recorded: the status does not go back."""
    fake, worker = await caught_applying(fleet)
    status = await fleet.status()
    current = (await fleet.store.get(SPECS, "web")).record
    assert current
    await fleet.hear(
        fake.node_id, Report("web", Actual.FAILED, "ended", current.revision_id, status.epoch, "RUNTIME_ERROR")
    )
    fake.gate.set()
    await worker
    assert (await fleet.status()).actual == Actual.FAILED
    assert (await fleet.status()).reapply.attempts == 1
    await fleet.wake("web")
    assert (await fleet.status()).actual == Actual.RUNNING


async def test_F32_a_stale_report_of_the_old_node_does_not_touch_a_moved_workload(fleet: World) -> None:
    """A report on its way while the workload moved is neither believed nor asks for more than is owed already."""
    fake = await placed(fleet)
    fake.gate.set()
    await fleet.wake("web")
    before = await fleet.status()
    stale = Report("web", Actual.RUNNING, "", before.observed_revision, before.epoch)
    await fleet.lose(fake.node_id)
    await fleet.cycle()
    moved = await fleet.status()
    await fleet.hear(fake.node_id, stale)
    assert await fleet.status() == moved
    owed = await fleet.tombstone(fake.node_id)
    assert owed
    assert owed.epoch == before.epoch
    await fleet.come_back(fake.node_id)
    await fleet.cycle()
    assert fleet.copies() == [moved.node_id]


async def test_F32_a_node_that_comes_back_during_the_decision_keeps_its_work(fleet: World) -> None:
    """The move compares the node: heard again, it is not lost."""
    fake = await placed(fleet)
    fake.gate.set()
    await fleet.wake("web")
    await fleet.lose(fake.node_id)
    await fleet.settle()
    move = fleet.ctx.placer.move

    async def late(workload_id: str, **options: object) -> object:
        await fleet.come_back(fake.node_id)
        return await move(workload_id, **options)  # type: ignore[arg-type]

    fleet.ctx.placer.move = late  # type: ignore[method-assign, assignment]
    await fleet.cycle()
    assert (await fleet.status()).node_id == fake.node_id
    assert await fleet.tombstone(fake.node_id) is None
    assert fleet.copies() == [fake.node_id]


async def test_F46_many_workers_on_one_workload_do_it_once(fleet: World) -> None:
    """Ten wake-ups at once: one placement, one copy, one start counted."""
    await fleet.apply(spec())
    await asyncio.gather(*(fleet.wake("web") for _ in range(10)))
    assert len(fleet.copies()) == 1
    assert (await fleet.status()).reapply.attempts == 1
    await check_history(fleet.etcd)
    await fleet.delete("web")
    await asyncio.gather(*(fleet.wake("web") for _ in range(10)))
    assert fleet.copies() == []
    assert not await fleet.exists(SPECS, "web")


async def test_scenario_O6_a_crash_before_the_agent_was_told_loses_no_delete(fleet: World) -> None:
    """The mark is in etcd; whoever looks next carries it out."""
    fake = await placed(fleet)
    fake.gate.set()
    await fleet.wake("web")
    await fleet.delete("web")
    assert (await fleet.cycle())["FinalizeDelete"] == 1
    assert fleet.copies() == []


async def test_scenario_O6_a_crash_before_the_records_were_removed_loses_no_delete(fleet: World) -> None:
    """The agent has removed the copy, the worker died: the next one finds it gone and removes the records."""
    fake = await placed(fleet)
    fake.gate.set()
    await fleet.wake("web")
    await fleet.delete("web")
    status = await fleet.status()
    assert await fleet.agents.delete(fake.node(), "web", epoch=status.epoch)
    assert (await fleet.cycle())["FinalizeDelete"] == 1
    assert not await fleet.exists(SPECS, "web")
