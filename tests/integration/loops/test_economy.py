"""Work is proportional to change (design rule 5): what idle cycles cost, counted at etcd and at the agents."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import grpc
import pytest

from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Drain, DrainJob
from scheduler.domain.record import Record
from scheduler.domain.shard import LOOPS, ClusterRecord
from scheduler.domain.workload import ManagedVolume
from scheduler.pb import agent_pb2
from scheduler.store import intent
from scheduler.store.etcd import Etcd
from scheduler.store.intent import Wish
from scheduler.store.keys import ASSIGNMENTS, ATTACHMENTS, CLUSTER, CLUSTER_ID, DRIFTS, LEDGERS, NODES, SPECS, STATUSES
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd
from tests.support.counting import CountingEtcd
from tests.support.fake_agent import FAILED, RUNNING
from tests.support.loop_world import World, world
from tests.support.placement import put, records, spec
from tests.support.servers import Server

NODES_COUNT = 10
WORKLOADS = 1000
_BATCH = 100


async def multiply(fleet: World, count: int) -> None:
    """Make so many workloads of the one that runs, spread over all nodes: records, ledgers and copies."""
    first = await fleet.status()
    wanted, assigned = (await fleet.store.get(SPECS, "web")).record, await fleet.assignment()
    held = (await fleet.store.get(LEDGERS, first.node_id)).record
    assert wanted
    assert assigned
    assert held
    copy = fleet.fakes[first.node_id].copies["web"]
    nodes = sorted(fleet.fakes)
    ledgers: dict[str, dict[str, object]] = {n: {} for n in nodes}
    ledgers[first.node_id]["web"] = held.commitments["web"]
    found: dict[str, Record] = {}
    for number in range(1, count):
        w, n = f"w{number}", nodes[number % len(nodes)]
        found[SPECS.key(w)] = wanted.replace(id=w)
        found[STATUSES.key(w)] = first.replace(id=w, node_id=n, assigned_node=n)
        found[ASSIGNMENTS.key(w)] = assigned.replace(workload_id=w, node_id=n)
        ledgers[n][w] = held.commitments["web"]
        twin = fleet.fakes[n].copies[w] = agent_pb2.WorkloadStatus()
        twin.CopyFrom(copy)
        twin.id = w
    found |= {LEDGERS.key(n): Ledger(node_id=n, commitments=held) for n, held in ledgers.items()}  # type: ignore[arg-type]
    await put_all(fleet, found)


async def put_all(fleet: World, found: Mapping[str, Record]) -> None:
    """Store records in a few transactions."""
    puts = [Put(key, record.to_json()) for key, record in found.items()]
    for begin in range(0, len(puts), _BATCH):
        result = await fleet.etcd.txn((), puts[begin : begin + _BATCH])
    await fleet.cache.wait_revision(result.revision, 10)


@asynccontextmanager
async def thousand(server: Server, prefix: str, *, knows_epochs: bool) -> AsyncIterator[tuple[World, CountingEtcd]]:
    """A thousand workloads that run on ten nodes, on a real etcd whose calls are counted."""
    etcd = CountingEtcd(Etcd([server.address], prefix=prefix))
    async with world(etcd) as fleet:
        await put(fleet.store, CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="ours"))
        for number in range(NODES_COUNT):
            await fleet.add_node(f"n-{number}", knows_epochs=knows_epochs)
        await fleet.apply(spec(cpu=0.001, memory=1))
        await fleet.cycle()
        if knows_epochs:
            await fleet.report((await fleet.status()).node_id)
        await multiply(fleet, WORKLOADS)
        for fake in fleet.fakes.values():
            fake.calls.clear()
        etcd.calls.clear()
        yield fleet, etcd
    await etcd.close()


async def revision_of(etcd: CountingEtcd) -> int:
    """Ask etcd itself how many writes there were."""
    _, revision = await etcd.inner.get("/nobody")
    return revision


async def test_F44_a_thousand_idle_workloads_cost_nothing_at_all(etcd_server: Server, etcd_prefix: str) -> None:
    """Every loop, three times over: no read, no write, no call to an agent that reports epochs."""
    async with thousand(etcd_server, etcd_prefix, knows_epochs=True) as (fleet, etcd):
        revision = await revision_of(etcd)
        for _ in range(3):
            assert await fleet.cycle() == {"NoAction": WORKLOADS}
            for loop in LOOPS:
                await fleet.cycle(loop)
        assert etcd.calls == []
        assert fleet.agent_calls == 0
        assert await revision_of(etcd) == revision


async def test_F44_a_thousand_workloads_of_other_agents_cost_one_list_a_node(
    etcd_server: Server, etcd_prefix: str
) -> None:
    """In each cycle that looks at them; no status call, and still nothing at etcd."""
    async with thousand(etcd_server, etcd_prefix, knows_epochs=False) as (fleet, etcd):
        revision = await revision_of(etcd)
        for number, loop in enumerate(("reconcile", "monitor_workloads", "detect_drift"), 1):
            await fleet.cycle(loop)
            assert [dict(fake.calls) for fake in fleet.fakes.values()] == [{"ListWorkloads": number}] * NODES_COUNT
        await fleet.cycle("monitor_nodes")
        assert fleet.agent_calls == 3 * NODES_COUNT
        assert etcd.calls == []
        assert await revision_of(etcd) == revision


async def test_F44_one_change_among_a_thousand_costs_what_one_costs(etcd_server: Server, etcd_prefix: str) -> None:
    """One copy fails: a handful of calls, all about it, and one order."""
    async with thousand(etcd_server, etcd_prefix, knows_epochs=True) as (fleet, etcd):
        node_id = (await fleet.status("w7")).node_id
        etcd.calls.clear()
        fleet.fakes[node_id].crash("w7", FAILED)
        (report,) = [r for r in await fleet.agents.list(fleet.fakes[node_id].node()) if r.workload_id == "w7"]
        await fleet.hear(node_id, report)
        await fleet.cycle()
        assert fleet.fakes[node_id].calls["ApplyWorkload"] == 1
        assert fleet.agent_calls == 2, "the list of this test, and the order"
        touched = {key for _, keys in etcd.calls for key in keys}
        assert {key for key in touched if "/workloads-" in key} <= {SPECS.key("w7"), STATUSES.key("w7")}
        assert len(etcd.calls) <= 12


async def with_everything() -> AsyncIterator[World]:
    """A cluster that has one of everything: a set of copies, a drained node, volumes, other agents, open drift."""
    async with world(CountingEtcd(MemoryEtcd())) as fleet:
        await put(fleet.store, CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="ours"))
        for number in range(3):
            await fleet.add_node(f"n-{number}", supported_storage_drivers=("local", "nfs"))
        await fleet.apply(spec("set", replicas=4))
        volumes = (ManagedVolume(name="data", driver="nfs", access_mode="ReadWriteOnce"), ManagedVolume(name="here"))
        await fleet.apply(spec("disk", managed_volumes=volumes))
        await fleet.apply(spec("huge", cpu=500))
        await fleet.apply(spec("off", desired_state="Stopped"))
        await calm(fleet)
        await intent.drain(fleet.store, "n-0", Wish(), DrainJob(), total=0, now=fleet.clock())
        for _ in range(12):
            await calm(fleet)
        await fleet.add_node("n-9", knows_epochs=False)
        await fleet.apply(spec("other", metadata={"fleetbeat.node": "n-9"}))
        await fleet.cycle()
        fleet.fakes["n-9"].copies["stranger"] = agent_pb2.WorkloadStatus(id="stranger", actual_state=RUNNING)
        for _ in range(4):
            await fleet.cycle("detect_drift")
        await calm(fleet)
        yield fleet
        await fleet.etcd.close()


async def calm(fleet: World) -> None:
    """Run a cycle and have all agents reported."""
    await fleet.cycle()
    for node_id, fake in fleet.fakes.items():
        if fake.knows_epochs:
            await fleet.report(node_id)


@pytest.fixture
async def everything() -> AsyncIterator[World]:
    """Such a cluster."""
    async for fleet in with_everything():
        yield fleet


async def test_F44_a_cluster_with_one_of_everything_costs_nothing_while_nothing_happens(everything: World) -> None:
    """Copies, volumes, a drained node, a pending and a stopped workload, open drift: only the other agent is listed."""
    fleet = everything
    assert isinstance(fleet.etcd, CountingEtcd)
    drained = (await fleet.store.get(NODES, "n-0")).record
    assert drained
    assert drained.drain == Drain.DRAINED
    assert await records(fleet.etcd, DRIFTS)
    assert await records(fleet.etcd, ATTACHMENTS)
    assert len([w for fake in fleet.fakes.values() for w in fake.running() if w.startswith("set")]) == 4
    await fleet.settle()
    for fake in fleet.fakes.values():
        fake.calls.clear()
    events = len(fleet.events)
    before = len(fleet.etcd.calls)
    for loop in LOOPS:
        await fleet.cycle(loop)
    assert fleet.etcd.calls[before:] == []
    calls = Counter({node_id: fake.calls.total() for node_id, fake in fleet.fakes.items()})
    assert +calls == {"n-9": 3}
    assert fleet.fakes["n-9"].calls == {"ListWorkloads": 3}
    assert len(fleet.events) == events


@pytest.fixture
async def others() -> AsyncIterator[World]:
    """One node with an agent that reports no epochs, and twenty workloads on it."""
    async with world() as fleet:
        await fleet.add_node("n-1", knows_epochs=False)
        for number in range(20):
            await fleet.apply(spec(f"w{number}", cpu=0.01, memory=1))
        await fleet.cycle()
        await fleet.cycle()
        fleet.fakes["n-1"].calls.clear()
        fleet.fakes["n-1"].in_flight_max = 0
        yield fleet


async def test_F45_where_the_list_is_refused_each_workload_is_asked_for_once(others: World) -> None:
    """With as many calls at once as a node may have; what has changed is acted on, what has not costs no write."""
    fake = others.fakes["n-1"]
    fake.refuse_only = {"ListWorkloads": (grpc.StatusCode.INTERNAL, "too many to list")}
    assert isinstance(others.etcd, MemoryEtcd)
    before = (others.etcd.revision, others.etcd.calls)
    assert await others.cycle() == {"NoAction": 20}
    assert fake.calls == {"ListWorkloads": 1, "GetWorkloadStatus": 20}
    assert fake.in_flight_max <= others.ctx.settings.calls_per_node
    assert (others.etcd.revision, others.etcd.calls) == before
    fake.crash("w3")
    del fake.copies["w4"]
    assert (await others.cycle())["ReapplyRunning"] == 2
    assert len(fake.running()) == 20


async def test_F45_an_agent_that_does_not_answer_is_asked_no_further(others: World) -> None:
    """The breaker holds back the rest: a dead agent costs one call, not one a workload."""
    fake = others.fakes["n-1"]
    fake.refuse = (grpc.StatusCode.UNAVAILABLE, "gone")
    assert await others.cycle() == {"NoAction": 20}
    assert fake.calls == {"ListWorkloads": 1}


async def test_F45_an_agent_that_dies_while_it_is_asked_costs_one_call_a_slot(others: World) -> None:
    """It refused the list, and does not answer any more."""
    fake = others.fakes["n-1"]
    fake.refuse_only = {
        "ListWorkloads": (grpc.StatusCode.INTERNAL, "too many to list"),
        "GetWorkloadStatus": (grpc.StatusCode.UNAVAILABLE, "gone"),
    }
    assert await others.cycle() == {"NoAction": 20}
    assert 1 <= fake.calls["GetWorkloadStatus"] <= others.ctx.settings.calls_per_node
    assert {(await others.status(f"w{number}")).actual for number in range(20)} == {"Running"}
