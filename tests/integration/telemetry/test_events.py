"""Events in the Redis stream: bounded, in order, fire and forget."""

from __future__ import annotations

import asyncio
import pathlib
import time

import pytest
from redis.asyncio import Redis

from scheduler.domain.event import Event, EventType
from scheduler.settings import Settings
from scheduler.telemetry.events import STREAM, Events
from scheduler.telemetry.redis import make_redis
from tests.support import servers


async def read(redis: Redis) -> list[Event]:
    """Return the stream's events."""
    entries = await redis.xrange(STREAM)
    return [Event.from_json(fields[b"data"]) for _, fields in entries]


async def until_sent(events: Events) -> None:
    """Wait until nothing waits."""
    deadline = time.monotonic() + 10
    while events._waiting:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_events_arrive_in_order_with_the_reference_systems_names(redis: Redis) -> None:
    """One field `data` of JSON: id, type, workloadId, nodeId, reason, timestamp, details; the stream has a TTL."""
    events = Events(redis, max_entries=100, ttl_seconds=60)
    events.emit(EventType.NODE_JOINED, node_id="n1")
    events.emit(EventType.WORKLOAD_CREATED, workload_id="web", reason="asked", details={"revision": "r"})
    await until_sent(events)
    first, second = await read(redis)
    assert (first.type, first.node_id) == ("NodeJoined", "n1")
    assert (second.type, second.workload_id, second.details) == ("WorkloadCreated", "web", {"revision": "r"})
    assert first.id != second.id
    raw = (await redis.xrange(STREAM))[0][1]
    assert list(raw) == [b"data"]
    assert b'"nodeId":"n1"' in raw[b"data"]
    assert 0 < await redis.ttl(STREAM) <= 60
    await events.close()


async def test_F69_the_stream_is_bounded(redis: Redis) -> None:
    """It keeps about as many as the setting says, the newest ones."""
    events = Events(redis, max_entries=50, ttl_seconds=60)
    for number in range(1000):
        events.emit("Test", reason=str(number))
    await until_sent(events)
    kept = await read(redis)
    assert 50 <= len(kept) < 300, "trimming is approximate: whole nodes of the stream go"
    assert kept[-1].reason == "999"
    await events.close()


async def test_a_full_buffer_drops_the_oldest_and_counts(tmp_path: pathlib.Path) -> None:
    """While Redis is away emit never waits; when it is back the newest arrive, once each."""
    server = servers.redis(tmp_path)
    drops: list[int] = []
    redis = make_redis(Settings(redis_addr=server.address))
    assert redis
    events = Events(redis, max_entries=100, ttl_seconds=60, buffer=3, on_drop=lambda: drops.append(1))
    for number in range(5):
        events.emit("Test", reason=str(number))
    assert (events.dropped, len(drops)) == (2, 2)
    with servers.running(server):
        await until_sent(events)
        assert [event.reason for event in await read(redis)] == ["2", "3", "4"]
        await events.close()
        await redis.aclose()


async def test_closing_sends_what_waits_and_does_not_wait_for_a_dead_redis(redis: Redis) -> None:
    """A process that ends says what it has to say; without Redis it ends all the same."""
    events = Events(redis, max_entries=100, ttl_seconds=60)
    events.emit("Test", reason="last words")
    await events.close()
    assert [event.reason for event in await read(redis)] == ["last words"]
    dead = make_redis(Settings(redis_addr="127.0.0.1:1"))
    assert dead
    lost = Events(dead, max_entries=100, ttl_seconds=60)
    lost.emit("Test")
    async with asyncio.timeout(5):
        await lost.close()
    await dead.aclose()


@pytest.mark.parametrize("used", [True, False])
async def test_without_redis_by_configuration_events_go_nowhere(used: bool) -> None:
    """No error, no task, nothing kept."""
    events = Events(None, max_entries=100, ttl_seconds=60)
    if used:
        events.emit("Test")
    assert not events._waiting
    await events.close()
