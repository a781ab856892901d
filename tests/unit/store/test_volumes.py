"""Volumes in the transactions of workloads: the table of phases, access modes, and what becomes of claims."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler.domain.errors import Refused
from scheduler.domain.report import Report
from scheduler.domain.volume import ManagedVolumeRecord, VolumePhase, attachment_phase, phase_shown, split_holder
from scheduler.domain.workload import ManagedVolume, WorkloadSpec, WorkloadStatus
from scheduler.placement.explain import Explanation
from scheduler.store.assign import Placed
from scheduler.store.disks import create_disk, delete_disk
from scheduler.store.fences import fence_node
from scheduler.store.intent import remove_node
from scheduler.store.keys import ATTACHMENTS, LEDGERS, NODES, SPECS, STATUSES, VOLUMES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.placements import Outcome
from scheduler.store.refit import refit
from scheduler.store.store import Store
from scheduler.store.volumes import find_dangling, free_claims, kept_volumes
from scheduler.store.workloads import (
    apply_spec,
    clear_tombstone,
    finalize_delete,
    mark_deleted,
    record_report,
)
from tests.support.placement import EXACT, node, placer_on, put, records, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONCE = ManagedVolume(name="data", driver="nfs", access_mode="ReadWriteOnce", mount_path="/data")
MANY = ManagedVolume(name="share", driver="nfs", access_mode="ReadWriteMany")
HERE = ManagedVolume(name="here", driver="local", size_gb=2)


class World:
    """An etcd with two nodes that have all drivers."""

    def __init__(self) -> None:
        """Make the etcd."""
        self.etcd = MemoryEtcd()
        self.store = Store(self.etcd)

    async def start(self) -> World:
        """Add the nodes."""
        for node_id in ("n-1", "n-2"):
            await self.ready(node_id)
        return self

    async def ready(self, node_id: str, **changes: object) -> None:
        """Add a node or change it."""
        fields = {"supported_storage_drivers": ("local", "nfs"), **changes}
        await put(self.store, NODES, node_id, node(node_id, **fields))

    async def apply(self, name: str = "web", *volumes: ManagedVolume, **fields: Any) -> WorkloadSpec:
        """Apply a workload with these volumes."""
        return (await apply_spec(self.store, spec(name, managed_volumes=volumes, **fields), now=NOW)).spec

    async def place(self, name: str = "web", *, frees: bool = True) -> Outcome:
        """Place a workload."""
        async with placer_on(self.etcd) as (placer, _, _):
            return await placer.place(name, frees_volumes=frees)

    async def move(self, name: str, from_node: str) -> Outcome:
        """Move a workload off a node that is lost for good."""
        await self.ready(from_node, status="NotReady")
        async with placer_on(self.etcd) as (placer, _, _):
            return await placer.move(name, from_node=from_node)

    async def report(self, state: str, name: str = "web", **fields: Any) -> None:
        """Have the node report the revision that is wanted."""
        wanted, status = await self.wanted(name), await self.status(name)
        told = Report(name, state, revision_id=wanted.revision_id, epoch=status.epoch, **fields)
        await record_report(self.store, status.node_id, told, now=NOW, from_cache=False)

    async def wanted(self, name: str = "web") -> WorkloadSpec:
        """Read a spec."""
        record = (await self.store.get(SPECS, name)).record
        assert record
        return record

    async def status(self, name: str = "web") -> WorkloadStatus:
        """Read a status."""
        record = (await self.store.get(STATUSES, name)).record
        assert record
        return record

    async def volume(self, identifier: str = "nfs:data") -> ManagedVolumeRecord | None:
        """Read a volume."""
        return (await self.store.get(VOLUMES, identifier)).record

    async def shown(self, identifier: str = "nfs:data") -> tuple[str, str]:
        """Return the phase of a volume and its error, as people see them."""
        volume = await self.volume(identifier)
        assert volume
        statuses = await records(self.etcd, STATUSES)
        specs = await records(self.etcd, SPECS)
        attached = [statuses[w] for n, w in map(split_holder, volume.attachments) if statuses[w].node_id == n]
        return phase_shown(volume, [specs[w] for w in volume.workload_refs], attached)

    async def attachments(self) -> list[str]:
        """Return the ids of all attachments; none of them dangles."""
        assert await find_dangling(self.store) == []
        return sorted(await records(self.etcd, ATTACHMENTS))

    async def end(self, name: str = "web", *, tombstone: bool = False) -> None:
        """Delete a workload whose copy is gone, or with a tombstone, is not."""
        await mark_deleted(self.store, name, now=NOW)
        assert await finalize_delete(self.store, name, tombstone=tombstone, now=NOW)


@pytest.fixture
async def world() -> World:
    """Two nodes."""
    return await World().start()


async def test_F81_phases_follow_the_workload(world: World) -> None:
    """Provisioned without a node and while it starts, Attached, Error, and gone with the last reference."""
    await world.apply("web", ONCE)
    assert (await world.shown(), await world.attachments()) == ((VolumePhase.PROVISIONED, ""), [])
    placed = await world.place()
    assert isinstance(placed, Placed)
    assert await world.attachments() == [f"{placed.node_id}/web/nfs:data"]
    assert await world.shown() == (VolumePhase.PROVISIONED, "")
    await world.report("Running")
    assert await world.shown() == (VolumePhase.ATTACHED, "")
    await world.report("Failed", message="exit code 1")
    assert await world.shown() == (VolumePhase.ERROR, "exit code 1")
    await mark_deleted(world.store, "web", now=NOW)
    await world.report("Stopped")
    assert (await world.shown())[0] == VolumePhase.DELETING
    await world.end()
    assert (await world.volume(), await world.attachments()) == (None, [])


async def test_F81_attachments_have_a_phase_of_their_own(world: World) -> None:
    """Attaching, Attached, Error; Detaching when the workload is elsewhere or to be gone."""
    await world.apply("web", ONCE)
    await world.place()
    wanted, status = await world.wanted(), await world.status()
    running = status.replace(status_info=status.status_info.replace(actual_state="Running"))
    failed = status.replace(status_info=status.status_info.replace(actual_state="Failed"))
    here = status.node_id
    assert [attachment_phase(wanted, s, here) for s in (status, running, failed)] == ["Attaching", "Attached", "Error"]
    assert attachment_phase(wanted, running, "elsewhere") == "Detaching"
    assert attachment_phase(wanted.replace(desired_state="Deleted"), running, here) == "Detaching"


async def test_F81_a_retained_volume_outlives_its_workload_and_is_taken_up_again(world: World) -> None:
    """With the node of its data when it is local, also by a workload of another name."""
    kept = HERE.replace(retain_policy="Retain")
    await world.apply("web", kept)
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.end()
    assert (await world.shown("local:here"))[0] == VolumePhase.RETAINED
    await world.apply("other", kept)
    again = await world.place("other")
    assert isinstance(again, Placed)
    assert again.node_id == placed.node_id


async def test_9_10_volumes_persist_over_reads_and_moves(world: World) -> None:
    """The spec keeps them; a move has the new attachment in the same transaction, and loses no record."""
    await world.apply("web", ONCE, MANY)
    first = await world.place()
    assert isinstance(first, Placed)
    assert (await world.wanted()).managed_volumes == (ONCE, MANY)
    moved = await world.move("web", first.node_id)
    assert isinstance(moved, Placed)
    assert await world.attachments() == [f"{moved.node_id}/web/nfs:data", f"{moved.node_id}/web/nfs:share"]
    volume = await world.volume()
    assert volume
    assert (volume.attached_nodes, volume.created_at) == ((moved.node_id,), NOW)


async def test_F81_a_volume_dropped_from_the_spec_is_detached_when_the_new_revision_runs(world: World) -> None:
    """Until then the old copy uses it; a retained one is released, another one is gone."""
    await world.apply("web", ONCE, MANY.replace(retain_policy="Retain"))
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.report("Running")
    await world.apply("web", HERE)
    await refit(world.store, await world.status(), EXACT, now=NOW)
    assert len(await world.attachments()) == 3
    await world.report("Running")
    assert await world.attachments() == [f"{placed.node_id}/web/local:here"]
    assert await world.volume("nfs:data") is None
    assert (await world.shown("nfs:share"))[0] == VolumePhase.RETAINED


async def test_F81_read_write_once_is_of_one_node_and_of_any_workload_there(world: World) -> None:
    """A second workload goes to the same node; when there is no room, it waits and says why."""
    await world.apply("a", ONCE)
    await world.apply("b", ONCE)
    first, second = await world.place("a"), await world.place("b")
    assert isinstance(first, Placed)
    assert isinstance(second, Placed)
    assert first.node_id == second.node_id
    await world.ready(first.node_id, schedulable=False)
    await world.apply("c", ONCE)
    refused = await world.place("c")
    assert isinstance(refused, Explanation)
    assert "1 volume_on_other_node" in refused.summary


async def test_F81_two_workloads_must_agree_on_the_access_mode(world: World) -> None:
    """The one that comes second is refused, and nothing of it is stored."""
    await world.apply("a", ONCE)
    with pytest.raises(Refused, match=r'volume nfs:data is ReadWriteOnce and used by "a"; ReadWriteMany asked'):
        await world.apply("b", ONCE.replace(access_mode="ReadWriteMany"))
    assert "b" not in await records(world.etcd, SPECS)


async def test_F81_a_local_volume_binds_the_workload_to_its_node(world: World) -> None:
    """Whatever else has room; only who allows the move leaves the data behind."""
    await world.apply("web", HERE)
    first = await world.place()
    assert isinstance(first, Placed)
    assert isinstance(await world.move("web", first.node_id), Explanation)
    await world.apply("web", HERE, metadata={"allow_move": "true"})
    moved = await world.move("web", first.node_id)
    assert isinstance(moved, Placed)
    volume = await world.volume("local:here")
    assert volume
    assert volume.node_id == moved.node_id != first.node_id


async def test_scenario_P1_local_volumes_count_as_disk_of_the_node(world: World) -> None:
    """Those of other drivers do not; what does not fit is told."""
    await world.ready("n-2", schedulable=False)
    await world.ready("n-1", total_disk=3)
    await world.apply("web", HERE, MANY.replace(size_gb=500))
    assert isinstance(await world.place(), Placed)
    ledger = (await world.store.get(LEDGERS, "n-1")).record
    assert ledger
    assert ledger.disk_gb == 2
    await world.apply("more", ManagedVolume(name="more", size_gb=2))
    refused = await world.place("more")
    assert isinstance(refused, Explanation)
    assert "disk_insufficient" in refused.summary


async def test_scenario_V1_a_claim_is_released_by_the_move_and_not_before(world: World) -> None:
    """Another workload cannot have the volume while the lost node may still use it."""
    await world.apply("web", ONCE)
    first = await world.place()
    assert isinstance(first, Placed)
    await world.ready(first.node_id, status="NotReady")
    await world.apply("thief", ONCE)
    assert isinstance(await world.place("thief"), Explanation)
    moved = await world.move("web", first.node_id)
    assert isinstance(moved, Placed)
    second = await world.place("thief")
    assert isinstance(second, Placed)
    assert second.node_id == moved.node_id


async def test_scenario_V1_a_workload_deleted_on_a_lost_node_holds_its_claim_until_the_node_confirms(
    world: World,
) -> None:
    """The tombstone keeps the attachment; with it go the attachment and the record."""
    await world.apply("web", ONCE)
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.end(tombstone=True)
    assert await world.attachments() == [f"{placed.node_id}/web/nfs:data"]
    await world.apply("next", ONCE)
    second = await world.place("next")
    assert isinstance(second, Placed)
    assert second.node_id == placed.node_id
    await world.end("next")
    assert await clear_tombstone(world.store, placed.node_id, "web", placed.epoch)
    assert (await world.attachments(), await world.volume()) == ([], None)


async def test_scenario_V1_a_workload_that_gave_its_node_up_goes_nowhere_else_before_that_confirms(
    world: World,
) -> None:
    """Unless whoever places it knows that no copy of it is left."""
    await world.apply("web", ONCE)
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.ready(placed.node_id, total_cpu=0.01)
    assert "cpu_insufficient" in await refit(world.store, await world.status(), EXACT, now=NOW)
    assert len(await world.attachments()) == 1
    assert isinstance(await world.place(frees=False), Explanation)
    assert isinstance(await world.place(frees=True), Placed)
    volume = await world.volume()
    assert volume
    assert len(volume.attached_nodes) == 1


@pytest.mark.parametrize("removed", [False, True])
async def test_scenario_V1_an_operator_frees_the_claims_that_a_dead_node_holds(world: World, *, removed: bool) -> None:
    """By fencing the node, or by removing it; while it may be alive nothing is freed."""
    await world.apply("web", ONCE)
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.end(tombstone=True)
    async with placer_on(world.etcd) as (_, _, cache):
        await world.ready(placed.node_id, status="NotReady", status_updated_at=NOW)
        assert await free_claims(world.store, cache, placed.node_id) == 0
        if removed:
            await remove_node(world.store, placed.node_id, force=True)
        else:
            await fence_node(world.store, placed.node_id, "off", force=False, now=NOW)
        assert await free_claims(world.store, cache, placed.node_id) == 1
    assert (await world.attachments(), await world.volume()) == ([], None)


@pytest.mark.parametrize("code", ["STORAGE_ATTACH_FAILED", "STORAGE_PROVISION_FAILED"])
async def test_scenario_V3_a_failed_attach_leaves_no_claim(world: World, code: str) -> None:
    """The volume says what went wrong and is free for others; the next order claims it anew."""
    await world.apply("web", ONCE)
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.report("Failed", failure_code=code, message="no such target")
    assert await world.attachments() == []
    assert await world.shown() == (VolumePhase.ERROR, "no such target")
    assert await refit(world.store, await world.status(), EXACT, now=NOW) == ""
    assert await world.attachments() == [f"{placed.node_id}/web/nfs:data"]
    await world.report("Running")
    assert await world.shown() == (VolumePhase.ATTACHED, "")


async def test_scenario_V3_a_claim_that_another_took_meanwhile_sends_the_workload_there(world: World) -> None:
    """The node is given up, since the volume is in use elsewhere."""
    await world.apply("web", ONCE)
    placed = await world.place()
    assert isinstance(placed, Placed)
    await world.report("Failed", failure_code="STORAGE_ATTACH_FAILED", message="no such target")
    await world.ready(placed.node_id, schedulable=False)
    await world.apply("other", ONCE)
    other = await world.place("other")
    assert isinstance(other, Placed)
    assert "volume_on_other_node" in await refit(world.store, await world.status(), EXACT, now=NOW)


async def test_F82_a_disk_survives_binding_and_unbinding(world: World) -> None:
    """A local one keeps the node where its data is; it is refused to delete while it is used, unless by force."""
    disk = ManagedVolumeRecord(id="disk-1", name="d", driver="local", standalone=True, phase=VolumePhase.PENDING)
    await create_disk(world.store, disk)
    bound = ManagedVolume(name="d", disk_id="disk-1", retain_policy="Retain")
    await world.apply("web", bound)
    placed = await world.place()
    assert isinstance(placed, Placed)
    with pytest.raises(Refused, match='disk "disk-1" is used by "web"'):
        await delete_disk(world.store, "disk-1", force=False)
    await world.apply("web", MANY)
    await refit(world.store, await world.status(), EXACT, now=NOW)
    await world.report("Running")
    found = await world.volume("disk-1")
    assert found
    assert (found.node_id, found.workload_refs, found.phase) == (placed.node_id, (), VolumePhase.AVAILABLE)
    assert await delete_disk(world.store, "disk-1", force=False)
    assert await delete_disk(world.store, "disk-1", force=False) is None
    with pytest.raises(Refused, match="there is no disk"):
        await world.apply("late", bound)


async def test_F82_a_disk_removed_by_force_is_named_by_whoever_still_wants_it(world: World) -> None:
    """It is not made again behind the operator's back, and its attachment is gone."""
    await create_disk(world.store, ManagedVolumeRecord(id="disk-1", name="d", driver="nfs", standalone=True))
    await world.apply("web", ManagedVolume(name="d", driver="nfs", disk_id="disk-1"))
    await world.place()
    await delete_disk(world.store, "disk-1", force=True)
    assert await world.volume("disk-1") is None
    assert "disk-1, which has been removed" in await refit(world.store, await world.status(), EXACT, now=NOW)
    refused = await world.place()
    assert isinstance(refused, Explanation)
    assert "disk-1" in refused.summary


async def test_9_10_a_node_keeps_the_data_that_is_still_needed(world: World) -> None:
    """Of a workload that only leaves, and of a volume that another one names; else its retain policy decides."""
    await world.apply("web", HERE)
    placed = await world.place()
    assert isinstance(placed, Placed)
    async with placer_on(world.etcd) as (_, _, cache):
        other = "n-2" if placed.node_id == "n-1" else "n-1"
        assert kept_volumes(cache, placed.node_id, "web") == ["local:here"]
        assert kept_volumes(cache, other, "web") == []
        await mark_deleted(world.store, "web", now=NOW)
        await cache.wait_revision(world.etcd.revision, 5)
        assert kept_volumes(cache, placed.node_id, "web") == []
        await world.apply("db", HERE)
        await cache.wait_revision(world.etcd.revision, 5)
        assert kept_volumes(cache, placed.node_id, "web") == ["local:here"]


async def test_9_10_an_apply_that_changes_nothing_writes_nothing(world: World) -> None:
    """Nor does an order that finds everything attached."""
    await world.apply("web", ONCE, HERE)
    await world.place()
    before = world.etcd.revision
    await world.apply("web", ONCE, HERE)
    assert await refit(world.store, await world.status(), EXACT, now=NOW) == ""
    assert world.etcd.revision == before
