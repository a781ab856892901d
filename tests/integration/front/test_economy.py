"""Work is proportional to change (design rule 5): what heartbeats cost at etcd, counted call by call (rows F6, F44)."""

from __future__ import annotations

from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import DRIFTS, STATUSES
from scheduler.store.kv import EtcdApi
from tests.support.counting import CountingEtcd
from tests.support.fronts import Heartbeat, Rig, container, front_on, status


async def roster(rig: Rig, *workload_ids: str) -> list[pb.WorkloadStatus]:
    """Return what an agent says that runs all of these, as it was told to."""
    found = []
    for workload_id in workload_ids:
        known = (await rig.parts.store.get(STATUSES, workload_id)).record
        assert known
        revision = (await rig.workload(workload_id)).revision_id
        found.append(status(workload_id, "Running", epoch=known.epoch, revision=revision, message="up"))
    return found


async def beats(rig: Rig, statuses: list[pb.WorkloadStatus], count: int) -> None:
    """Send so many full heartbeats, with ever new use of the node and of each workload."""
    for sequence in range(count):
        for one in statuses:
            one.usage.cpu_percent = sequence
        usage = pb.NodeUsage(cpu_used_millicores=sequence)
        request = Heartbeat(node_id="n1", workload_statuses=statuses, usage=usage, sequence=sequence, full=True)
        assert (await rig.control.Heartbeat(request)).acknowledged
        await rig.settled()


async def test_F44_heartbeats_without_news_cost_nothing_whatever_there_is(etcd: EtcdApi) -> None:
    """Copies of a set, a node that is being drained, a copy that nobody knows: ten reports, no call."""
    counting = CountingEtcd(etcd)
    async with front_on(counting) as rig:
        await rig.register(cpu_total_millicores=100_000, memory_total_mb=100_000)
        spec = container()
        spec.metadata["fleetbeat.replicas"] = "3"
        assert (await rig.apply("set", spec=spec)).success
        for number in range(20):
            await rig.apply(f"w{number}")
        ids = [w for w in rig.front.reader.index.workload_ids if (await rig.workload(w)).assigned_node_id]
        assert len(ids) >= 21
        statuses = [*await roster(rig, *ids), status("stranger", "Running", epoch=0)]
        await beats(rig, statuses, 2)
        await rig.control.DrainNode(pb.DrainNodeRequest(node_id="n1", reason="maintenance"))
        await beats(rig, statuses, 2)
        assert [key for key in await rig.stored() if key.startswith(DRIFTS.prefix)]
        await rig.told()
        counting.calls.clear()
        await beats(rig, statuses, 10)
        assert counting.of_work == []


async def test_F6_news_of_one_workload_costs_one_write(etcd: EtcdApi) -> None:
    """Among twenty that say the same as ever: one transaction, about this one alone."""
    counting = CountingEtcd(etcd)
    async with front_on(counting) as rig:
        await rig.register(cpu_total_millicores=100_000, memory_total_mb=100_000)
        for number in range(20):
            await rig.apply(f"w{number}")
        statuses = await roster(rig, *(f"w{number}" for number in range(20)))
        await beats(rig, statuses, 2)
        await rig.told()
        counting.calls.clear()
        statuses[7].state = "Failed"
        await beats(rig, statuses, 3)
        writes = [keys for name, keys in counting.of_work if name == "txn"]
        assert writes == [(STATUSES.key("w7"),)]
        assert {name for name, _ in counting.of_work} <= {"txn", "get_many"}
