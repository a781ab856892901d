"""The gauges that the reference system lacks: each follows a real cause, and goes when the cause goes (rows F89)."""

from __future__ import annotations

import asyncio
from datetime import datetime

from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from scheduler.agents.client import Agents
from scheduler.domain.drift import DriftRecord, DriftType, drift_id
from scheduler.domain.node import Health, Node
from scheduler.domain.shard import Cycle
from scheduler.domain.workload import Desired
from scheduler.front.parts import utc_now
from scheduler.pb import control_pb2 as pb
from scheduler.queues.admission import Admission, Verdict
from scheduler.store.keys import DRIFTS, LEADER_PREFIX, NODES, STATUSES
from scheduler.store.kv import Delete, EtcdApi
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.fake_agent import FakeAgent
from tests.support.fronts import Rig, container, eventually, front_on

NAMESPACE = "persys_scheduler_"


def shown(rig: Rig, name: str) -> dict[str, float]:
    """Scrape one metric; return its values by the values of its labels, in the order of the labels' names."""
    families = text_string_to_metric_families(rig.parts.metrics.exposition().decode())
    return {
        ",".join(sample.labels[label] for label in sorted(sample.labels)): sample.value
        for family in families
        for sample in family.samples
        if sample.name == NAMESPACE + name
    }


async def refresh(rig: Rig) -> None:
    """Have the front read anew what it reads every few seconds."""
    await rig.front._control_plane.refresh()


async def test_F89_the_mode_is_told_and_a_degraded_front_is_not_normal() -> None:
    """One mode is 1 at any time, the others are 0."""
    etcd = MemoryEtcd()
    async with front_on(etcd, store_probe_interval_seconds=0.05, store_patience_seconds=0.2) as rig:
        await eventually(lambda: shown(rig, "mode") == {"normal": 1, "degraded": 0, "recovery": 0})
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE
        await eventually(lambda: shown(rig, "mode")["normal"] == 0)
        assert sum(shown(rig, "mode").values()) == 1
        etcd.mishap = lambda _call: None
        await eventually(lambda: shown(rig, "mode")["normal"] == 1)


async def test_F89_pending_workloads_are_told_by_why_and_go_when_they_are_placed() -> None:
    """No node at all, then a node that is too small, then one that fits; with the age of the oldest."""
    async with front_on() as rig:
        assert shown(rig, "workloads_pending") == {}
        assert shown(rig, "pending_age_seconds_max") == {"": 0.0}
        await rig.apply("web")
        assert shown(rig, "workloads_pending") == {"no_nodes": 1}
        assert shown(rig, "pending_age_seconds_max")[""] > 0
        await rig.register("n1", cpu_total_millicores=100)
        big = container()
        big.resources.memory_mb = 65_536
        await rig.apply("big", spec=big)
        assert shown(rig, "workloads_pending") == {"no_nodes": 1, "memory_insufficient": 1}
        await rig.apply("web")
        assert shown(rig, "workloads_pending") == {"memory_insufficient": 1}
        await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="big"))
        assert shown(rig, "workloads_pending") == {}
        assert shown(rig, "pending_age_seconds_max") == {"": 0.0}


async def test_F89_a_workload_without_a_node_that_is_to_stand_still_is_not_pending() -> None:
    """Nothing waits for a node then."""
    async with front_on() as rig:
        await rig.apply(desired_state=Desired.STOPPED)
        assert shown(rig, "workloads_pending") == {}


async def test_F89_attempts_to_place_are_counted_with_their_rejections() -> None:
    """By result, and by the first filter that each node failed; once each."""
    async with front_on() as rig:
        await rig.register("n1")
        await rig.apply("web")
        big = container()
        big.resources.cpu_millicores = 64_000
        await rig.apply("big", spec=big)
        assert shown(rig, "placements_total") == {"placed": 1, "no_fit": 1}
        assert shown(rig, "placement_rejections_total") == {"cpu_insufficient": 1}
        assert shown(rig, "placement_duration_seconds_count") == {"": 2}


async def test_F89_workloads_that_wait_for_another_try_are_counted() -> None:
    """Until they have succeeded."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        assert shown(rig, "workloads_retrying") == {"": 0}
        status = (await rig.parts.store.get(STATUSES, "web")).record
        assert status
        await rig.put(STATUSES, "web", status.replace(retry=status.retry.replace(attempts=2)))
        assert shown(rig, "workloads_retrying") == {"": 1}
        await rig.put(STATUSES, "web", status)
        assert shown(rig, "workloads_retrying") == {"": 0}


async def test_F89_leadership_is_told_as_long_as_etcd_tells(etcd: EtcdApi) -> None:
    """Nobody, then a beat with its term, then nobody again; absent while etcd is away."""
    async with front_on(etcd) as rig:
        await refresh(rig)
        assert shown(rig, "leader_present") == {"": 0}
        term = await rig.put_key(f"{LEADER_PREFIX}1", b"beat-1")
        await refresh(rig)
        assert (shown(rig, "leader_present"), shown(rig, "leader_term")) == ({"": 1}, {"": term})
        await etcd.txn((), [Delete(f"{LEADER_PREFIX}1")])
        await refresh(rig)
        assert shown(rig, "leader_present") == {"": 0}
        if isinstance(etcd, MemoryEtcd):
            etcd.mishap = lambda _call: Mishap.UNAVAILABLE
            await refresh(rig)
            assert shown(rig, "leader_present") == {}
            etcd.mishap = lambda _call: None


async def test_F89_the_age_of_cycles_is_told_by_loop_and_shard(redis: Redis) -> None:
    """From the first cycle that was finished on; a cycle that only began does not count."""
    cycle = Cycle(1, 7, "reconcile", 0, 1)
    async with front_on(redis=redis) as rig:
        await refresh(rig)
        assert shown(rig, "cycle_age_seconds") == {}
        admission = Admission(redis)
        assert await admission.admit_cycle(cycle, 1, 30) is Verdict.OK
        await refresh(rig)
        assert shown(rig, "cycle_age_seconds") == {}
        await admission.admit_chunk(cycle, 0)
        assert await admission.finish_chunk(cycle, failed=False) is Verdict.DONE
        await refresh(rig)
        assert 0 <= shown(rig, "cycle_age_seconds")["reconcile,0"] < 60
        assert shown(rig, "cycle_period_seconds")["reconcile"] == rig.parts.settings.reconcile_interval_seconds
        await redis.flushdb()
        await refresh(rig)
        assert shown(rig, "cycle_age_seconds") == {}


async def test_F89_the_queues_are_told_by_shard_while_the_broker_tells() -> None:
    """What the broker does not say is left out, not shown as 0."""
    lengths = [3, 0]

    def backlog(shards: object) -> list[int]:
        assert list(shards) == [0, 1]  # type: ignore[call-overload]
        if not lengths:
            raise ConnectionError("gone")
        return lengths

    async with front_on(backlog=backlog, shard_count=2) as rig:
        await refresh(rig)
        assert shown(rig, "shard_queue_messages") == {"0": 3, "1": 0}
        lengths.clear()
        await refresh(rig)
        assert shown(rig, "shard_queue_messages") == {}


async def test_F89_shards_tell_how_much_they_drive() -> None:
    """Nodes and workloads; what is gone is not counted any more."""
    async with front_on() as rig:
        assert (shown(rig, "shard_nodes"), shown(rig, "shard_workloads")) == ({"0": 0}, {"0": 0})
        await rig.register()
        await rig.apply()
        assert (shown(rig, "shard_nodes"), shown(rig, "shard_workloads")) == ({"0": 1}, {"0": 1})
        found = await rig.stored()
        await rig.parts.etcd.txn((), [Delete(key) for key in found if "/workloads-" in key])
        await eventually(lambda: shown(rig, "shard_workloads") == {"0": 0})


async def put_lost(rig: Rig, node_id: str, at: datetime | None) -> None:
    """Store a node that has been silent since then; None: it is heard."""
    lost = {"status": Health.NOT_READY, "status_updated_at": at} if at else {"status": Health.READY}
    await rig.put(NODES, node_id, Node(node_id=node_id, **lost))


async def test_F89_nodes_whose_work_the_brake_holds_are_counted() -> None:
    """Three of four fall silent together; one is heard again, so that they are too few."""
    async with front_on() as rig:
        await put_lost(rig, "n0", None)
        now = utc_now()
        for node_id in ("n1", "n2", "n3"):
            await put_lost(rig, node_id, now)
        assert shown(rig, "brake_held_nodes") == {"0": 3}
        await put_lost(rig, "n1", None)
        assert shown(rig, "brake_held_nodes") == {"0": 0}


async def test_F89_channels_to_agents_are_counted_while_they_are_open() -> None:
    """Opened with the first call, closed with the node; each dial counts."""
    fake = await FakeAgent("n-1").start()
    async with front_on() as rig:
        agents = Agents(timeout_seconds=5.0, on_dial=rig.parts.metrics.channels_opened.inc)
        rig.parts.agents = agents
        assert shown(rig, "agent_channels") == {"": 0}
        await agents.status(fake.node(), "web")
        assert (shown(rig, "agent_channels"), shown(rig, "agent_channels_opened_total")) == ({"": 1}, {"": 1})
        agents.drop("n-1")
        assert (shown(rig, "agent_channels"), shown(rig, "agent_channels_opened_total")) == ({"": 0}, {"": 1})
        await agents.close()
    await fake.stop()


async def test_F89_an_agent_that_ceases_to_answer_is_counted_once() -> None:
    """Its breaker opens; the calls that it then holds back count as no further one."""
    fake = await FakeAgent("n-1").start()
    async with front_on() as rig:
        metrics = rig.parts.metrics
        agents = Agents(timeout_seconds=0.5, on_call=metrics.agent_call, on_breaker=metrics.breakers_opened.inc)
        node = fake.node()
        await fake.stop()
        for _ in range(10):
            await asyncio.gather(agents.status(node, "web"), return_exceptions=True)
        assert shown(rig, "agent_breakers_opened_total") == {"": 1}
        assert shown(rig, "agent_rpc_requests_total").get("Unavailable,GetWorkloadStatus", 0) >= 1
        await agents.close()


async def test_F89_conflicts_are_counted_by_what_had_changed() -> None:
    """Two writers of one workload: the second decides again."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        writes = [rig.apply(desired_state=state) for state in (Desired.STOPPED, Desired.RUNNING) * 4]
        await asyncio.gather(*writes)
        conflicts, written = shown(rig, "state_store_conflicts_total"), shown(rig, "state_store_writes_total")
        assert conflicts.keys() <= written.keys()
        assert rig.parts.store.conflicts.total() == sum(conflicts.values())
        assert (await rig.workload()).desired_state in (Desired.RUNNING, Desired.STOPPED)


async def test_F89_open_findings_of_drift_are_counted_by_kind_until_they_are_resolved() -> None:
    """Each as long as its record is there."""
    async with front_on() as rig:
        assert shown(rig, "drifts_open") == {}
        for workload_id in ("a", "b"):
            fields = {"node_id": "n1", "workload_id": workload_id, "drift_type": DriftType.ORPHAN}
            identifier = drift_id("n1", workload_id, DriftType.ORPHAN)
            await rig.put(DRIFTS, identifier, DriftRecord(detected_at=utc_now(), **fields))
        assert shown(rig, "drifts_open") == {"orphan_on_agent": 2}
        await rig.parts.etcd.txn((), [Delete(key) for key in await rig.stored() if key.startswith(DRIFTS.prefix)])
        await eventually(lambda: shown(rig, "drifts_open") == {})


async def test_F89_redis_is_up_while_it_answers(redis: Redis) -> None:
    """Told by the last read of pulses, which the front makes every few seconds."""
    async with front_on(redis=redis) as rig:
        await eventually(lambda: shown(rig, "redis_up") == {"": 1})
    async with front_on() as rig:
        await rig.register()
        await rig.control.ListNodes(pb.ListNodesRequest())
        assert shown(rig, "redis_up") == {"": 0}
