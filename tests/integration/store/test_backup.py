"""Backup and restore: the file, a restore broken off anywhere, and a fleet that goes on after one (section 9.18)."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import pathlib
import shutil
import signal
from datetime import UTC, datetime

import psutil
import pytest

from scheduler.domain.errors import BadBackup, Conflict, StoreUnavailable, WrongCluster
from scheduler.domain.node import Node
from scheduler.domain.shard import FenceRecord
from scheduler.domain.workload import Tombstone, WorkloadStatus
from scheduler.store import keys
from scheduler.store.backup import check_backup, read_header, saved_tables, take_backup
from scheduler.store.cluster import join_cluster
from scheduler.store.etcd import Etcd
from scheduler.store.keys import NODES, SPECS, STATUSES
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.nodes import register
from scheduler.store.raised import raise_for, raised
from scheduler.store.restore import NotEmpty, Restore
from scheduler.store.store import Store
from tests.support import servers
from tests.support.agent_process import AgentProcess
from tests.support.fronts import eventually
from tests.support.loop_world import World, world
from tests.support.placement import spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def backup_of(etcd: MemoryEtcd | Etcd) -> io.BytesIO:
    """Take a backup into memory."""
    out = io.BytesIO()
    await take_backup(etcd, out, now=NOW)
    return out


async def filled(count: int = 250) -> MemoryEtcd:
    """Return an etcd with a cluster and some nodes and statuses."""
    etcd = MemoryEtcd()
    store = Store(etcd)
    await join_cluster(store)
    await etcd.txn((), [Put("/shards/map", b'{"generation":7,"count":2}'), Put("/shards/0/reconcile", b"{}")])
    for number in range(count):
        status = WorkloadStatus(id=f"w{number}", node_id="n1", epoch=number + 1, observed_revision="r")
        node = Node(node_id=f"n{number}")
        await etcd.txn((), [
            Put(STATUSES.key(status.id), status.to_json()), Put(NODES.key(node.node_id), node.to_json())
        ])  # fmt: skip
    await etcd.txn((), [Put("/events/x", b"{}"), Put("/pulses/f/0", b"{}"), Put("/workloads/old", b'{"id":"old"}')])
    lease = await etcd.grant(1000)
    await etcd.txn((), [Put("/suggestions/s", b"{}", lease)])
    return etcd


async def contents(etcd: MemoryEtcd | Etcd) -> dict[str, bytes]:
    """Return everything in an etcd."""
    return {kv.key: kv.value for kv in (await etcd.scan("/"))[0]}


async def test_a_backup_has_every_record_of_one_revision_and_nothing_that_dies_with_its_etcd() -> None:
    """Counts and checksum hold; elections, fences, events, pulses and what has a lease are left out."""
    etcd = await filled()
    out = await backup_of(etcd)
    header = check_backup(out)
    assert (header.revision, header.records) == (etcd.revision - 0, 250 * 2 + 3)
    assert header.counts["/nodes/"] == 250
    text = gzip.decompress(out.getvalue()).decode()
    assert not any(word in text for word in ("/events/", "/pulses/", "/suggestions/", "/shards/0/"))
    assert '"/workloads/old"' in text
    assert read_header(out) == header


def test_every_table_is_either_saved_or_left_out_on_purpose() -> None:
    """A new table is saved without anybody thinking of it."""
    left_out = {table.prefix for table in vars(keys).values() if isinstance(table, keys.Table)} - {
        table.prefix for table in saved_tables()
    }
    assert left_out == {"/persys/scheduler/slots/", "/pulses/", "/events/", "/reconciliation/"}


@pytest.mark.parametrize("spoil", ["cut", "flip", "other", "version", "empty"])
async def test_a_damaged_backup_is_refused_before_anything_is_written(spoil: str) -> None:
    """Cut off, changed, of another format or version: the error says so, and etcd stays empty."""
    data = (await backup_of(await filled(20))).getvalue()
    lines = gzip.decompress(data).splitlines(keepends=True)
    spoilt = {
        "cut": data[:-40],
        "flip": gzip.compress(b"".join(lines).replace(b'epoch\\":3,', b'epoch\\":4,')),
        "other": gzip.compress(b'{"format":"else"}\n'),
        "version": gzip.compress(json.dumps({**json.loads(lines[0]), "version": 9}).encode() + b"\n"),
        "empty": b"",
    }[spoil]
    target = MemoryEtcd()
    with pytest.raises(BadBackup):
        await Restore(target, io.BytesIO(spoilt), now=NOW).run()
    assert await contents(target) == {}


async def test_a_restore_brings_everything_back_with_raised_epochs_and_a_newer_map() -> None:
    """Ids, order of epochs and all other content stay; the fence of an old cycle does not fit any more."""
    source, target = await filled(), MemoryEtcd()
    await Restore(target, await backup_of(source), now=NOW).run()
    before, after = await contents(source), await contents(target)
    assert before.keys() - after.keys() == {"/shards/0/reconcile", "/events/x", "/pulses/f/0", "/suggestions/s"}
    assert after.keys() <= before.keys()
    epochs = [WorkloadStatus.from_json(after[f"/workloads-status/w{n}"]).epoch for n in range(250)]
    assert epochs == sorted(set(epochs))
    assert epochs[0] > source.revision + 1_000_000
    cluster = keys.CLUSTER.model.from_json(after["/cluster"])
    assert cluster.cluster_id == keys.CLUSTER.model.from_json(before["/cluster"]).cluster_id
    assert cluster.epoch_base >= epochs[-1]
    assert keys.SHARD_MAP.model.from_json(after["/shards/map"]).generation > 7
    with pytest.raises(NotEmpty, match="--replace"):
        await Restore(target, await backup_of(source), now=NOW).run()


async def test_a_restore_that_is_broken_off_anywhere_is_gone_on_with() -> None:
    """After each write in turn: nobody can join meanwhile, and the same command completes it to the same contents."""
    file = await backup_of(await filled(120))
    whole = MemoryEtcd()
    await Restore(whole, file, now=NOW).run()
    for survives in range(8):
        target, left = MemoryEtcd(), [survives]

        def mishap(call: str, left: list[int] = left) -> Mishap | None:
            if call == "txn":
                left[0] -= 1
                return Mishap.ANSWER_LOST if left[0] == -1 else Mishap.UNAVAILABLE if left[0] < 0 else None
            return None

        target.mishap = mishap
        try:
            await Restore(target, file, now=NOW).run()
        except StoreUnavailable:
            target.mishap = lambda _call: None
            if "/restore" in await contents(target):
                with pytest.raises(StoreUnavailable, match="restore"):
                    await join_cluster(Store(target))
                await Restore(target, file, now=NOW).run()
            elif "/cluster" not in await contents(target):
                await Restore(target, file, now=NOW).run()
        assert await contents(target) == await contents(whole), survives


async def test_a_restore_replaces_a_cluster_only_when_its_id_is_given() -> None:
    """Without the id nothing is touched; with it all that was there is gone, fences included."""
    file, target = await backup_of(await filled(20)), await filled(130)
    held = keys.CLUSTER.model.from_json((await contents(target))["/cluster"]).cluster_id
    for wrong in ("", "another"):
        with pytest.raises(NotEmpty, match=held):
            await Restore(target, file, now=NOW).run(replace=wrong)
    await Restore(target, file, now=NOW).run(replace=held)
    found = await contents(target)
    assert sum(key.startswith("/nodes/") for key in found) == 20
    assert "/shards/0/reconcile" not in found
    with pytest.raises(WrongCluster):
        await join_cluster(Store(target), held)


async def test_two_restores_at_once_do_not_mix() -> None:
    """The one that did not leave the mark gives way."""
    one, two, target = await backup_of(await filled(20)), await backup_of(await filled(30)), MemoryEtcd()
    first = Restore(target, one, now=NOW)
    mark = await first._begin(check_backup(one), "")
    assert mark.backup == check_backup(one).sha256
    with pytest.raises(NotEmpty, match="another backup"):
        await Restore(target, two, now=NOW).run()
    await Restore(target, two, now=NOW).run(replace=mark.cluster_id)
    with pytest.raises(Conflict):
        await first._put([("/nodes/late", b"{}")])


def test_epochs_of_a_tombstone_and_its_workload_keep_their_order() -> None:
    """Raised by the same shift; 0 stays 0; what is no record stays as it is."""
    owed = Tombstone(node_id="n", workload_id="w", epoch=5, after_epoch=9, confirmed=True)
    records = [("/tombstones/n/w", owed.to_json()), ("/workloads-status/w", WorkloadStatus(id="w", epoch=9).to_json())]
    by = raise_for(records, known=1000)
    changed = Tombstone.from_json(raised(*records[0], by, NOW))
    status = WorkloadStatus.from_json(raised(*records[1], by, NOW))
    assert (changed.epoch, changed.after_epoch, changed.confirmed) == (5 + by.shift, status.epoch, False)
    assert 1000 < changed.epoch < status.epoch <= by.base
    assert raised("/tombstones/n/w", b"no record", by, NOW) == b"no record"
    assert FenceRecord(term=1, slot=1).to_json() == raised("/x", FenceRecord(term=1, slot=1).to_json(), by, NOW)


async def settle(fleet: World) -> None:
    """Run cycles with reports in between."""
    for _ in range(4):
        for node_id in fleet.fakes:
            await fleet.report(node_id)
        await fleet.cycle()
        for node_id, workload_id in [tuple(t.split("/")) for t in fleet.cache.all(keys.TOMBSTONES)]:
            assert node_id
            await fleet.wake(workload_id)


async def test_after_a_restore_of_an_older_backup_everything_converges() -> None:
    """What moved goes back, what was deleted returns, what has not changed is not started again; epochs only grow."""
    old, new = MemoryEtcd(), MemoryEtcd()
    async with world(old) as before:
        await join_cluster(before.store)
        for node_id in ("n-1", "n-2", "n-3"):
            await before.add_node(node_id)
        for name in ("stays", "moves", "goes"):
            await before.apply(spec(name, image="nginx"))
        await settle(before)
        home = {name: before.copies(name) for name in ("stays", "moves", "goes")}
        file = await backup_of(old)
        [node_id] = home["moves"]
        assert home["stays"] != [node_id]
        await before.lose(node_id)
        await before.cycle()
        await before.come_back(node_id)
        await settle(before)
        assert before.copies("moves") != home["moves"]
        await before.delete("goes")
        await before.cycle()
        epochs = {n: c.assignment_epoch for f in before.fakes.values() for n, c in f.copies.items()}
        await Restore(new, file, now=before.clock()).run()
        applied = {n: len(f.applied) for n, f in before.fakes.items()}
        async with world(new, agents=before.agents, clock=before.clock, pulses=before.pulses) as after:
            await join_cluster(after.store)
            after.fakes = before.fakes
            before.fakes = {}
            await settle(after)
            assert {name: after.copies(name) for name in home} == home
            for fake in after.fakes.values():
                for name, copy in fake.copies.items():
                    assert copy.assignment_epoch > epochs.get(name, 0)
            assert (await after.status("stays")).actual == "Running"
            assert applied
            await after.delete("goes")
            await after.cycle()
            await settle(after)
            await after.apply(spec("goes", image="nginx"))
            await settle(after)
            assert len(after.copies("goes")) == 1


COMMAND = ("sleep", "611.25")


async def running() -> set[int]:
    """Return the processes that the test's workload has, once there is one."""
    found: set[int] = set()

    def look() -> bool:
        found.update(p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == list(COMMAND))
        return bool(found)

    await eventually(look)
    return found


async def test_a_real_agent_keeps_its_copy_through_wipe_and_restore(tmp_path: pathlib.Path) -> None:
    """A real etcd is wiped and restored: the same process goes on, under a newer epoch."""
    server = servers.etcd(tmp_path / "etcd").start()
    agent = AgentProcess(tmp_path / "agent", ["127.0.0.1:1"], node_id="n-1").start()
    pids: set[int] = set()
    try:
        etcd = Etcd([server.address])
        async with world(etcd) as before:
            await join_cluster(before.store)
            node = Node(node_id="n-1", agent_endpoint=f"127.0.0.1:{agent.port}", reports_epochs=True, total_cpu=4.0,
                        total_memory=8000, status="Ready")  # fmt: skip
            await register(before.store, node, now=before.clock())
            await before.apply(spec("web", image="host", command_list=COMMAND))
            await before.cycle()
            pids = await running()
            assert len(pids) == 1
            file = await backup_of(etcd)
            epoch = (await before.status()).epoch
            assert epoch
        await etcd.close()
        server.kill()
        shutil.rmtree(server.folder / "data")
        server.start()
        fresh = Etcd([server.address])
        await Restore(fresh, file, now=NOW).run()
        async with world(fresh, clock=before.clock) as after:
            await join_cluster(after.store)
            assert (await after.status()).epoch > epoch
            await after.cycle()
            again = await after.agents.status(node, "web")
            status = await after.status()
            assert (again.state, again.epoch) == ("Running", status.epoch)
            assert await after.exists(SPECS, "web")
            assert await running() == pids
            await after.agents.delete(node, "web", epoch=status.epoch)
        await fresh.close()
    finally:
        agent.kill()
        server.stop()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
