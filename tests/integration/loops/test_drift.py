"""Copies that nobody knows: kept, told of, and deleted only when the operator wants it and all is sure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from scheduler.domain.drift import OrphanPolicy
from scheduler.domain.errors import StoreUnavailable
from scheduler.domain.report import Report
from scheduler.domain.shard import ClusterRecord
from scheduler.domain.workload import WorkloadSpec
from scheduler.pb import agent_pb2
from scheduler.store.intent import remove_node
from scheduler.store.keys import CLUSTER, CLUSTER_ID, DRIFTS, SPECS, STATUSES
from scheduler.store.nodes import register, set_health
from scheduler.store.workloads import apply_spec, finalize_delete
from scheduler.store.write import Ref, Write
from tests.support.fake_agent import RUNNING, STOPPED, FakeAgent
from tests.support.loop_world import World, world
from tests.support.placement import put

FINDING = "n-1/stranger/orphan_on_agent"
DELETE = {"drift_orphan_policy": "delete", "drift_sightings": 3, "drift_grace_seconds": 600}


async def with_stranger(fleet: World, **fields: Any) -> FakeAgent:
    """A cluster with a node that runs one known copy and one that nobody knows."""
    await put(fleet.store, CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="ours"))
    fake = await fleet.add_node("n-1", knows_epochs=False, **fields)
    await fleet.apply(WorkloadSpec(id="web", type="container", image="nginx:1"))
    await fleet.cycle()
    fake.copies["stranger"] = agent_pb2.WorkloadStatus(id="stranger", actual_state=RUNNING)
    return fake


async def cycles(fleet: World, count: int, apart: float = 300) -> None:
    """Run so many drift cycles."""
    for _ in range(count):
        await fleet.cycle("detect_drift")
        await fleet.settle()
        fleet.clock.forward(apart)


async def test_F36_F42_F43_an_unknown_copy_is_kept_and_told_of_once() -> None:
    """One event, one record that is written as often as sightings count, and gone with the copy."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 3)
        revision = (await fleet.store.get(DRIFTS, FINDING)).mod_revision
        await cycles(fleet, 20)
        stored = await fleet.store.get(DRIFTS, FINDING)
        assert stored.record
        assert stored.mod_revision == revision, "an open finding is not written over and over"
        assert (stored.record.action, stored.record.sightings) == ("operator_investigation", 3)
        assert "stranger" in fake.copies
        assert [w for kind, w, _ in fleet.events if kind == "DriftDetected"] == ["stranger"]
        del fake.copies["stranger"]
        await cycles(fleet, 1)
        assert not await fleet.exists(DRIFTS, FINDING)


async def test_F36_F37_under_delete_it_goes_after_three_sightings_and_the_grace() -> None:
    """Not before either; the finding goes with it."""
    async with world(**DELETE) as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 3, apart=100)
        assert "stranger" in fake.copies, "three sightings, but not the grace"
        await cycles(fleet, 3, apart=200)
        assert "stranger" not in fake.copies
        assert "web" in fake.copies
        assert not await fleet.exists(DRIFTS, FINDING)


@pytest.mark.parametrize(
    ("settings", "node"),
    [
        ({**DELETE, "drift_dry_run": True}, {}),
        (DELETE, {"cluster_id": "another"}),
        ({"drift_orphan_policy": "adopt"}, {}),
    ],
    ids=["dry run", "another cluster's node", "adopt"],
)
async def test_F36_it_is_never_deleted_in_a_dry_run_on_a_foreign_node_or_under_another_policy(
    settings: dict[str, Any], node: dict[str, Any]
) -> None:
    """However long it is there."""
    async with world(**settings) as fleet:
        fake = await with_stranger(fleet, **node)
        await cycles(fleet, 10, apart=1000)
        assert "stranger" in fake.copies


async def test_F36_nothing_is_deleted_when_the_cluster_record_is_gone() -> None:
    """A wiped or foreign etcd makes every copy look unknown."""
    async with world(**DELETE) as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 2, apart=1000)

        def wipe(_view: object) -> Any:
            write: Write[None] = Write(None)
            write.delete(CLUSTER, CLUSTER_ID)
            return write

        await fleet.store.transact([Ref(CLUSTER, CLUSTER_ID)], wipe)
        await fleet.settle()
        await cycles(fleet, 5, apart=1000)
        assert "stranger" in fake.copies


async def test_F36_a_workload_that_is_applied_meanwhile_is_not_deleted() -> None:
    """Its copy is taken over: what was unknown has a record now."""
    async with world(**DELETE) as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 2, apart=1000)
        await fleet.apply(WorkloadSpec(id="stranger", type="container", image="nginx:1"))
        await cycles(fleet, 3, apart=1000)
        await fleet.cycle()
        assert "stranger" in fake.copies
        assert not await fleet.exists(DRIFTS, FINDING)


@asynccontextmanager
async def list_on_its_way(fleet: World, fake: FakeAgent) -> AsyncIterator[None]:
    """While the block runs, the list that a drift cycle has asked for is made up, and has not arrived."""
    fake.gate.clear()
    fake.arrived.clear()
    cycle = asyncio.create_task(fleet.cycle("detect_drift"))
    await fake.arrived.wait()
    yield
    await fleet.settle()
    fake.gate.set()
    await cycle
    await fleet.settle()


async def test_F36_a_list_older_than_a_deletion_finds_no_unknown_copy() -> None:
    """The workload was removed, its copy and its records, while the list that has the copy was on its way."""
    async with world(drift_orphan_policy="delete", drift_sightings=1, drift_grace_seconds=0) as fleet:
        fake = await with_stranger(fleet)
        await fleet.cycle("detect_drift")
        removed = len(fake.removals)
        async with list_on_its_way(fleet, fake):
            await fleet.delete("web")
            del fake.copies["web"]
            assert await finalize_delete(fleet.store, "web", tombstone=False, now=fleet.clock())
        assert not await fleet.exists(DRIFTS, "n-1/web/orphan_on_agent")
        assert len(fake.removals) == removed


async def test_F36_a_list_older_than_an_apply_neither_counts_nor_deletes() -> None:
    """The copy that nobody knew got a record meanwhile: no sighting, no order to remove it."""
    async with world(drift_orphan_policy="delete", drift_sightings=2, drift_grace_seconds=0) as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 1)
        async with list_on_its_way(fleet, fake):
            await fleet.apply(WorkloadSpec(id="stranger", type="container", image="nginx:1"))
        assert "stranger" in fake.copies
        assert not fake.removals


async def test_F36_an_apply_that_the_cache_has_not_heard_of_stops_the_removal() -> None:
    """Compared in etcd itself: the cache of this worker is behind."""
    async with world(drift_orphan_policy="delete", drift_sightings=2, drift_grace_seconds=0) as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 1)
        sighted = (await fleet.store.get(DRIFTS, FINDING)).mod_revision
        fake.gate.clear()
        fake.arrived.clear()
        cycle = asyncio.create_task(fleet.cycle("detect_drift"))
        await fake.arrived.wait()
        await fleet.cache.close()
        await apply_spec(fleet.store, WorkloadSpec(id="stranger", type="container", image="nginx:1"), now=fleet.clock())
        fake.gate.set()
        with pytest.raises(StoreUnavailable):  # the cycle ends well; the cache never shows what it wrote
            await cycle
        assert "stranger" in fake.copies
        assert not fake.removals
        assert (await fleet.store.get(DRIFTS, FINDING)).mod_revision == sighted


async def test_F41_a_list_older_than_a_start_does_not_call_the_copy_missing() -> None:
    """The copy was reported after the list was made up."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        fleet.clock.forward(600)
        copy = fake.copies.pop("web")
        async with list_on_its_way(fleet, fake):
            fake.copies["web"] = copy
            fake.crash("web", STOPPED, "ended")
            stopped = Report("web", "Stopped", revision_id=copy.revision_id)
            await fleet.hear("n-1", stopped)
        assert (await fleet.status()).actual == "Stopped"


async def test_F38_a_list_older_than_an_assignment_owes_no_removal() -> None:
    """What looked like a duplicate when the list was made up is the assigned copy by now."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        status, spec = await fleet.status(), (await fleet.store.get(SPECS, "web")).record
        assert spec
        await put(fleet.store, STATUSES, "web", status.replace(node_id="n-2", assigned_node="n-2"))
        await fleet.settle()
        async with list_on_its_way(fleet, fake):
            await put(fleet.store, STATUSES, "web", status)
        assert await fleet.tombstone("n-1") is None


async def test_F43_a_finding_that_was_renewed_while_the_list_was_on_its_way_stays() -> None:
    """The list lacks the copy; a front has seen it since."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 1)
        copy = fake.copies.pop("stranger")
        async with list_on_its_way(fleet, fake):
            fake.copies["stranger"] = copy
            found = (await fleet.store.get(DRIFTS, FINDING)).record
            assert found
            await put(fleet.store, DRIFTS, FINDING, found.replace(epoch=7))
        assert await fleet.exists(DRIFTS, FINDING)


async def test_F36_sightings_begin_anew_after_a_time_in_which_the_copy_had_a_record() -> None:
    """Applied and deleted again between two drift cycles: three sightings from then on, and the whole grace."""
    async with world(**DELETE) as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 2, apart=1000)
        await fleet.apply(WorkloadSpec(id="stranger", type="container", image="nginx:1"))
        await fleet.delete("stranger")
        await fleet.settle()
        assert await finalize_delete(fleet.store, "stranger", tombstone=False, now=fleet.clock())
        assert not await fleet.exists(DRIFTS, FINDING)
        await cycles(fleet, 2, apart=1000)
        assert "stranger" in fake.copies
        await cycles(fleet, 1, apart=1000)
        assert "stranger" not in fake.copies


async def test_F43_findings_of_a_node_that_is_removed_go_in_the_next_cycle() -> None:
    """For no write when there are none; told once."""
    async with world() as fleet:
        await with_stranger(fleet)
        await cycles(fleet, 1)
        assert await remove_node(fleet.store, "n-1", force=True)
        fleet.events.clear()
        await cycles(fleet, 1)
        assert not await fleet.exists(DRIFTS, FINDING)
        assert [(w, n) for kind, w, n in fleet.events if kind == "DriftDetected"] == [("stranger", "n-1")]
        revision = fleet.store.last_revision
        await cycles(fleet, 2)
        assert fleet.store.last_revision == revision


async def test_F43_findings_go_when_the_agent_registers_under_another_id() -> None:
    """And stay while their node is only silent."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 1)
        await set_health(fleet.store, "n-1", "NotReady", "silent", "monitor", now=fleet.clock())
        await cycles(fleet, 1)
        assert await fleet.exists(DRIFTS, FINDING)
        await register(fleet.store, fake.node(node_id="n-9"), now=fleet.clock())
        await cycles(fleet, 1)
        assert not await fleet.exists(DRIFTS, FINDING)


async def test_F42_a_mend_that_comes_back_in_every_cycle_is_told_of_once() -> None:
    """The agent says an old revision again and again, whatever it is sent."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        del fake.copies["stranger"]
        for _ in range(4):
            fake.copies["web"].revision_id = "old"
            await cycles(fleet, 1)
            await fleet.cycle()
        assert [w for kind, w, _ in fleet.events if kind == "DriftDetected"] == ["web"]
        await cycles(fleet, 5)
        fake.copies["web"].revision_id = "old"
        await cycles(fleet, 1)
        assert [w for kind, w, _ in fleet.events if kind == "DriftDetected"] == ["web", "web"]


async def test_F42_a_finding_is_told_of_again_when_its_policy_or_outcome_changes_and_when_it_is_resolved() -> None:
    """Kept, to be deleted, refused by the agent (each time, told once), gone."""
    async with world() as fleet:
        fake = await with_stranger(fleet)
        await cycles(fleet, 5)

        def told() -> int:
            return sum(kind == "DriftDetected" for kind, _, _ in fleet.events)

        assert told() == 1
        settings = fleet.ctx.settings
        fleet.ctx.settings = settings.model_copy(update=DELETE | {"drift_orphan_policy": OrphanPolicy.DELETE})
        fake.refuse_only["DeleteWorkload"] = (grpc.StatusCode.INTERNAL, "busy")
        await cycles(fleet, 4)
        assert told() == 3
        assert (await fleet.store.get(DRIFTS, FINDING)).record.last_error  # type: ignore[union-attr]
        fake.refuse_only.clear()
        await cycles(fleet, 3)
        assert told() == 4
        assert "stranger" not in fake.copies


async def test_F44_a_node_of_ours_without_open_findings_is_not_listed() -> None:
    """Its agent reports changes by itself, and fronts open findings from whole rosters."""
    async with world() as fleet:
        fake = await fleet.add_node("n-1")
        await cycles(fleet, 3)
        assert fake.calls["ListWorkloads"] == 0
