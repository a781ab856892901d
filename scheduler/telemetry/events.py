"""Events for people, in the Redis stream `scheduler:events`. Fire and forget: nothing waits for them.

They are kept in a bounded buffer until Redis takes them; when the buffer is full the oldest goes
and is counted. While Redis does not answer they go to etcd, a batch every half second at most. An
event whose sending was in doubt is sent again under the same id: readers take each id once. No
decision rests on an event.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import structlog
from redis.asyncio import Redis

from scheduler.domain.errors import Conflict, StoreUnavailable
from scheduler.domain.event import Event
from scheduler.telemetry.event_store import BATCH as STORE_BATCH
from scheduler.telemetry.event_store import EventStore
from scheduler.telemetry.redis import TelemetryUnavailable, answers, configured, end_task

STREAM = "scheduler:events"
FIELD = "data"
BUFFER = 1000
BATCH = 100
CLOSE_SECONDS = 1.0
STORE_PAUSE_SECONDS = 0.5
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
_COUNTER_BITS, _RANDOM_BITS = 12, 62

_log = structlog.get_logger("scheduler.telemetry.events")


class EventIds:
    """Makes UUIDs of version 7 (RFC 9562): in the order of time, and of making within one process."""

    def __init__(self) -> None:
        """Start anew."""
        self._last = 0

    def next(self, unix_ms: int) -> str:
        """Return the id of an event of this millisecond."""
        self._last = max(unix_ms << _COUNTER_BITS, self._last + 1)
        ms, count = divmod(self._last, 1 << _COUNTER_BITS)
        high = (ms & (1 << 48) - 1) << 16 | 7 << 12 | count
        low = 2 << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)
        return str(uuid.UUID(int=high << 64 | low))


_ids = EventIds()


class Events:
    """Sends events from one process. Use it from one event loop."""

    def __init__(
        self,
        redis: Redis | None,
        *,
        max_entries: int,
        ttl_seconds: float,
        buffer: int = BUFFER,
        on_drop: Callable[[], None] = lambda: None,
        store: EventStore | None = None,
    ) -> None:
        """Take the connection, the stream's bounds, and what to call for each dropped event.

        redis, store: None when there is none; without both nothing is sent.
        """
        self._redis = redis
        self._store = store
        self._max_entries = max_entries
        self._ttl = max(1, round(ttl_seconds))
        self._waiting: deque[Event] = deque()
        self._buffer = buffer
        self._on_drop = on_drop
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._failures = 0
        self._redis_again_at = 0.0
        self.dropped = 0

    def emit(
        self,
        kind: str,
        *,
        workload_id: str = "",
        node_id: str = "",
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Send an event some time soon. Returns at once."""
        if self._redis is None and self._store is None:
            return
        event = Event(
            id=_ids.next(time.time_ns() // 1_000_000),
            type=kind,
            workload_id=workload_id,
            node_id=node_id,
            reason=reason,
            timestamp=datetime.now(UTC),
            details=dict(details or {}),
        )
        if len(self._waiting) >= self._buffer:
            self._waiting.popleft()
            self.dropped += 1
            self._on_drop()
        self._waiting.append(event)
        self._news.set()
        if self._task is None and not self._closing:
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name="events")

    async def close(self) -> None:
        """Send what waits, for a second at most, and stop."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing = True
        self._news.set()
        await asyncio.wait([task], timeout=CLOSE_SECONDS)
        await end_task(task)

    async def _send_all(self) -> None:
        while self._waiting or not self._closing:
            await self._news.wait()
            if not self._waiting:
                self._news.clear()
                continue
            await asyncio.sleep(await self._send_some())

    async def _send_some(self) -> float:
        """Send a batch, to Redis if it answers, else to etcd; return how long to wait before the next."""
        if self._redis is not None and time.monotonic() >= self._redis_again_at:
            batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
            try:
                await self._to_redis(batch)
            except TelemetryUnavailable as error:
                self._redis_failed(error)
            else:
                self._failures = 0
                self._sent(batch)
                return 0.0
        return await self._to_store()

    def _redis_failed(self, error: TelemetryUnavailable) -> None:
        if self._failures == 0:
            where = "go to etcd" if self._store else "wait"
            _log.warning(f"events {where} while Redis is away", error=str(error), waiting=len(self._waiting))
        pause = _PAUSES_SECONDS[min(self._failures, len(_PAUSES_SECONDS) - 1)]
        self._failures += 1
        self._redis_again_at = time.monotonic() + pause

    async def _to_redis(self, batch: Sequence[Event]) -> None:
        with answers():
            async with configured(self._redis).pipeline(transaction=False) as pipe:
                for event in batch:
                    pipe.xadd(STREAM, {FIELD: event.to_json()}, maxlen=self._max_entries, approximate=True)
                pipe.expire(STREAM, self._ttl)
                await pipe.execute()

    async def _to_store(self) -> float:
        again = max(0.0, self._redis_again_at - time.monotonic())
        if self._store is None:
            return again
        batch = [self._waiting[i] for i in range(min(STORE_BATCH, len(self._waiting)))]
        try:
            await self._store.write(batch)
        except (StoreUnavailable, Conflict) as error:
            _log.info("events are kept here: neither Redis nor etcd takes them", error=str(error))
            return max(again, STORE_PAUSE_SECONDS)
        self._sent(batch)
        return STORE_PAUSE_SECONDS

    def _sent(self, batch: Sequence[Event]) -> None:
        sent = {event.id for event in batch}
        while self._waiting and self._waiting[0].id in sent:  # some may have been dropped meanwhile
            self._waiting.popleft()
