"""Events for people, in the Redis stream `scheduler:events`, and in etcd while Redis does not answer.

How they get there is told in outbox.py. An event that is sent again keeps its id.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from redis.asyncio import Redis

from scheduler.domain.event import Event
from scheduler.telemetry.event_store import EventStore
from scheduler.telemetry.outbox import BUFFER, Outbox
from scheduler.telemetry.redis import answers, configured

STREAM = "scheduler:events"
FIELD = "data"
_COUNTER_BITS, _RANDOM_BITS = 12, 62


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


class Events(Outbox[Event]):
    """Sends events from one process. Use it from one event loop."""

    what = "events"

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
        super().__init__(redis, has_store=store is not None, buffer=buffer, on_drop=on_drop)
        self._store = store
        self._max_entries = max_entries
        self._ttl = max(1, round(ttl_seconds))

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
        if self._goes_nowhere:
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
        self._put(event)

    async def _to_redis(self, batch: Sequence[Event]) -> None:
        with answers():
            async with configured(self._redis).pipeline(transaction=False) as pipe:
                for event in batch:
                    pipe.xadd(STREAM, {FIELD: event.to_json()}, maxlen=self._max_entries, approximate=True)
                pipe.expire(STREAM, self._ttl)
                await pipe.execute()

    async def _to_etcd(self, batch: Sequence[Event]) -> None:
        if self._store is not None:
            await self._store.write(batch)
