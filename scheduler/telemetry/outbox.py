"""Telemetry on its way out: to Redis, and to etcd while Redis does not answer. Fire and forget: nothing waits for it.

It is kept in a bounded buffer until one of them takes it; when the buffer is full the oldest goes
and is counted. etcd gets a batch every half second at most. What was sent with an unknown end is
sent again: readers take each item once. No decision rests on any of it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import structlog
from redis.asyncio import Redis

from scheduler.domain.errors import Conflict, StoreUnavailable
from scheduler.telemetry.redis import TelemetryUnavailable, end_task

BUFFER = 1000
BATCH = 100
STORE_BATCH = 40
"""Items of one transaction; as many old ones may go in it, and etcd takes 128 operations."""
CLOSE_SECONDS = 1.0
STORE_PAUSE_SECONDS = 0.5
_PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)

T = TypeVar("T")

_log = structlog.get_logger("scheduler.telemetry.outbox")


class Outbox(ABC, Generic[T]):
    """Sends items of one kind from one process. Use it from one event loop."""

    what: ClassVar[str]
    """What log lines call the items."""
    gather_seconds: ClassVar[float] = 0.0
    """How long the first item waits for others to share its batch."""

    def __init__(
        self,
        redis: Redis | None,
        *,
        has_store: bool,
        buffer: int = BUFFER,
        on_drop: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the connection, whether there is an etcd to fall back to, and what to call for each dropped item.

        redis: None when there is none; without both nothing is sent.
        """
        self._redis = redis
        self._has_store = has_store
        self._waiting: deque[T] = deque()
        self._buffer = buffer
        self._on_drop = on_drop
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._most = BATCH
        """Items of the next batch."""
        self._failures = 0
        self._redis_again_at = 0.0
        self.dropped = 0

    @abstractmethod
    async def _to_redis(self, batch: Sequence[T]) -> None:
        """Send a batch to Redis. Raises TelemetryUnavailable."""

    @abstractmethod
    async def _to_etcd(self, batch: Sequence[T]) -> None:
        """Write a batch to etcd. Raises StoreUnavailable, Conflict."""

    @property
    def _goes_nowhere(self) -> bool:
        return self._redis is None and not self._has_store

    async def close(self) -> None:
        """Send what waits, for a second at most, and stop."""
        task, self._task = self._task, None
        if task is None:
            return
        self._closing = True
        self._news.set()
        await asyncio.wait([task], timeout=CLOSE_SECONDS)
        await end_task(task)

    def _put(self, item: T) -> None:
        """Have an item sent some time soon. Returns at once."""
        if len(self._waiting) >= self._buffer:
            self._waiting.popleft()
            self._drop()
        self._waiting.append(item)
        self._news.set()
        if self._task is None and not self._closing:
            self._task = asyncio.get_running_loop().create_task(self._send_all(), name=self.what)

    def _drop(self) -> None:
        self.dropped += 1
        self._on_drop()

    async def _send_all(self) -> None:
        while self._waiting or not self._closing:
            await self._news.wait()
            if not self._waiting:
                self._news.clear()
                continue
            if self.gather_seconds and not self._closing:
                await asyncio.sleep(self.gather_seconds)
            await asyncio.sleep(await self._send_or_narrow())

    async def _send_or_narrow(self) -> float:
        """Send a batch. The item for which one cannot be written is found by halves and dropped: it stops no other."""
        try:
            pause = await self._send_some()
        except Exception as error:  # noqa: BLE001 - one bad item must not stop all others
            if not (tried := self._first(self._most)):
                return STORE_PAUSE_SECONDS
            self._most = max(1, len(tried) // 2)
            if len(tried) == 1:
                _log.exception("an item cannot be written and is dropped", what=self.what)
                self._sent(tried)
                self._drop()
                self._most = BATCH
            else:
                _log.warning("a batch cannot be written; a smaller one is tried", what=self.what, error=repr(error))
            return STORE_PAUSE_SECONDS
        self._most = BATCH
        return pause

    async def _send_some(self) -> float:
        """Send a batch, to Redis if it answers, else to etcd; return how long to wait before the next."""
        if self._redis is not None and time.monotonic() >= self._redis_again_at:
            batch = self._first(self._most)
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
            where = "etcd" if self._has_store else "nowhere yet"
            waiting = len(self._waiting)
            _log.warning("Redis is away", what=self.what, now_goes_to=where, error=str(error), waiting=waiting)
        pause = _PAUSES_SECONDS[min(self._failures, len(_PAUSES_SECONDS) - 1)]
        self._failures += 1
        self._redis_again_at = time.monotonic() + pause

    async def _to_store(self) -> float:
        again = max(0.0, self._redis_again_at - time.monotonic())
        if not self._has_store:
            return again
        batch = self._first(min(STORE_BATCH, self._most))
        try:
            await self._to_etcd(batch)
        except (StoreUnavailable, Conflict) as error:
            _log.info("neither Redis nor etcd takes it; it is kept here", what=self.what, error=str(error))
            return max(again, STORE_PAUSE_SECONDS)
        self._sent(batch)
        return STORE_PAUSE_SECONDS

    def _first(self, most: int) -> list[T]:
        return [self._waiting[i] for i in range(min(most, len(self._waiting)))]

    def _sent(self, batch: Sequence[T]) -> None:
        sent = {id(item) for item in batch}
        while self._waiting and id(self._waiting[0]) in sent:  # some may have been dropped meanwhile
            self._waiting.popleft()
