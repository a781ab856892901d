"""Agents of the reference system: no epochs, no revisions in reports, no memory of deletes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from scheduler.domain.workload import Actual, Phase
from scheduler.pb import agent_pb2
from scheduler.store.keys import SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.workloads import record_report
from tests.support.fake_agent import FAILED, RUNNING, UNKNOWN
from tests.support.loop_world import World, world
from tests.support.placement import put, spec


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Two nodes with the reference system's agents."""
    async with world() as this:
        await this.add_node("n-1", knows_epochs=False)
        await this.add_node("n-2", knows_epochs=False)
        yield this


async def running(fleet: World, count: int = 1) -> None:
    """Get so many workloads running."""
    for index in range(count):
        await fleet.apply(spec(f"w{index}", cpu=0.01, memory=1))
    await fleet.cycle()


async def test_F44_a_cycle_lists_each_node_once_and_asks_for_no_workload(fleet: World) -> None:
    """Twenty workloads on two nodes: two lists, no status call, no write."""
    await running(fleet, 20)
    await fleet.cycle()
    for fake in fleet.fakes.values():
        fake.calls.clear()
    assert isinstance(fleet.etcd, MemoryEtcd)
    before = (fleet.etcd.revision, fleet.etcd.calls)
    assert await fleet.cycle() == {"NoAction": 20}
    assert [dict(fake.calls) for fake in fleet.fakes.values()] == [{"ListWorkloads": 1}] * 2
    assert (fleet.etcd.revision, fleet.etcd.calls) == before


@pytest.mark.parametrize("state", [FAILED, None])
async def test_F20_what_the_list_shows_is_acted_on_in_the_same_cycle(fleet: World, state: int | None) -> None:
    """A copy that failed, or that the list lacks, is started again."""
    await running(fleet)
    fake = fleet.fakes[(await fleet.status("w0")).node_id]
    if state is None:
        del fake.copies["w0"]
    else:
        fake.crash("w0", state)
    assert (await fleet.cycle())["ReapplyRunning"] == 1
    assert fake.running() == ["w0"]


async def test_9_20_a_container_removed_behind_the_agent_is_made_anew(fleet: World) -> None:
    """UNKNOWN "container not found" counts as missing, and a delete makes the agent forget the revision."""
    await running(fleet)
    fake = fleet.fakes[(await fleet.status("w0")).node_id]
    fake.crash("w0", UNKNOWN, "container not found")
    await fleet.cycle()
    assert fake.running() == ["w0"]


async def test_F45_a_node_that_cannot_be_listed_changes_nothing(fleet: World) -> None:
    """A failed list is no proof of absence."""
    await running(fleet, 3)
    for fake in fleet.fakes.values():
        fake.refuse = (grpc.StatusCode.UNAVAILABLE, "busy")
    assert await fleet.cycle() == {"NoAction": 3}
    assert {(await fleet.status(f"w{i}")).actual for i in range(3)} == {Actual.RUNNING}


async def test_9_8_an_unknown_workload_is_counted_and_kept(fleet: World) -> None:
    """Neither reconcile nor drift detection nor the monitor removes what no record speaks of."""
    await running(fleet)
    fake = fleet.fakes["n-1"]
    fake.copies["stranger"] = agent_pb2.WorkloadStatus(id="stranger", actual_state=RUNNING)
    for loop in ("reconcile", "monitor_workloads", "detect_drift"):
        await fleet.cycle(loop)
    assert (await fleet.cycle("detect_drift"))["orphan_on_agent"] == 1
    assert "stranger" in fake.copies
    assert fake.calls["DeleteWorkload"] == 0


async def test_P2_a_list_older_than_the_status_is_not_believed(fleet: World) -> None:
    """A status that changed while the node was listed is not overwritten by what the list said."""
    await running(fleet)
    node_id = (await fleet.status("w0")).node_id
    fake = fleet.fakes[node_id]
    listed = fleet.ctx.agents.list

    async def slow(node: object) -> object:
        reports = await listed(node)  # type: ignore[arg-type]
        status = await fleet.status("w0")
        await put(fleet.store, STATUSES, "w0", status.replace(metadata={"touched": "yes"}))
        return reports

    fleet.ctx.agents.list = slow  # type: ignore[method-assign, assignment]
    fake.crash("w0")
    await fleet.cycle("monitor_workloads")
    assert (await fleet.status("w0")).actual == Actual.RUNNING
    fleet.ctx.agents.list = listed  # type: ignore[method-assign]
    await fleet.cycle("monitor_workloads")
    assert (await fleet.status("w0")).actual == Actual.FAILED


async def test_F16_a_copy_left_behind_is_removed_when_the_node_is_back(fleet: World) -> None:
    """Without epochs too: exactly one copy is left."""
    await running(fleet)
    old = (await fleet.status("w0")).node_id
    await fleet.lose(old)
    await fleet.cycle()
    assert len(fleet.copies("w0")) == 2
    await fleet.come_back(old)
    await fleet.cycle()
    assert fleet.copies("w0") == [(await fleet.status("w0")).node_id]


async def test_F6_the_monitor_refreshes_states_and_counts_them(fleet: World) -> None:
    """What the lists show is recorded, counted and followed by a wake-up."""
    await running(fleet, 4)
    victim = await fleet.status("w0")
    fleet.fakes[victim.node_id].crash("w0")
    done = await fleet.cycle("monitor_workloads")
    assert done == {"listed": 2, "changed": 1, Phase.RUNNING: 4} or done[Phase.RUNNING] + done.get(Phase.FAILED, 0) == 4
    assert fleet.woken == [("w0", victim.node_id)]
    assert (await fleet.status("w0")).status == Phase.FAILED


async def test_F38_F39_F40_F41_drift_is_found_and_mended_by_kind(fleet: World) -> None:
    """Missing, elsewhere, another state, another revision: told, recorded, and looked at."""
    await running(fleet, 4)
    home = {f"w{i}": (await fleet.status(f"w{i}")).node_id for i in range(4)}
    fakes = fleet.fakes
    copies = fakes[home["w0"]].copies
    elsewhere = "n-1" if home["w0"] == "n-2" else "n-2"
    fakes[elsewhere].copies["w0"] = copies.pop("w0")
    fakes[home["w1"]].crash("w1")
    fakes[home["w2"]].copies["w2"].revision_id = "other"
    fleet.clock.forward(60)
    fleet.woken.clear()
    assert await fleet.cycle("detect_drift") == {
        "compared": 2, "missing_on_agent": 1, "orphan_on_agent": 1, "state_mismatch": 1, "revision_mismatch": 1,
    }  # fmt: skip
    assert (await fleet.status("w0")).actual == Actual.MISSING
    assert (await fleet.status("w1")).actual == Actual.FAILED
    assert (await fleet.status("w2")).observed_revision == "other"
    assert await fleet.tombstone(elsewhere, "w0")
    assert {workload_id for workload_id, _ in fleet.woken} == {"w0", "w1", "w2"}
    kinds = [kind for kind, _, _ in fleet.events if kind == "DriftDetected"]
    assert len(kinds) == 4


async def test_F44_our_own_agents_are_not_listed() -> None:
    """They report what changes."""
    async with world() as fleet:
        fake = await fleet.add_node("n-1")
        await fleet.apply(spec())
        await fleet.cycle()
        for loop in ("reconcile", "monitor_workloads", "detect_drift"):
            await fleet.cycle(loop)
        assert fake.calls["ListWorkloads"] == 0


async def test_F6_a_report_without_epoch_or_revision_is_believed(fleet: World) -> None:
    """Nothing else is known about such copies."""
    await running(fleet)
    status = await fleet.status("w0")
    fleet.fakes[status.node_id].crash("w0")
    reports = await fleet.agents.list(fleet.fakes[status.node_id].node())
    assert reports[0].epoch == 0
    outcome = await record_report(fleet.store, status.node_id, reports[0], now=fleet.clock())
    assert outcome.needs_action
    assert await fleet.exists(SPECS, "w0")
