"""ListEvents and WatchEvents over a real Redis that goes and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from grpc import aio

from scheduler.domain.event import EventType
from scheduler.front import events as feed
from scheduler.front.event_log import QUEUE, TRIMMED
from scheduler.pb import control_pb2 as pb
from scheduler.settings import Settings
from scheduler.store.keys import EVENTS
from scheduler.telemetry.events import STREAM
from scheduler.telemetry.redis import make_redis
from tests.support import servers
from tests.support.fronts import Rig, eventually, front_on, refused


@pytest.fixture
def own_redis(tmp_path: pathlib.Path) -> Iterator[servers.Server]:
    """A Redis that the test may kill."""
    with servers.running(servers.redis(tmp_path)) as server:
        yield server


@contextlib.asynccontextmanager
async def rig_on(server: servers.Server | None, **settings: Any) -> AsyncIterator[Rig]:
    """A front with this Redis, None: without."""
    redis = make_redis(Settings(redis_addr=server.address)) if server else None
    async with front_on(redis=redis, **settings) as rig:
        yield rig
    if redis:
        await redis.aclose()


async def sent(rig: Rig) -> None:
    """Wait until no event waits to be sent."""
    await eventually(lambda: not rig.parts.events._waiting)
    await rig.parts.cache.wait_revision(rig.parts.store.last_revision, 5)


async def listed(rig: Rig, **wanted: Any) -> list[str]:
    """The reasons of the listed events, as they come."""
    answer = await rig.control.ListEvents(pb.ListEventsRequest(**wanted))
    return [event.reason for event in answer.events]


class Watching:
    """One watcher in the background."""

    def __init__(self, rig: Rig, **wanted: Any) -> None:
        """Begin to watch."""
        self.got: list[pb.SchedulerEventView] = []
        self.call = rig.control.WatchEvents(pb.WatchEventsRequest(**wanted))
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for event in self.call:
            self.got.append(event)

    @property
    def reasons(self) -> list[str]:
        """The reasons of what came, in order."""
        return [event.reason for event in self.got]

    async def end(self) -> None:
        """Leave."""
        self.call.cancel()
        with contextlib.suppress(asyncio.CancelledError, aio.AioRpcError):
            await self.task


async def test_F67_events_are_listed_newest_first_and_filtered(own_redis: servers.Server) -> None:
    """By type, workload and node, each exactly; 0 means the default limit."""
    async with rig_on(own_redis) as rig:
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="1")
        rig.parts.events.emit(EventType.WORKLOAD_CREATED, workload_id="web", reason="2", details={"revision": "r"})
        rig.parts.events.emit(EventType.WORKLOAD_SCHEDULED, workload_id="web", node_id="n1", reason="3")
        await sent(rig)
        assert await listed(rig) == ["3", "2", "1"]
        assert await listed(rig, limit=2) == ["3", "2"]
        assert await listed(rig, workload_id="web") == ["3", "2"]
        assert await listed(rig, node_id="n1") == ["3", "1"]
        assert await listed(rig, type="NodeJoined") == ["1"]
        newest = (await rig.control.ListEvents(pb.ListEventsRequest(workload_id="web"))).events[1]
        assert (newest.type, dict(newest.details)) == ("WorkloadCreated", {"revision": "r"})


async def test_F67_bad_filters_are_refused_by_name(own_redis: servers.Server) -> None:
    """A negative limit, an unknown type, an id that cannot be one."""
    async with rig_on(own_redis) as rig:
        for wrong, named in (
            (pb.ListEventsRequest(limit=-1), "limit"),
            (pb.ListEventsRequest(type="Nonsense"), "type"),
            (pb.ListEventsRequest(node_id="a/b"), "node_id"),
        ):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, named):
                await rig.control.ListEvents(wrong)


async def test_F67_F71_without_redis_events_are_kept_in_etcd(own_redis: servers.Server) -> None:
    """Under a lease, bounded in number; with Redis up not one is written there."""
    async with rig_on(None) as rig:
        for number in range(130):
            rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason=str(number))
        await sent(rig)
        found = await listed(rig)
        assert found[0] == "129"
        assert len(found) <= 100
        assert found == [str(number) for number in range(129, 129 - len(found), -1)]
        kvs, _ = await rig.parts.etcd.scan(EVENTS.prefix)
        assert all(kv.lease for kv in kvs)
    async with rig_on(own_redis) as rig:
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="1")
        await sent(rig)
        assert (await rig.parts.etcd.scan(EVENTS.prefix))[0] == []


async def test_F67_F71_events_go_on_while_redis_is_away_and_after(tmp_path: pathlib.Path) -> None:
    """Redis is killed and comes back: nothing is missing, nothing twice, and it is used again."""
    with servers.running(servers.redis(tmp_path)) as server:
        async with rig_on(server) as rig:
            watching = Watching(rig)
            rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="before")
            await eventually(lambda: watching.reasons == ["before"])
            server.kill()
            rig.parts.events.emit(EventType.NODE_LOST, node_id="n1", reason="meanwhile")
            await eventually(lambda: "meanwhile" in watching.reasons, 20)
            assert "meanwhile" in await listed(rig)
            server.start()
            rig.parts.events._redis_again_at = 0.0
            rig.parts.events.emit(EventType.NODE_READY, node_id="n1", reason="after")
            await eventually(lambda: "after" in watching.reasons, 20)
            told = [reason for reason in watching.reasons if "dropped" not in reason]
            assert told == ["before", "meanwhile", "after"]
            assert (await listed(rig))[:2] == ["after", "meanwhile"]
            await watching.end()


async def test_F68_a_watch_replays_and_goes_on_without_a_gap(own_redis: servers.Server) -> None:
    """What is kept comes oldest first, then what happens; also from an empty start, and filtered."""
    async with rig_on(own_redis) as rig:
        empty = Watching(rig, type="NodeLost")
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="1")
        await sent(rig)
        watching = Watching(rig)
        await eventually(lambda: watching.reasons == ["1"])
        for number in range(2, 40):
            rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason=str(number))
        rig.parts.events.emit(EventType.NODE_LOST, node_id="n1", reason="lost")
        await eventually(lambda: len(watching.got) >= 40)
        assert watching.reasons == [*map(str, range(1, 40)), "lost"]
        await eventually(lambda: empty.reasons == ["lost"])
        again = Watching(rig, resume_from=watching.got[-1].id)
        rig.parts.events.emit(EventType.NODE_READY, node_id="n1", reason="ready")
        await eventually(lambda: "ready" in again.reasons)
        assert "lost" not in again.reasons
        for one in (empty, watching, again):
            await one.end()
        await eventually(lambda: len(rig.front._events._log) == 0)


async def test_F68_an_event_that_was_sent_twice_is_told_once(own_redis: servers.Server) -> None:
    """Whoever sends it again did not know that it had arrived; and what is no event is passed over."""
    async with rig_on(own_redis) as rig:
        watching = Watching(rig)
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="1")
        await eventually(lambda: watching.reasons == ["1"])
        redis: Any = rig.parts.redis
        entry = (await redis.xrange(STREAM))[0][1]
        await redis.xadd(STREAM, entry)
        await redis.xadd(STREAM, {"data": "no event"})
        await redis.xadd(STREAM, {"other": "x"})
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n2", reason="2")
        await eventually(lambda: len(watching.got) >= 2)
        assert watching.reasons == ["1", "2"]
        assert await listed(rig) == ["2", "1"]
        await watching.end()


async def test_F68_a_watcher_is_told_when_events_were_trimmed(own_redis: servers.Server) -> None:
    """The stream was emptied behind its back: it hears of that, and goes on."""
    async with rig_on(own_redis) as rig:
        watching = Watching(rig)
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="1")
        await eventually(lambda: watching.reasons == ["1"])
        assert rig.parts.redis
        await rig.parts.redis.delete(STREAM)
        rig.parts.events.emit(EventType.NODE_JOINED, node_id="n1", reason="2")
        await eventually(lambda: "2" in watching.reasons)
        assert [event.type for event in watching.got] == ["NodeJoined", TRIMMED, "NodeJoined"]
        await watching.end()


async def test_F68_watchers_are_bounded(own_redis: servers.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is refused, and one that has left makes room."""
    monkeypatch.setattr(feed, "MAX_WATCHERS", 1)
    async with rig_on(own_redis) as rig:
        first = Watching(rig)
        await eventually(lambda: len(rig.front._events._log) == 1)
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "watchers"):
            await anext(aiter(rig.control.WatchEvents(pb.WatchEventsRequest())))
        await first.end()
        await eventually(lambda: len(rig.front._events._log) == 0)


async def test_F68_a_watcher_that_does_not_keep_up_is_ended(own_redis: servers.Server) -> None:
    """It costs the others nothing; what was queued for it still comes."""
    async with rig_on(own_redis) as rig:
        watching = Watching(rig)
        await eventually(lambda: len(rig.front._events._log) == 1)
        (watcher,) = rig.front._events._log._watchers
        for _ in range(QUEUE + 1):
            watcher.tell_of_gap()
        with pytest.raises(aio.AioRpcError) as caught:
            await watching.task
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(watching.got) == QUEUE
