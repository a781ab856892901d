"""A bounded pump: keeps the newest value of each key and hands the keys to a writer, a few at a time.

A key is written by one task at a time, in the order in which its values came; a value that
is overtaken while it waits is never written. What fails because etcd is away stays and is
tried again, unless something newer has come meanwhile.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from scheduler.domain.errors import Conflict, FleetbeatError, StoreUnavailable

V = TypeVar("V")
Key = tuple[str, str]

_log = structlog.get_logger("scheduler.front.pump")

_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


class Pump(Generic[V]):
    """Use it from one event loop."""

    def __init__(
        self,
        write: Callable[[Key, V], Awaitable[None]],
        *,
        in_flight: int,
        capacity: int,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """Take the writer, how many keys it may have at a time, and how many may wait.

        on_result is called with written, retried, failed or dropped for each value that came that far.
        """
        self._write = write
        self._in_flight = in_flight
        self._capacity = capacity
        self._on_result = on_result
        self._waiting: dict[Key, V] = {}
        self._busy: set[Key] = set()
        self._held: dict[Key, V] = {}
        """Values whose key is being written right now."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0
        """Tasks that will look at what waits once more before they end."""
        self._failures = 0

    def __len__(self) -> int:
        """Return how many keys are not written yet."""
        return len(self._waiting) + len(self._held.keys() | self._busy)

    def offer(self, key: Key, value: V) -> bool:
        """Have this value written soon; False: there are too many, it was dropped."""
        if key in self._busy:
            self._held[key] = value
            return True
        if key not in self._waiting and len(self._waiting) >= self._capacity:
            self._on_result("dropped")
            return False
        self._waiting[key] = value
        if self._working < self._in_flight:
            self._working += 1
            task = asyncio.get_running_loop().create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    def __contains__(self, key: Key) -> bool:
        """Tell whether a value of this key waits or is being written."""
        return key in self._waiting or key in self._busy

    async def close(self, drain_seconds: float) -> int:
        """Write what waits for so long at most, then stop; return how many keys were left unwritten."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=drain_seconds)
        left = len(self)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return left

    async def _work(self) -> None:
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                await self._take(key, self._waiting.pop(key))
        finally:
            self._working -= 1

    async def _take(self, key: Key, value: V) -> None:
        self._busy.add(key)
        try:
            await self._try(key, value)
        finally:
            self._busy.discard(key)
            if key in self._held:
                self._waiting[key] = self._held.pop(key)

    async def _try(self, key: Key, value: V) -> None:
        try:
            await self._write(key, value)
        except (StoreUnavailable, Conflict) as error:
            self._held.setdefault(key, value)
            self._on_result("retried")
            await self._pause(error)
        except FleetbeatError as error:
            self._on_result("failed")
            _log.warning("a reported change cannot be written", key=key, error=str(error))
        except Exception:  # noqa: BLE001 - one bad report must not stop all others
            self._on_result("failed")
            _log.exception("a reported change hit a defect", key=key)
        else:
            self._failures = 0
            self._on_result("written")

    async def _pause(self, error: FleetbeatError) -> None:
        if self._failures == 0:
            _log.warning("reported changes wait", error=str(error), waiting=len(self))
        self._failures += 1
        longest = min(_LONGEST_PAUSE_SECONDS, _PAUSE_SECONDS * 2 ** min(self._failures, 10))
        await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - jitter, not a secret
