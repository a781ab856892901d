"""What the reconcile loop leaves in the history, with real etcd, real Redis and agents that fail and recover."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import grpc
import pytest
from redis.asyncio import Redis

from scheduler.domain.reconciliation import Reconciliation
from scheduler.settings import Settings
from scheduler.store.etcd import Etcd
from scheduler.store.keys import RECONCILIATIONS
from scheduler.store.store import Store
from scheduler.store.workloads import finalize_delete
from scheduler.telemetry.history import STREAM, History, key_of
from scheduler.telemetry.history_reader import read_outcomes
from scheduler.telemetry.history_store import HistoryStore
from scheduler.telemetry.redis import make_redis
from tests.support import servers
from tests.support.fronts import eventually
from tests.support.loop_world import World, world
from tests.support.placement import spec

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def redis(redis_server: servers.Server) -> AsyncIterator[Redis]:
    """An empty Redis."""
    client: Redis = Redis.from_url(f"redis://{redis_server.address}/0")
    await client.flushdb()
    yield client
    await client.aclose()


@pytest.fixture
async def etcd(etcd_server: servers.Server, etcd_prefix: str) -> AsyncIterator[Etcd]:
    """A real etcd, empty."""
    client = Etcd([etcd_server.address], prefix=etcd_prefix)
    yield client
    await client.close()


@asynccontextmanager
async def recorded(etcd: Etcd, redis: Redis | None) -> AsyncIterator[tuple[World, History]]:
    """A worker whose steps are kept; one node."""
    history = History(
        redis, max_entries=1000, ttl_seconds=60, store=HistoryStore(etcd, Store(etcd), ttl_seconds=60)
    )  # fmt: skip
    async with world(etcd, record=history.record) as fleet:
        fleet.cache.subscribe(history.forget_gone)
        await fleet.add_node("n-1")
        yield fleet, history
        await history.close()


async def sent(history: History) -> None:
    """Wait until nothing waits."""
    await eventually(lambda: not history._waiting)


async def told(redis: Redis, workload_id: str) -> list[tuple[str, bool]]:
    """Return what was done about a workload, oldest first."""
    entries = await redis.xrange(STREAM)
    found = [Reconciliation.from_json(fields[b"data"]) for _, fields in entries]
    return [(one.action, one.success) for one in found if one.workload_id == workload_id]


@pytest.mark.parametrize("workload_id", ["web", "history"])
async def test_F70_place_apply_failure_and_retry_are_kept_in_order(etcd: Etcd, redis: Redis, workload_id: str) -> None:
    """Under any name; each refusal and each order, and in between, while nothing happens, not a word."""
    async with recorded(etcd, redis) as (fleet, history):
        agent = fleet.fakes["n-1"]
        agent.refuse = (grpc.StatusCode.INTERNAL, "no such image")
        await fleet.apply(spec(workload_id))
        for _ in range(2):
            await fleet.cycle()
            fleet.clock.forward(1)
        agent.refuse = None
        await fleet.cycle()
        await fleet.report("n-1")
        agent.crash(workload_id)
        await fleet.report("n-1")
        await fleet.cycle()
        await fleet.report("n-1")
        await sent(history)
        assert await told(redis, workload_id) == [
            ("Assign", True),
            ("ReapplyRunning", False),
            ("ReapplyRunning", False),
            ("ReapplyRunning", True),
            ("ReapplyRunning", True),
        ]
        found = sorted(await read_outcomes(redis, workload_id, 50, LONG_AGO), key=lambda one: one.attempted_at)
        assert found[0].reason.startswith("to n-1: ")
        assert "no such image" in found[1].reason
        await fleet.delete(workload_id)
        await fleet.cycle()
        await sent(history)
        assert (await told(redis, workload_id))[-1] == ("FinalizeDelete", True)
        assert await redis.exists(key_of(workload_id)) == 0
        assert (await etcd.scan(RECONCILIATIONS.prefix))[0] == []


async def test_F70_idle_cycles_and_repeats_write_nothing(etcd: Etcd, redis: Redis) -> None:
    """One workload runs, one fits nowhere, one waits on an agent that does not answer: ten cycles later no new word."""
    async with recorded(etcd, redis) as (fleet, history):
        await fleet.add_node("n-2")
        await fleet.apply(spec("runs", metadata={"fleetbeat.node": "n-1"}))
        await fleet.apply(spec("huge", cpu=500))
        await fleet.cycle()
        await fleet.report("n-1")
        fleet.fakes["n-2"].refuse = (grpc.StatusCode.UNAVAILABLE, "gone")
        await fleet.apply(spec("waits", metadata={"fleetbeat.node": "n-2"}))
        for _ in range(3):
            await fleet.cycle()
        await sent(history)
        before = await redis.xrange(STREAM)
        last = await redis.execute_command("INFO", "commandstats")
        kvs = await etcd.scan("/reconciliation/")
        for _ in range(10):
            await fleet.cycle()
        await sent(history)
        assert await redis.xrange(STREAM) == before
        after = await redis.execute_command("INFO", "commandstats")
        for command in ("cmdstat_eval", "cmdstat_set", "cmdstat_xadd"):
            assert after[command]["calls"] == last[command]["calls"], command
        assert (await etcd.scan("/reconciliation/"))[0] == kvs[0]
        assert await told(redis, "huge") == [("Assign", False)]
        waits = await told(redis, "waits")
        assert waits[0] == ("Assign", True)
        assert waits.count(("ReapplyRunning", False)) == 1


async def test_F70_F71_the_loop_goes_on_without_redis_and_with_one_that_is_killed(
    etcd: Etcd, tmp_path: pathlib.Path
) -> None:
    """Its steps do not wait for telemetry; the last outcome of each workload is in etcd."""
    server = servers.redis(tmp_path)
    away = make_redis(Settings(redis_addr=server.address))
    assert away
    with servers.running(server):
        async with recorded(etcd, away) as (fleet, history):
            await fleet.apply(spec("before"))
            await fleet.cycle()
            await sent(history)
            assert (await etcd.scan(RECONCILIATIONS.prefix))[0] == []
            server.kill()
            await fleet.apply(spec("meanwhile"))
            await fleet.cycle()
            assert "meanwhile" in fleet.fakes["n-1"].running()
            await sent(history)
            kvs, _ = await etcd.scan(RECONCILIATIONS.prefix)
            assert [kv.key for kv in kvs] == ["/reconciliation/meanwhile"]
            assert kvs[0].lease
            assert Reconciliation.from_json(kvs[0].value).action == "ReapplyRunning"
    await away.aclose()


async def test_F70_a_new_workload_of_the_same_name_has_its_own_story(etcd: Etcd, redis: Redis) -> None:
    """Removed by another worker. That the new one fits nowhere is told, though the same was said of the old one."""
    async with recorded(etcd, redis) as (fleet, history):
        for times in (1, 2):
            await fleet.apply(spec(cpu=500))
            await fleet.cycle()
            await sent(history)
            assert (await told(redis, "web")).count(("Assign", False)) == times
            await fleet.delete("web")
            await finalize_delete(fleet.store, "web", tombstone=False, now=fleet.clock(), seen=await fleet.status())
            await redis.delete(key_of("web"))
            await fleet.settle()
