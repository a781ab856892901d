"""Pulses in etcd, for as long as Redis is away: a front writes now and then whom it has heard, workers read along.

No two clocks of different machines are ever compared. A front writes ages by its own monotonic
clock; a reader sets that clock against its own by when changes reach it: the least delay of
the last few pages tells best, and a page that was already there when the reader began tells
only that it is no younger. So a time is taken for later than it was, by the delay at most,
and never for earlier.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.domain.heard import HeardPage
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import PULSES
from scheduler.store.kv import EtcdApi, LeaseNotFound
from scheduler.store.lease import Lease
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

PAGE_NODES = 2_000
"""Of one record: some 80 KB. etcd takes 1.5 MiB."""
_SAMPLES = 16
"""Pages of a front whose delays are remembered: some minutes, in which clocks do not drift apart."""
_NEWS_TO_BE_SET = 2
_LEAST_TTL_SECONDS = 10


class PulseWriter:
    """Writes what one front has heard. Everything goes when the front ends, or has Redis again."""

    def __init__(
        self, store: Store, front_id: str, *, lease_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the store, the front's name, and the lease of a node; `clock` is monotonic seconds."""
        self._store = store
        self._clock = clock
        self._front_id = front_id
        self._ttl = max(_LEAST_TTL_SECONDS, math.ceil(2 * lease_seconds))
        self._run_id = secrets.token_hex(8)
        self._lease: Lease | None = None
        self._pages = 0

    @property
    def has_written(self) -> bool:
        """Whether there are pages of this front that have to go some time."""
        return self._lease is not None

    async def write(self, ages_seconds: Mapping[str, float], *, listening_seconds: float | None) -> None:
        """Write how long ago each node was heard, and how long this front has listened. Raises StoreUnavailable."""
        number = 0
        clock_ms = round(self._clock() * 1000)
        lease = await self._held()
        nodes = sorted(ages_seconds)
        for number, start in enumerate(range(0, len(nodes) or 1, PAGE_NODES)):
            some = tuple(nodes[start : start + PAGE_NODES])
            page = HeardPage(
                run_id=self._run_id,
                clock_ms=clock_ms,
                listening_ms=-1 if listening_seconds is None else round(listening_seconds * 1000),
                nodes=some,
                ages_ms=tuple(max(0, round(ages_seconds[node_id] * 1000)) for node_id in some),
            )
            await self._put(f"{self._front_id}/{number}", page, lease)
        number += 1
        while self._pages > number:
            self._pages -= 1
            await self._delete(f"{self._front_id}/{self._pages}")
        self._pages = number

    async def end(self) -> None:
        """Take all pages away. Raises StoreUnavailable; then they go with the lease."""
        lease, self._lease = self._lease, None
        if lease:
            await lease.revoke()

    async def _held(self) -> int:
        if self._lease is None or not self._lease.valid():
            if self._lease:
                await self._lease.close()
            self._lease = Lease(self._store.etcd, self._ttl)
            await self._lease.start()
        return self._lease.id

    async def _put(self, identifier: str, page: HeardPage, lease: int) -> None:
        def decide(_view: View) -> Write[None]:
            write: Write[None] = Write(None)
            write.put(PULSES, identifier, page, lease=lease)
            return write

        try:
            await self._store.transact([Ref(PULSES, identifier)], decide)
        except LeaseNotFound:
            if self._lease:
                await self._lease.close()
            raise

    async def _delete(self, identifier: str) -> None:
        def decide(view: View) -> Write[None]:
            write: Write[None] = Write(None)
            if view.get(PULSES, identifier).record:
                write.delete(PULSES, identifier)
            return write

        await self._store.transact([Ref(PULSES, identifier)], decide)


@dataclass(slots=True)
class _Clock:
    """How the clock of one run of a front stands to ours."""

    run_id: str
    offsets: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Our seconds at which a page arrived less its own clock, of the last pages."""
    news: int = 0
    """How often pages arrived while this clock was known: as they were written, but for a cut connection."""

    def at(self, clock_ms: int) -> float:
        """Return our monotonic seconds for a time of the front's clock, or a little later."""
        return clock_ms / 1000 + min(self.offsets)


@dataclass(frozen=True, slots=True)
class HeardThere:
    """What fronts have written: when each node was heard, who listened from when to when, in our monotonic seconds."""

    nodes: Mapping[str, float]
    fronts: Mapping[str, tuple[float, float]]


class PulsePages:
    """Follows the pages of all fronts. Without any, it costs one idle watch."""

    def __init__(self, etcd: EtcdApi, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the client; `clock` is monotonic seconds."""
        self._cache = Cache(etcd, (PULSES,))
        self._clock = clock
        self._clocks: dict[str, _Clock] = {}
        self._cache.subscribe(self._take)

    async def start(self) -> None:
        """Begin to follow, in the background."""
        await self._cache.start()

    async def close(self) -> None:
        """Stop."""
        await self._cache.close()

    @property
    def is_current(self) -> bool:
        """Whether what is known is what etcd holds."""
        return self._cache.freshness().synced

    def read(self) -> HeardThere:
        """Return what all fronts have written."""
        nodes: dict[str, float] = {}
        fronts: dict[str, tuple[float, float]] = {}
        for identifier, stored in self._cache.all(PULSES).items():
            front_id, page = identifier.rpartition("/")[0], stored.record
            clock = self._clocks.get(front_id)
            if page is None or clock is None or clock.run_id != page.run_id:
                continue
            at = clock.at(page.clock_ms)
            for node_id, age_ms in zip(page.nodes, page.ages_ms, strict=False):
                nodes[node_id] = max(nodes.get(node_id, float("-inf")), at - age_ms / 1000)
            # Where listening ended must not be taken for later than it was: only a clock that is set proves it.
            if clock.news >= _NEWS_TO_BE_SET and page.listening_ms >= 0:
                earlier = fronts.get(front_id)
                # Pages of one flush are written one by one: what all of them tell counts.
                fronts[front_id] = min(earlier, (at - page.listening_ms / 1000, at), key=_end) if earlier else (
                    at - page.listening_ms / 1000, at
                )  # fmt: skip
        return HeardThere(nodes, fronts)

    def _take(self, changes: Sequence[Change]) -> None:
        now = self._clock()
        known = {front_id: clock.run_id for front_id, clock in self._clocks.items()}
        told: set[str] = set()
        for change in changes:
            page, front_id = change.after.record, change.id.rpartition("/")[0]
            if page is None:
                continue
            clock = self._clocks.get(front_id)
            if clock is None or clock.run_id != page.run_id:
                clock = self._clocks[front_id] = _Clock(page.run_id)
            if known.get(front_id) == page.run_id and front_id not in told:
                clock.news += 1
            told.add(front_id)
            clock.offsets.append(now - page.clock_ms / 1000)
        present = {identifier.rpartition("/")[0] for identifier in self._cache.all(PULSES)}
        for gone in self._clocks.keys() - present:
            del self._clocks[gone]


def _end(stretch: tuple[float, float]) -> float:
    return stretch[1]
