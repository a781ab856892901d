"""The front and Redis: pulses, usage, the state of the cluster; with Redis there, away, and back."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import pytest
from redis.asyncio import Redis

from scheduler.domain.node import Health
from scheduler.domain.record import utc
from scheduler.domain.shard import LOOPS
from scheduler.front.vitals import Vital
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from scheduler.queues.admission import _key
from scheduler.settings import Settings
from scheduler.store.keys import LEADER_PREFIX, NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.telemetry.events import STREAM
from scheduler.telemetry.pulses import PULSES_KEY, Pulses, PulseView
from scheduler.telemetry.redis import TelemetryUnavailable, make_redis
from tests.support import servers
from tests.support.fronts import Heartbeat, Rig, eventually, front_on


async def pulses_of(redis: Redis) -> PulseView:
    """Read what fronts have written."""
    return await Pulses(redis, gap_limit_seconds=5).read()


async def cluster(rig: Rig) -> Any:
    """Ask for the state of the cluster."""
    return await rig.fleet.GetClusterStatus(fb.GetClusterStatusRequest())


async def test_a_heartbeat_becomes_a_pulse_and_a_registration_is_one_too(redis: Redis) -> None:
    """Within a flush or two, by Redis's clock, with the use; the front itself pulses and signs off at its end."""
    async with front_on(redis=redis) as rig:
        await rig.register()

        async def written() -> bool:
            return "n1" in (await pulses_of(redis)).pulses

        await eventually(written)
        usage = pb.NodeUsage(cpu_used_millicores=500, memory_used_mb=96, disk_used_gb=1)
        await rig.control.Heartbeat(Heartbeat(node_id="n1", usage=usage))

        async def with_use() -> bool:
            return (await pulses_of(redis)).pulses["n1"].cpu_used_millicores == 500

        await eventually(with_use)
        view = await pulses_of(redis)
        assert [front.front_id for front in view.fronts] == ["front-1"]
        assert view.fronts[0].since <= view.fronts[0].at <= view.now
    assert (await pulses_of(redis)).fronts == []


async def test_what_a_node_uses_is_seen_at_every_front(redis: Redis) -> None:
    """A view shows what another front has heard."""
    etcd = MemoryEtcd()
    async with front_on(etcd, redis=redis) as one, front_on(etcd, redis=redis, front_id="front-2") as two:
        await one.register()
        await one.control.Heartbeat(Heartbeat(node_id="n1", usage=pb.NodeUsage(cpu_used_millicores=500)))

        async def seen() -> bool:
            return bool((await two.node()).available_cpu_cores == 1.5)

        await eventually(seen)

        async def listed() -> bool:
            return bool((await two.control.ListNodes(pb.ListNodesRequest())).nodes[0].available_cpu_cores == 1.5)

        await eventually(listed)


async def test_F6_F50_usage_is_shown_and_survives_a_restart_of_the_front(redis: Redis) -> None:
    """Samples of the assigned node only; inside statuses or beside them."""
    etcd = MemoryEtcd()
    async with front_on(etcd, redis=redis) as rig:
        await rig.register("n1")
        await rig.apply()
        await rig.register("n2")
        sample = pb.WorkloadUsageSnapshot(workload_id="web", cpu_percent=12.5, memory_bytes=7)
        wrong = pb.WorkloadUsageSnapshot(workload_id="web", cpu_percent=99.0)
        unknown = pb.WorkloadUsageSnapshot(workload_id="ghost", cpu_percent=1.0)
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_usage=[sample, unknown]))
        await rig.control.Heartbeat(Heartbeat(node_id="n2", workload_usage=[wrong]))

        async def shown() -> bool:
            return (await rig.workload()).HasField("usage")

        await eventually(shown)
        inside = pb.WorkloadStatus(workload_id="web", state="Pending", usage=sample)
        inside.usage.cpu_percent = 25.0
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[inside]))

        async def newer() -> bool:
            return bool((await rig.workload()).usage.cpu_percent == 25.0)

        await eventually(newer)
    async with front_on(etcd, redis=redis) as again:
        assert (await again.workload()).usage.cpu_percent == 25.0
        assert not await redis.exists("fleetbeat:usage:ghost")


async def test_without_redis_everything_else_works_and_pulses_come_later(tmp_path: pathlib.Path) -> None:
    """Redis is away from the start, comes, goes and comes back: heartbeats are taken throughout."""
    server = servers.redis(tmp_path)
    redis = make_redis(Settings(redis_addr=server.address))
    assert redis
    async with front_on(redis=redis) as rig:
        await rig.register()
        await rig.apply()
        assert (await rig.node()).available_cpu_cores == 2.0
        assert (await rig.control.Heartbeat(Heartbeat(node_id="n1"))).acknowledged
        assert len(rig.front.heartbeats.pulses) == 1
        status = await cluster(rig)
        assert any("Redis does not answer" in notice for notice in status.notices)

        async def arrived() -> bool:
            try:
                return "n1" in (await pulses_of(redis)).pulses
            except TelemetryUnavailable:
                return False

        with servers.running(server):
            await eventually(arrived)
            server.kill()
            for _ in range(3):
                assert (await rig.control.Heartbeat(Heartbeat(node_id="n1"))).acknowledged
            begun = time.monotonic()
            await rig.control.ListWorkloads(pb.ListWorkloadsRequest())
            assert time.monotonic() - begun < 10
            server.start()
            await eventually(arrived)
    await redis.aclose()


async def register_as(rig: Rig, instance_id: str, endpoint: str) -> pb.RegisterNodeResponse:
    """Register node n1 as this instance of an agent."""
    capabilities = pb.NodeCapabilities(cpu_total_millicores=1, memory_total_mb=1)
    request = pb.RegisterNodeRequest(
        node_id="n1", grpc_endpoint=endpoint, instance_id=instance_id, capabilities=capabilities
    )
    answer: pb.RegisterNodeResponse = await rig.control.RegisterNode(request)
    return answer


async def test_the_id_of_an_agent_that_another_front_hears_is_not_given_away_while_redis_is_away() -> None:
    """Else two agents would take the node from each other, each at a front of its own, and both would run copies.

    Once the node monitor has found it silent, or the agent is back in its old place, there is no doubt.
    """
    redis = make_redis(Settings(redis_addr=f"127.0.0.1:{servers.free_port()}"))
    etcd = MemoryEtcd()
    async with front_on(etcd, redis=redis) as one, front_on(etcd, redis=redis, front_id="front-2") as two:
        assert (await register_as(one, "a", "127.0.0.1:1")).accepted
        answer = await register_as(two, "b", "127.0.0.1:2")
        assert not answer.accepted
        assert "127.0.0.1:1" in answer.reason
        assert "Redis" in answer.reason
        assert (await register_as(two, "c", "127.0.0.1:1")).accepted
        node = (await two.parts.store.get(NODES, "n1")).record
        assert node
        await two.put(NODES, "n1", node.replace(status=Health.NOT_READY))
        two.front.heartbeats._seen.clear()
        assert (await register_as(two, "d", "127.0.0.1:2")).accepted


async def test_the_age_of_heartbeats_is_left_out_where_it_is_not_known() -> None:
    """A front that hears no agent and has no Redis must not report an age of 0, which would look well."""
    redis = make_redis(Settings(redis_addr=f"127.0.0.1:{servers.free_port()}"))
    etcd = MemoryEtcd()
    async with front_on(etcd, redis=redis) as one, front_on(etcd, redis=redis, front_id="front-2") as two:
        await one.register()
        await two.parts.cache.wait_revision(one.parts.store.last_revision, 5)
        for rig, is_known in ((one, True), (two, False)):
            await rig.control.ListNodes(pb.ListNodesRequest())
            assert (b"\npersys_scheduler_heartbeat_age_seconds_max " in rig.parts.metrics.exposition()) == is_known


async def test_the_age_of_heartbeats_does_not_grow_between_two_reads(redis: Redis) -> None:
    """What other fronts heard since the last read of Redis counts as no silence."""
    async with front_on(redis=redis) as rig:
        await rig.register()
        await rig.control.ListNodes(pb.ListNodesRequest())
        rig.front._vitals.latest_at -= 100
        rig.front._vitals.latest = {n: Vital(v.at - 100) for n, v in rig.front._vitals.latest.items()}
        assert 0 <= rig.front._figures().gauges["heartbeat_age_seconds_max"] < 10


async def test_a_pulse_that_waited_for_redis_is_as_old_as_the_heartbeat(redis: Redis) -> None:
    """Redis was away for a while: the pulse does not claim that the node was heard when Redis came back."""
    async with front_on(redis=redis) as rig:
        await rig.register()
        pump = rig.front.heartbeats.pulses
        assert pump._task
        pump._task.cancel()
        await asyncio.gather(pump._task, return_exceptions=True)
        await redis.delete(PULSES_KEY)
        pump.heard("n1", None)
        pump._heard["n1"] = (time.monotonic() - 30, None)
        await pump.flush()
        view = await pulses_of(redis)
        assert 29 < view.now - view.pulses["n1"].at < 35


async def test_what_happens_is_told_as_events(redis: Redis) -> None:
    """Joined, created, scheduled, updated, retried, ready again."""
    async with front_on(redis=redis) as rig:
        await rig.register()
        await rig.apply()
        await rig.register()
        await rig.control.RetryWorkload(pb.RetryWorkloadRequest(workload_id="web"))
        node = rig.parts.cache.get(NODES, "n1").record
        assert node
        await rig.put(NODES, "n1", node.replace(status=Health.NOT_READY))
        await rig.control.Heartbeat(Heartbeat(node_id="n1"))
        await rig.settled()

        async def told() -> bool:
            return bool(await redis.xlen(STREAM) >= 5)

        await eventually(told)
        entries = [fields[b"data"].decode() for _, fields in await redis.xrange(STREAM)]
    kinds = ["NodeJoined", "WorkloadCreated", "WorkloadScheduled", "RetryTriggered", "NodeReady"]
    assert [next(kind for kind in kinds if f'"type":"{kind}"' in entry) for entry in entries] == kinds


async def finish_cycles(redis: Redis, shards: int, at: float) -> None:
    """Note for each loop and shard that a cycle was finished then."""
    for shard in range(shards):
        for loop in LOOPS:
            values = {"slot": 7, "term": 3, "finished_at": round(at * 1000)}
            await redis.hset(_key(loop, shard), mapping=values)


async def test_the_state_of_the_cluster_in_one_answer(redis: Redis) -> None:
    """Leader, shard map, nodes and workloads by shard, queues, cycles, fronts, counts; no notice when all is well."""

    def backlog(shards: Sequence[int]) -> list[int]:
        return [10 + shard for shard in shards]

    etcd = MemoryEtcd()
    async with front_on(etcd, redis=redis, shard_count=2, backlog=backlog) as rig:
        for number in range(4):
            await rig.register(f"n{number}")
            await rig.apply(f"w{number}")
        await rig.put_key(LEADER_PREFIX + "b", b"beat-1")
        await rig.put_key(LEADER_PREFIX + "a", b"beat-2")
        await finish_cycles(redis, 2, time.time())

        async def pulsed() -> bool:
            return len((await cluster(rig)).fronts) == 1

        await eventually(pulsed)
        status = await cluster(rig)
    assert (status.cluster_id, status.shard_count, status.shard_map_generation) == ("test", 2, 1)
    assert status.leader.instance_id == "beat-1"
    assert status.leader.term > 0
    assert [shard.queue_length for shard in status.shards] == [10, 11]
    assert sum(shard.nodes for shard in status.shards) == 4
    assert sum(shard.workloads for shard in status.shards) == 4
    assert [loop.loop for loop in status.shards[0].loops] == list(LOOPS)
    assert (status.shards[0].loops[0].slot, status.shards[0].loops[0].HasField("finished_at")) == (7, True)
    assert 0 <= status.shards[0].loops[0].age_seconds < 60
    assert status.fronts[0].front_id == "front-1"
    assert status.summary.total_nodes == 4
    assert list(status.notices) == []
    assert not status.stale


async def test_an_operator_is_told_what_is_wrong(redis: Redis) -> None:
    """No leader; a shard without finished cycles; the brake; a broker that does not answer."""

    def backlog(_shards: Sequence[int]) -> list[int]:
        raise OSError("gone")

    async with front_on(redis=redis, backlog=backlog) as rig:
        for number in range(4):
            await rig.register(f"n{number}")
        for node_id in ("n0", "n1", "n2"):
            node = rig.parts.cache.get(NODES, node_id).record
            assert node
            await rig.put(NODES, node_id, node.replace(status=Health.NOT_READY, status_updated_at=utc(time.time())))
        await finish_cycles(redis, 1, time.time() - 3600)
        status = await cluster(rig)
    notices = "\n".join(status.notices)
    for words in ("no beat leads", "no reconcile cycle finished", "shard 0: the brake holds", "-Q shard-0"):
        assert words in notices
    assert status.shards[0].queue_length == -1
    assert status.leader.instance_id == ""


async def test_a_cluster_that_has_just_started_is_not_blamed_for_it(redis: Redis) -> None:
    """Cycles that never were count from the start of the front."""
    async with front_on(redis=redis) as rig:
        status = await cluster(rig)
        assert not any("cycle" in notice for notice in status.notices if "no beat" not in notice)
        assert status.shards[0].loops[0].age_seconds == -1
        assert not status.shards[0].loops[0].HasField("finished_at")


async def test_measured_use_reaches_the_placer(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """From time to time, for all nodes that were heard anywhere."""
    monkeypatch.setattr("scheduler.front.server.MEASURE_SECONDS", 0.1)
    async with front_on(redis=redis) as rig:
        for node_id in ("n1", "n2"):
            await rig.register(node_id)
        busy = pb.NodeUsage(cpu_used_millicores=1900, memory_used_mb=4000)
        await rig.control.Heartbeat(Heartbeat(node_id="n1", usage=busy))
        await rig.control.Heartbeat(Heartbeat(node_id="n2", usage=pb.NodeUsage()))
        measured: dict[str, Any] = {}
        rig.parts.placer.measure = measured.update  # type: ignore[method-assign]
        await eventually(lambda: measured.keys() >= {"n1", "n2"}, 15)
        assert measured["n1"].cpu_millicores == 1900
