"""Events for people, in the Redis stream `scheduler:events`. Fire and forget: nothing waits for them.

They are kept in a bounded buffer until Redis takes them; when the buffer is full the oldest
goes and is counted. No decision rests on an event.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import structlog
from redis.asyncio import Redis

from scheduler.domain.event import Event
from scheduler.telemetry.redis import TelemetryUnavailable, answers, configured, end_task

STREAM = "scheduler:events"
BUFFER = 1000
BATCH = 100
CLOSE_SECONDS = 1.0
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)

_log = structlog.get_logger("scheduler.telemetry.events")


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
    ) -> None:
        """Take the connection (None: nothing is sent), the stream's bounds, and what to call for each dropped event."""
        self._redis = redis
        self._max_entries = max_entries
        self._ttl = max(1, round(ttl_seconds))
        self._waiting: deque[Event] = deque()
        self._buffer = buffer
        self._on_drop = on_drop
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
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
        if self._redis is None:
            return
        event = Event(
            id=str(uuid.uuid4()),
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
        failures = 0
        while self._waiting or not self._closing:
            await self._news.wait()
            if not self._waiting:
                self._news.clear()
                continue
            try:
                await self._send_some()
                failures = 0
            except TelemetryUnavailable as error:
                if failures == 0:
                    _log.warning("events wait for Redis", error=str(error), waiting=len(self._waiting))
                await asyncio.sleep(_PAUSES_SECONDS[min(failures, len(_PAUSES_SECONDS) - 1)])
                failures += 1

    async def _send_some(self) -> None:
        batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
        with answers():
            async with configured(self._redis).pipeline(transaction=False) as pipe:
                for event in batch:
                    pipe.xadd(STREAM, {"data": event.to_json()}, maxlen=self._max_entries, approximate=True)
                pipe.expire(STREAM, self._ttl)
                await pipe.execute()
        sent = {event.id for event in batch}
        while self._waiting and self._waiting[0].id in sent:  # some may have been dropped meanwhile
            self._waiting.popleft()
