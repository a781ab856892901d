"""The takeover of a cluster of the reference scheduler: nothing that runs is restarted, nothing runs twice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler.domain.legacy import in_our_form
from scheduler.domain.policy import is_exclusive
from scheduler.domain.shard import ClusterRecord
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.pb import agent_pb2
from scheduler.store import takeover
from scheduler.store.etcd import Etcd
from scheduler.store.keys import (
    ATTACHMENTS,
    CLUSTER,
    CLUSTER_ID,
    DRIFTS,
    LEDGERS,
    LEGACY,
    SPECS,
    STATUSES,
    TOMBSTONES,
    VOLUMES,
)
from scheduler.store.kv import EtcdApi, Put
from scheduler.store.memory import MemoryEtcd
from scheduler.store.replicas import write_copies
from scheduler.store.workloads import retry, set_desired
from tests.support.counting import CountingEtcd
from tests.support.fake_agent import RUNNING, FakeAgent
from tests.support.legacy import REVISION, spec_json, status_json, unassigned, whole_json
from tests.support.loop_world import World, world
from tests.support.placement import put
from tests.support.servers import Server

FORMS = ["whole", "two keys"]


@pytest.fixture(params=["memory", "etcd"])
async def etcd(request: pytest.FixtureRequest, etcd_prefix: str) -> AsyncIterator[EtcdApi]:
    """An empty etcd: one in memory, then a real one."""
    if request.param == "memory":
        yield MemoryEtcd()
        return
    server: Server = request.getfixturevalue("etcd_server")
    client = Etcd([server.address], prefix=etcd_prefix)
    yield client
    await client.close()


async def store(fleet: World, form: str = "whole", workload_id: str = "web", **fields: Any) -> None:
    """Store a workload as the reference scheduler did."""
    puts = [Put(f"/workloads/{workload_id}", whole_json(workload_id, **fields))]
    if form == "two keys":
        puts = [
            Put(f"/workloads-spec/{workload_id}", spec_json(workload_id, **fields)),
            Put(f"/workloads-status/{workload_id}", status_json(workload_id, **fields)),
        ]
    result = await fleet.etcd.txn((), puts)
    await fleet.cache.wait_revision(result.revision, 5)


async def with_copy(fleet: World, node_id: str = "n-1", workload_id: str = "web") -> FakeAgent:
    """A node of the reference system's that runs the workload."""
    fake = fleet.fakes.get(node_id) or await fleet.add_node(node_id, knows_epochs=False)
    fake.copies[workload_id] = agent_pb2.WorkloadStatus(
        id=workload_id, revision_id=REVISION, actual_state=RUNNING, desired_state=agent_pb2.DESIRED_STATE_RUNNING
    )
    return fake


@pytest.mark.parametrize("form", FORMS)
async def test_F86_what_runs_is_taken_over_without_a_restart(etcd: EtcdApi, form: str) -> None:
    """It is committed on its node, in our form, and its agent is told nothing; then a cycle has nothing to do."""
    async with world(etcd) as fleet:
        fake = await with_copy(fleet)
        await store(fleet, form)
        assert (await fleet.cycle())["TakeOver"] == 1
        await fleet.cycle()
        assert not fake.applied
        assert not fake.removals
        spec, status = (await fleet.store.get(SPECS, "web")).record, await fleet.status()
        assert spec
        assert (spec.revision_id, spec.generation) == (REVISION, 1)
        ledger = (await fleet.store.get(LEDGERS, "n-1")).record
        assert ledger
        held = ledger.commitments["web"]
        assert (held.cpu_millicores, held.memory_mb, held.ports) == (500, 256, ("8080/tcp",))
        assert held.epoch == status.epoch > 0
        assert not await fleet.exists(LEGACY, "web")
        assert await fleet.cycle() == {"NoAction": 1}


@pytest.mark.parametrize("form", FORMS)
async def test_F86_what_has_no_node_is_placed(form: str) -> None:
    """Like any other that waits."""
    async with world() as fleet:
        fake = await fleet.add_node("n-1")
        await store(fleet, form, **unassigned())
        await fleet.cycle()
        await fleet.cycle()
        assert fake.running() == ["web"]


async def test_F86_the_takeover_is_bounded_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many a cycle, until all are ours."""
    monkeypatch.setattr("scheduler.loops.takeover.MAX_TAKEN", 3)
    async with world() as fleet:
        for number in range(7):
            await with_copy(fleet, workload_id=f"w{number}")
            await store(fleet, workload_id=f"w{number}", ports=None)
        assert [(await fleet.cycle()).get("TakeOver", 0) for _ in range(4)] == [3, 3, 1, 0]
        ledger = (await fleet.store.get(LEDGERS, "n-1")).record
        assert ledger
        assert len(ledger.commitments) == 7


async def test_F86_a_bad_record_stays_is_told_of_once_and_stops_no_other() -> None:
    """It is tried again when it changes, and then it is taken over."""
    async with world() as fleet:
        await with_copy(fleet, workload_id="bad")
        await with_copy(fleet, workload_id="web")
        await store(fleet, workload_id="bad", type="lambda", ports=None)
        await store(fleet)
        for _ in range(3):
            await fleet.cycle()
        assert await fleet.exists(LEGACY, "bad")
        assert await fleet.exists(SPECS, "web")
        assert fleet.results.count(("LeaveLegacy", False)) == 1
        await store(fleet, workload_id="bad", ports=None)
        assert (await fleet.cycle())["TakeOver"] == 1


async def test_F86_ours_stands_and_an_older_whole_record_goes() -> None:
    """What etcd's revisions do not prove to be older is left, and told of."""
    async with world() as fleet:
        await fleet.add_node("n-1")
        old, new = WorkloadSpec(id="old", type="container"), WorkloadSpec(id="new", type="container")
        await put(fleet.store, SPECS, "new", new)
        await store(fleet, workload_id="new")
        await store(fleet, workload_id="old")
        await put(fleet.store, SPECS, "old", old)
        await fleet.settle()
        await fleet.cycle()
        assert not await fleet.exists(LEGACY, "old")
        assert await fleet.exists(LEGACY, "new")
        assert fleet.results.count(("LeaveLegacy", False)) == 1


@pytest.mark.parametrize("lost", [False, True])
async def test_F86_an_exclusive_workload_stays_on_its_node_and_runs_once(lost: bool) -> None:
    """A machine whose node is silent is committed there; only the rules of fencing move it."""
    async with world() as fleet:
        await with_copy(fleet)
        other = await fleet.add_node("n-2")
        if lost:
            await fleet.lose("n-1")
        machine = {"vm": {"name": "web", "vcpus": 1, "memoryMb": 64}, "type": "vm", "ports": None, "metadata": {}}
        await store(fleet, **machine)
        await fleet.cycle()
        await fleet.cycle()
        assert (await fleet.status()).node_id == "n-1"
        assert not other.applied
        ledger = (await fleet.store.get(LEDGERS, "n-1")).record
        assert ledger
        assert "web" in ledger.commitments


@pytest.mark.parametrize("known", [False, True])
async def test_F86_a_volume_of_one_writer_stays_attached_where_it_is(known: bool) -> None:
    """Whether the reference scheduler has left a record of it or not: nobody else gets it meanwhile."""
    volume = {"name": "data", "driver": "nfs", "sizeGb": 1, "accessMode": "ReadWriteOnce", "mountPath": "/data"}
    record = {
        **volume, "id": "nfs:data", "phase": "Attached", "workloadRefs": ["web"], "attachedNodes": ["n-1"],
        "retainPolicy": "Delete", "lastError": "", "createdAt": "2025-11-02T10:00:00Z",
    }  # fmt: skip
    async with world() as fleet:
        await with_copy(fleet)
        if known:
            await fleet.etcd.txn((), [Put("/volumes/nfs:data", json.dumps(record).encode())])
        await store(fleet, managedVolumes=[volume])
        await fleet.cycle()
        assert (await fleet.status()).attached == ("nfs:data",)
        stored = (await fleet.store.get(VOLUMES, "nfs:data")).record
        assert stored
        assert list(stored.nodes_of("web")) == ["n-1"]
        assert await fleet.exists(ATTACHMENTS, "n-1/web/nfs:data")
        spec = (await fleet.store.get(SPECS, "web")).record
        assert spec
        assert is_exclusive(spec)


async def test_F86_a_node_without_a_record_owes_the_end_of_its_copy() -> None:
    """The workload runs elsewhere; should the node come back, its copy goes."""
    async with world() as fleet:
        fake = await fleet.add_node("n-2")
        await store(fleet)
        await fleet.cycle()
        await fleet.cycle()
        assert fake.running() == ["web"]
        assert await fleet.exists(TOMBSTONES, "n-1/web")
        lost = await with_copy(fleet)
        await fleet.cycle()
        assert lost.running() == []


async def test_F86_drift_does_not_take_it_for_unknown() -> None:
    """Also a record that cannot be read speaks of its copy."""
    rules: dict[str, Any] = {"drift_orphan_policy": "delete", "drift_sightings": 1, "drift_grace_seconds": 0}
    async with world(**rules) as fleet:
        await put(fleet.store, CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="ours"))
        fake = await with_copy(fleet)
        await with_copy(fleet, workload_id="bad")
        await with_copy(fleet, workload_id="stranger")
        await fleet.apply(WorkloadSpec(id="mine", type="container", image="nginx:1"))
        await store(fleet)
        await store(fleet, workload_id="bad", type="lambda")
        for _ in range(5):
            await fleet.cycle("detect_drift")
            fleet.clock.forward(300)
        assert not await fleet.exists(DRIFTS, "n-1/web/orphan_on_agent")
        assert sorted(fake.copies) == ["bad", "web"], "only what no record speaks of is removed"


async def test_F86_a_record_that_hits_a_defect_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left, told of and counted; what comes after it in the order is taken over in the same cycle."""

    def defective(spec: WorkloadSpec, status: WorkloadStatus | None) -> tuple[WorkloadSpec, WorkloadStatus]:
        if spec.id == "bad":
            raise OverflowError("int too large to convert to float")
        return in_our_form(spec, status)

    monkeypatch.setattr(takeover, "in_our_form", defective)
    async with world() as fleet:
        await with_copy(fleet)
        await store(fleet, "two keys", workload_id="bad")
        await store(fleet, "two keys")
        await fleet.cycle()
        assert (await fleet.status()).epoch > 0
        assert fleet.results.count(("LeaveLegacy", False)) == 1


async def test_F86_F87_a_record_under_the_id_of_a_copy_costs_no_cycle_anything() -> None:
    """While it cannot be read the copy is not created, and nobody asks etcd about it in vain."""
    counting = CountingEtcd(MemoryEtcd())
    async with world(counting) as fleet:
        await fleet.add_node("n-1")
        await fleet.apply(WorkloadSpec(id="db", type="container", image="nginx:1"))
        await store(fleet, workload_id="db.2", type="lambda")
        known = (await fleet.store.get(SPECS, "db")).record
        assert known
        await put(fleet.store, SPECS, "db", known.replace(replicas=2, generation=2))
        for _ in range(3):
            await fleet.cycle()
        assert not await fleet.exists(SPECS, "db.2")
        counting.calls.clear()
        await fleet.cycle()
        assert not counting.calls, counting.calls


async def test_F86_a_wake_up_takes_it_over_at_once() -> None:
    """Whatever has called for the look."""
    async with world() as fleet:
        fake = await with_copy(fleet)
        await store(fleet)
        assert (await fleet.wake("web")).startswith("TakeOver")
        assert not fake.applied


async def test_F86_its_epoch_is_below_that_of_what_comes_next() -> None:
    """So agents that know epochs refuse nothing that is new, and nothing old is taken for new."""
    async with world() as fleet:
        await with_copy(fleet)
        await store(fleet)
        await fleet.cycle()
        taken = (await fleet.status()).epoch
        await fleet.delete("web")
        await fleet.cycle()
        assert not await fleet.exists(STATUSES, "web")
        await fleet.apply(WorkloadSpec(id="web", type="container", image="nginx:1"))
        await fleet.cycle()
        assert (await fleet.status()).epoch > taken


@pytest.mark.parametrize("form", FORMS)
async def test_F86_a_users_write_takes_it_over_first(form: str) -> None:
    """Stop, retry and delete before any cycle: each finds a workload of ours."""
    async with world() as fleet:
        fake = await with_copy(fleet)
        await store(fleet, form)
        await set_desired(fleet.store, "web", "Stopped", now=fleet.clock())
        assert not await fleet.exists(LEGACY, "web")
        await fleet.cycle()
        assert fake.running() == []
        await retry(fleet.store, "web", now=fleet.clock())
        await fleet.delete("web")
        await fleet.cycle()
        assert fake.copies == {}
        assert not await fleet.exists(SPECS, "web")


async def test_F86_a_copy_does_not_take_the_id_of_a_workload_that_is_not_ours_yet() -> None:
    """Which of the two is looked at first does not matter."""
    async with world() as fleet:
        fake = await with_copy(fleet, workload_id="web.2")
        await store(fleet, workload_id="web.2")
        await fleet.apply(WorkloadSpec(id="web", type="container", image="nginx:1", replicas=2))
        shards = await fleet.guards()
        assert not await write_copies(fleet.store, "web", ["web.2"], now=fleet.clock(), guards=shards)
        await fleet.cycle()
        spec = (await fleet.store.get(SPECS, "web.2")).record
        assert spec
        assert (spec.replica_of, spec.revision_id) == ("", REVISION)
        assert "web.2" not in {order.id for order in fake.applied}


async def test_F86_without_old_records_an_idle_cycle_reads_and_writes_nothing() -> None:
    """After the takeover as well, and with a record that cannot be taken over."""
    counting = CountingEtcd(MemoryEtcd())
    async with world(counting) as fleet:
        await fleet.add_node("n-1")
        await store(fleet, workload_id="bad", type="lambda")
        await store(fleet)
        for _ in range(3):
            await fleet.cycle()
        assert await fleet.exists(SPECS, "web")
        counting.calls.clear()
        await fleet.cycle()
        assert not counting.calls, counting.calls
