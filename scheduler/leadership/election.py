"""The election of the one beat that sends cycles.

Each candidate puts a key under its own lease; the one with the least create revision leads,
and that revision is its *term*: it grows with each election and is never given twice. A
candidate leads only while its lease surely lives, by its own clock, counted from when the
last successful renewal was sent. So two may never think they lead at once, and one that
slept through its lease knows it the moment it wakes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.keys import LEADER_PREFIX
from scheduler.store.kv import Batch, Compacted, EtcdApi, Put, created_at
from scheduler.store.lease import Lease
from scheduler.store.write import Guard

_LOOK_AGAIN_SECONDS = 5.0
"""A candidate is told of each change; it looks anyway from time to time."""
_PAUSE_SECONDS = 0.2
_RESIGN_SECONDS = 2.0
_MARGIN_SECONDS = 0.25
"""What is sent in the last moment of a lease could arrive after it."""

log = structlog.get_logger(__name__)


def new_instance_id() -> str:
    """Name this process: host name and a random part, new at each start."""
    return f"{socket.gethostname()}-{secrets.token_hex(4)}"


@dataclass(eq=False)
class Leadership:
    """One term of this process. It may be over at any moment: ask `valid` before each act."""

    term: int
    key: str
    lease: Lease
    _over: bool = False

    def valid(self) -> bool:
        """Tell whether this process surely leads right now; once it does not, the term is over. Any thread may ask."""
        self._over = self._over or self.lease.remaining_seconds() <= _MARGIN_SECONDS
        return not self._over

    def sure_seconds(self) -> float:
        """Return how long it surely leads if its lease is not renewed."""
        return max(0.0, self.lease.remaining_seconds() - _MARGIN_SECONDS)

    @property
    def guard(self) -> Guard:
        """What a transaction compares to be refused once the term is over: the key is never put again."""
        return Guard(self.key, self.term)


class Election:
    """Stands for election for as long as it runs, term after term. For one event loop."""

    def __init__(
        self,
        etcd: EtcdApi,
        *,
        instance_id: str,
        lease_seconds: int,
        on_change: Callable[[], None] = lambda: None,
        on_put: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the client, and what to call (in the loop) when leading begins or ends, and when a key was put."""
        self.instance_id = instance_id
        self._etcd = etcd
        self._lease_seconds = lease_seconds
        self._on_change = on_change
        self._on_put = on_put
        self._held: Leadership | None = None
        self._resigned = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def leadership(self) -> Leadership | None:
        """Return the present term, None when this process does not surely lead. Any thread may ask."""
        held = self._held
        return held if held and held.valid() else None

    def start(self) -> None:
        """Begin to stand for election, in the running loop."""
        self._task = asyncio.create_task(self._run(), name="election")

    def resign(self) -> None:
        """End the present term, if there is one, and stand again."""
        self._set(None)
        self._resigned.set()

    async def close(self) -> None:
        """End the present term at once, so that another may lead, and stand no more."""
        self._set(None)
        if self._task:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                await self._stand()
            except StoreUnavailable as error:
                log.warning("cannot stand for election", instance_id=self.instance_id, error=str(error))
            except Exception:  # whatever went wrong: who does not surely lead, does not lead
                log.exception("standing for election failed", instance_id=self.instance_id)
            await asyncio.sleep(_PAUSE_SECONDS * (1 + random.random()))  # noqa: S311 - jitter

    async def _stand(self) -> None:
        """Stand once: from a new lease to its end."""
        self._resigned.clear()
        lease = Lease(self._etcd, self._lease_seconds)
        await lease.start()
        try:
            key = f"{LEADER_PREFIX}{lease.id:x}"
            term = await self._enter(key, lease)
            await self._hold(Leadership(term, key, lease))
        finally:
            self._set(None)
            await self._give_back(lease)

    async def _enter(self, key: str, lease: Lease) -> int:
        entered = await self._etcd.txn([created_at(key, 0)], [Put(key, self.instance_id.encode(), lease.id)])
        if not entered.succeeded:
            raise StoreUnavailable(f"the election key {key} exists already")
        self._on_put()
        return entered.revision

    async def _hold(self, candidate: Leadership) -> None:
        """Lead whenever it is our turn, until the lease or the key is gone or we resign."""
        over = (candidate.lease.lost, self._resigned)
        while candidate.valid() and not any(event.is_set() for event in over):
            try:
                present, revision = await self._etcd.scan(LEADER_PREFIX)
            except StoreUnavailable as error:
                # While the lease surely lives, not to hear from etcd changes nothing.
                log.warning("the election cannot be seen", instance_id=self.instance_id, error=str(error))
                await _first(*over, seconds=_PAUSE_SECONDS)
                continue
            terms = [kv.create_revision for kv in present]
            if candidate.term not in terms:
                log.warning("the election key was deleted", instance_id=self.instance_id, term=candidate.term)
                return
            self._set(candidate if min(terms) == candidate.term else None)
            async with contextlib.aclosing(self._etcd.watch([LEADER_PREFIX], revision + 1)) as changes:
                await _first(*over, seconds=min(_LOOK_AGAIN_SECONDS, candidate.sure_seconds()), changes=changes)

    def _set(self, now: Leadership | None) -> None:
        before, self._held = self._held, now
        if before is now:
            return
        if now:
            log.info("leading", instance_id=self.instance_id, term=now.term)
        elif before:
            log.info("no longer leading", instance_id=self.instance_id, term=before.term)
        self._on_change()

    async def _give_back(self, lease: Lease) -> None:
        try:
            async with asyncio.timeout(_RESIGN_SECONDS):
                await lease.revoke()
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("the lease could not be given back, it will run out", error=str(error))


async def _first(*events: asyncio.Event, seconds: float, changes: AsyncGenerator[Batch, None] | None = None) -> None:
    """Wait for any of the events, for a change in the watch, or for so long."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in events]
    if changes is not None:
        waits.append(asyncio.create_task(_change(changes)))
    try:
        done, _ = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in done:
            wait.result()
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def _change(changes: AsyncGenerator[Batch, None]) -> None:
    with contextlib.suppress(Compacted):  # something changed, and etcd has forgotten what
        async for batch in changes:
            if batch.events:
                return
