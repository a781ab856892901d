"""What a front does about pulses while Redis is away: a third of a node's lease apart, it writes them to etcd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.pulses import PulseWriter
from scheduler.telemetry.spare_pulses import WRITES_PER_LEASE

_TICKS_PER_PERIOD = 4
_LONGEST_TICK_SECONDS = 1.0

_log = structlog.get_logger("scheduler.front.spare_pulses")


class SparePulses:
    """Writes for one front, only while it has been without Redis for a period."""

    def __init__(
        self,
        writer: PulseWriter,
        *,
        lease_seconds: float,
        ages: Callable[[], Mapping[str, float]],
        is_needed: Callable[[], bool],
        listening: Callable[[], bool],
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Take who writes, and who knows: what was heard since Redis went, whether it is away, whether we listen."""
        self._writer = writer
        self._period = lease_seconds / WRITES_PER_LEASE
        self._ages = ages
        self._is_needed = is_needed
        self._listening = listening
        self._on_written = on_written
        self._since: float | None = None
        """When it began to listen without a gap, and to write."""
        self._looked_at = time.monotonic()
        self._wrote_at = float("-inf")
        self._is_failing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look whether it is needed."""
        self._task = asyncio.create_task(self._run(), name="spare pulses")

    async def close(self) -> None:
        """Stop, and take away what was written: this front listens no more."""
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self._end()

    async def look(self) -> None:
        """Write if it is due, or end it."""
        now = time.monotonic()
        paused, self._looked_at = now - self._looked_at > self._period, now
        if not self._is_needed():
            self._since = None
            await self._end()
            return
        if not self._listening():
            self._since = None
        elif self._since is None or paused:
            self._since = now
        if now - self._wrote_at >= self._period:
            await self._write(now)

    async def _write(self, now: float) -> None:
        try:
            await self._writer.write(self._ages(), listening_seconds=None if self._since is None else now - self._since)
        except StoreUnavailable as error:
            if not self._is_failing:
                _log.warning("neither Redis nor etcd takes pulses", error=str(error))
            self._is_failing = True
            return
        if self._is_failing or self._wrote_at == float("-inf"):
            _log.info("pulses go to etcd while Redis is away", every_seconds=self._period)
        self._is_failing = False
        self._wrote_at = now
        self._on_written()

    async def _end(self) -> None:
        self._wrote_at = float("-inf")
        if not self._writer.has_written:
            return
        try:
            await self._writer.end()
            _log.info("pulses go to Redis again")
        except StoreUnavailable as error:
            _log.info("pulses in etcd go with their lease", error=str(error))

    async def _run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(min(_LONGEST_TICK_SECONDS, self._period / _TICKS_PER_PERIOD))
