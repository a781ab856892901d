"""A lease that its holder can trust: it counts as lost before etcd could have ended it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.kv import EtcdApi

_RENEWALS_PER_TTL = 3
_RETRY_SECONDS = 0.1

log = structlog.get_logger(__name__)


def _boot_clock() -> float:
    """Monotonic seconds that also pass while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_default_clock: Callable[[], float] = _boot_clock if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class Lease:
    """A lease, renewed in the background until it is revoked, closed or lost.

    Once lost it stays lost: whatever rested on it needs a new one.
    """

    def __init__(self, etcd: EtcdApi, ttl_seconds: int, *, clock: Callable[[], float] = _default_clock) -> None:
        """Take the client and the time to live; `clock` is monotonic seconds."""
        self.id = 0
        self.lost = asyncio.Event()
        self.ttl_seconds = ttl_seconds
        self._etcd = etcd
        self._clock = clock
        self._deadline = 0.0
        self._over = False
        self._task: asyncio.Task[None] | None = None

    def valid(self) -> bool:
        """Tell whether the lease surely lives: before each protected write. Any thread may ask.

        The deadline is the time to live after the last renewal that succeeded was *sent*.
        """
        if self._over or not self.id or self._clock() >= self._deadline:
            self._over = self.id != 0
            return False
        return True

    def remaining_seconds(self) -> float:
        """Return how long it surely still lives; 0 when it is lost."""
        return max(0.0, self._deadline - self._clock()) if self.valid() else 0.0

    async def start(self) -> None:
        """Get the lease and keep it alive. Raises StoreUnavailable."""
        sent = self._clock()
        self.id = await self._etcd.grant(self.ttl_seconds)
        self._deadline = sent + self.ttl_seconds
        self._task = asyncio.create_task(self._keep(), name=f"lease {self.id:x}")

    async def revoke(self) -> None:
        """End the lease and its keys now. It counts as lost even when etcd cannot be told (StoreUnavailable)."""
        await self.close()
        if self.id:
            await self._etcd.revoke(self.id)

    async def close(self) -> None:
        """Stop renewing; etcd ends the lease in its time. For us it is lost at once."""
        self._lose()
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _keep(self) -> None:
        try:
            wait = self.ttl_seconds / _RENEWALS_PER_TTL
            while self.valid():
                await asyncio.sleep(min(wait, self.remaining_seconds()))
                wait = await self._renew() if self.valid() else 0.0
        finally:
            self._lose()

    async def _renew(self) -> float:
        """Renew once; return how long to wait until the next time."""
        sent = self._clock()
        try:
            async with asyncio.timeout(self.remaining_seconds()):
                answered_ttl = await self._etcd.keepalive(self.id)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("lease not renewed", lease=f"{self.id:x}", left=self.remaining_seconds(), error=repr(error))
            return _RETRY_SECONDS
        if answered_ttl <= 0:
            log.warning("etcd has ended the lease", lease=f"{self.id:x}")
            self._lose()
        elif self.valid():
            self._deadline = sent + min(answered_ttl, self.ttl_seconds)
        return self.ttl_seconds / _RENEWALS_PER_TTL

    def _lose(self) -> None:
        self._over = True
        self.lost.set()


class RollingLease:
    """Leases for records that are to live for about the same time: one for many of them, and never renewed.

    What is bound to it lives at least for the time given, and an eighth longer at most.
    """

    def __init__(
        self, etcd: EtcdApi, ttl_seconds: int, most: int, *, clock: Callable[[], float] = _default_clock
    ) -> None:
        """Take the client, the time to live, and how many records may be bound to one lease."""
        self._etcd = etcd
        self._ttl_seconds = ttl_seconds
        self._most = most
        self._clock = clock
        self._id = 0
        self._used = 0
        self._until = 0.0
        self._turn = asyncio.Lock()

    async def take(self) -> int:
        """Return a lease for one record; 0 when there are too many records of late. Raises StoreUnavailable."""
        async with self._turn:
            if not self._id or self._clock() >= self._until:
                rest = max(1, self._ttl_seconds // 8)
                begun = self._clock()
                self._id = await self._etcd.grant(self._ttl_seconds + rest)
                self._until, self._used = begun + rest, 0
            if self._used >= self._most:
                return 0
            self._used += 1
            return self._id

    def forget(self, lease: int) -> None:
        """Take a new lease next time: etcd does not know this one any more."""
        if self._id == lease:
            self._id = 0
