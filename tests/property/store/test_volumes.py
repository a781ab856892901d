"""Any history of applies, placements, moves, reports and deletes: what is attached where holds at every revision."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import Conflict, Refused
from scheduler.domain.node import Node
from scheduler.domain.report import Report
from scheduler.domain.volume import READ_WRITE_ONCE, ManagedVolumeRecord, split_holder, volume_id, volume_ids
from scheduler.domain.workload import ManagedVolume, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.store.disks import create_disk, delete_disk
from scheduler.store.keys import ATTACHMENTS, NODES, SPECS, STATUSES, TOMBSTONES, VOLUMES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.placements import Placer
from scheduler.store.refit import refit
from scheduler.store.store import Store
from scheduler.store.volumes import dangling
from scheduler.store.workloads import apply_spec, clear_tombstone, finalize_delete, mark_deleted, record_report
from tests.support.placement import EXACT, node, placers_on, put, put_nodes, records, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODES_IN_PLAY = ("n-1", "n-2", "n-3")
WORKLOADS = ("a", "b")
DISK = ManagedVolumeRecord(
    id="disk-1", name="d", driver="nfs", access_mode=READ_WRITE_ONCE, standalone=True, created_at=NOW
)
ONCE = ManagedVolume(name="once", driver="nfs", access_mode=READ_WRITE_ONCE)
POOL = (
    ONCE,
    ManagedVolume(name="many", driver="nfs", access_mode="ReadWriteMany"),
    ManagedVolume(name="many", driver="nfs", access_mode=READ_WRITE_ONCE),
    ManagedVolume(name="many", driver="nfs"),
    ManagedVolume(name="here", driver="local", size_gb=1),
    ManagedVolume(name="kept", driver="nfs", retain_policy="Retain"),
    ManagedVolume(name="d", driver="nfs", access_mode=READ_WRITE_ONCE, disk_id="disk-1"),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["apply", "apply", "place", "place", "place", "run", "run", "refit", "lose", "find", "fail",
                         "end", "end", "clear", "give_up", "give_up", "undisk", "disk"]),
        st.sampled_from(WORKLOADS),
        st.sampled_from(NODES_IN_PLAY),
        st.sets(st.sampled_from(range(len(POOL))), min_size=1, max_size=3),
        st.booleans(),
    ),
    min_size=15,
    max_size=40,
)  # fmt: skip


def able(node_id: str, **changes: object) -> Node:
    """Describe a node that has all drivers."""
    return node(node_id, supported_storage_drivers=("local", "nfs"), **changes)


class World:
    """One etcd, two placers, and what can happen to volumes."""

    def __init__(self, etcd: MemoryEtcd, placers: list[Placer]) -> None:
        """Take the parts."""
        self.store = Store(etcd)
        self.placers = placers

    async def run(self, action: str, workload: str, node_id: str, chosen: set[int], flag: bool) -> None:
        """Carry out one step; what is refused has changed nothing."""
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "apply": lambda: self.apply(workload, chosen, movable=flag),
            "place": lambda: self.placers[flag].place(workload, frees_volumes=True),
            "run": lambda: self.report(workload, "Running"),
            "fail": lambda: self.report(workload, "Failed"),
            "refit": lambda: self.refit(workload),
            "lose": lambda: self.lose(workload, self.placers[flag]),
            "find": lambda: put(self.store, NODES, node_id, able(node_id)),
            "end": lambda: self.end(workload, tombstone=flag),
            "clear": lambda: self.clear(workload),
            "give_up": lambda: self.give_up(workload),
            "disk": lambda: create_disk(self.store, DISK),
            "undisk": lambda: delete_disk(self.store, DISK.id, force=False),
        }
        with contextlib.suppress(Refused, Conflict):
            await acts[action]()

    async def apply(self, workload: str, chosen: set[int], *, movable: bool) -> None:
        """Apply a workload with some of the volumes."""
        metadata = {"allow_move": "true"} if movable else {}
        volumes = tuple({volume_id(POOL[i]): POOL[i] for i in sorted(chosen)}.values())
        await apply_spec(self.store, spec(workload, managed_volumes=volumes, metadata=metadata), now=NOW)

    async def report(self, workload: str, state: str) -> None:
        """Have the node report the wanted revision; a failure is one of storage."""
        wanted, status = await self.look(workload)
        if wanted and status and status.node_id:
            told = Report(workload, state, revision_id=wanted.revision_id, epoch=status.epoch, message="no such disk",
                          failure_code="STORAGE_ATTACH_FAILED" if state == "Failed" else "")  # fmt: skip
            await record_report(self.store, status.node_id, told, now=NOW, from_cache=False)

    async def refit(self, workload: str) -> None:
        """Bring the node in line with the spec."""
        _, status = await self.look(workload)
        if status and status.node_id:
            await refit(self.store, status, EXACT, now=NOW)

    async def give_up(self, workload: str) -> None:
        """Let the node of a workload become too small for it."""
        _, status = await self.look(workload)
        if status and status.node_id:
            await put(self.store, NODES, status.node_id, able(status.node_id, total_cpu=0.01))
            await refit(self.store, status, EXACT, now=NOW)
            await put(self.store, NODES, status.node_id, able(status.node_id))

    async def end(self, workload: str, *, tombstone: bool) -> None:
        """Delete a workload, with the word of its node or without."""
        await mark_deleted(self.store, workload, now=NOW)
        await finalize_delete(self.store, workload, tombstone=tombstone, now=NOW)

    async def clear(self, workload: str) -> None:
        """Have every node confirm what it owes."""
        for node_id in NODES_IN_PLAY:
            await clear_tombstone(self.store, node_id, workload, 2**60)

    async def lose(self, workload: str, placer: Placer) -> None:
        """Lose the node of a workload for good and move it."""
        _, status = await self.look(workload)
        if status and status.node_id:
            await put(self.store, NODES, status.node_id, able(status.node_id, status="NotReady"))
            await placer.move(workload, from_node=status.node_id)

    async def look(self, workload: str) -> tuple[WorkloadSpec | None, WorkloadStatus | None]:
        """Read spec and status."""
        return (await self.store.get(SPECS, workload)).record, (await self.store.get(STATUSES, workload)).record


async def check_volumes(etcd: MemoryEtcd) -> None:
    """Check the invariants at every revision."""
    _, last = await etcd.get("/none")
    before: dict[str, ManagedVolumeRecord] = {}
    for revision in range(2, last + 1):
        specs, statuses, owed, known, attached = [
            await records(etcd, table, revision) for table in (SPECS, STATUSES, TOMBSTONES, VOLUMES, ATTACHMENTS)
        ]
        assert dangling(known, attached, statuses, owed) == []
        check_access(known)
        check_references(specs, known)
        check_all_is_attached(statuses, owed, known)
        lost = {i for i, v in before.items() if v.retain_policy == "Retain" and not v.standalone} - known.keys()
        assert not lost, (revision, lost)
        assert all(not volume.is_over for volume in known.values())
        before = known


def check_access(known: dict[str, ManagedVolumeRecord]) -> None:
    """Check that one node at most has a volume that only one may have, and that a local one is where its data is."""
    for volume in known.values():
        nodes = {split_holder(holder)[0] for holder in volume.attachments}
        assert tuple(sorted(nodes)) == volume.attached_nodes
        assert volume.access_mode != READ_WRITE_ONCE or len(nodes) <= 1, volume


def check_references(specs: dict[str, WorkloadSpec], known: dict[str, ManagedVolumeRecord]) -> None:
    """Check that a workload names a volume exactly when the volume's record says so."""
    named = {(i, w) for w, s in specs.items() for i in volume_ids(s.managed_volumes)}
    assert named == {(v.id, w) for v in known.values() for w in v.workload_refs}


def check_all_is_attached(
    statuses: dict[str, WorkloadStatus], owed: dict[str, Tombstone], known: dict[str, ManagedVolumeRecord]
) -> None:
    """Check that what a status says is attached is, and nothing of a workload without a node."""
    for status in statuses.values():
        assert status.node_id or not status.attached
        for identifier in status.attached:
            assert known[identifier].is_attached(status.node_id, status.id), (status, owed)


async def play(moves: list[tuple[str, str, str, set[int], bool]], seed: int, *, at_once: bool) -> None:
    """Run the steps over one etcd, one after the other or all at once, then check every revision."""
    chance = random.Random(seed)  # noqa: S311
    etcd = MemoryEtcd()
    store = Store(etcd)
    await put_nodes(store, [able(n) for n in NODES_IN_PLAY])
    await create_disk(store, DISK)

    async def pause() -> None:
        for _ in range(chance.choice([0, 0, 1, 3])):
            await asyncio.sleep(0)

    async with placers_on([etcd] * 2) as placers:
        world = World(etcd, [placer for placer, _, _ in placers])
        etcd.pause = pause
        if at_once:
            async with asyncio.TaskGroup() as group:
                for move in moves:
                    group.create_task(world.run(*move))
        else:
            for move in moves:
                await world.run(*move)
        await check_volumes(etcd)
    await etcd.close()


@settings(max_examples=120, deadline=None)
@given(steps, st.integers(0, 2**32))
def test_F81_attachments_and_records_agree_at_every_revision(
    moves: list[tuple[str, str, str, set[int], bool]], seed: int
) -> None:
    """One node at most for ReadWriteOnce; nothing attached without a copy; nothing retained is lost; F82, V1, V3."""
    asyncio.run(play(moves, seed, at_once=False))


@settings(max_examples=80, deadline=None)
@given(steps, st.integers(0, 2**32))
def test_F81_also_when_all_of_it_happens_at_once(moves: list[tuple[str, str, str, set[int], bool]], seed: int) -> None:
    """Two placers, and everybody else, in any order."""
    asyncio.run(play(moves, seed, at_once=True))
