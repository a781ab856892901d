"""A copy of some tables in memory: listed once, then kept current by a watch.

* All tables are listed at one revision and the watch starts at the next, so that the copy is
  at any time what etcd held at `revision`. Changes are taken a whole revision at a time.
* When etcd has forgotten the history that the watch needs, everything is listed again.
* Only what changed is decoded. A value that cannot be decoded is logged, counted and
  skipped: the last good record stays, because "absent" must be the word of etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import structlog

from scheduler.domain.errors import StoreUnavailable
from scheduler.domain.record import Record
from scheduler.store.decode import CorruptRecord, decode
from scheduler.store.keys import CLUSTER, CLUSTER_ID, Table
from scheduler.store.kv import KV, Batch, Compacted, EtcdApi, Event
from scheduler.store.write import Ref, Versioned, View

T = TypeVar("T", bound=Record)

_RETRY_SECONDS = 0.1
_RETRY_CAP_SECONDS = 2.0
_SLICE = 500
"""Records decoded or compared in one go before other tasks get their turn: some 10 ms."""
_CHECK_AFTER_SECONDS = 3.0
"""Without a sign of life for so long the connection was interrupted."""
_WAITERS = 1000
"""Beyond so many, those that have given up are sorted out at each new one."""

log = structlog.get_logger(__name__)


class Change(NamedTuple):
    """One record that changed. `after.record` None: it is gone; `before` None: it was not there."""

    table: Table[Any]
    id: str
    before: Versioned[Any] | None
    after: Versioned[Any]


Listener = Callable[[Sequence[Change]], None]


@dataclass(frozen=True, slots=True)
class Freshness:
    """How far the cache can be trusted."""

    synced: bool
    """It holds everything of one revision, and a watch goes on from there."""
    age_seconds: float
    """Time since it was last known to be current; infinite before the first list."""


class Cache:
    """Records of some tables by id. Use it from one event loop."""

    def __init__(self, etcd: EtcdApi, tables: Sequence[Table[Any]]) -> None:
        """Take the client and what to mirror."""
        self.revision = 0
        """The store revision that the contents are of."""
        self.undecodable = 0
        """Values skipped so far because they were no record of their table."""
        self.rewinds = 0
        """How often the store turned out to have been set back."""
        self.failures = 0
        """Errors so far of listeners, and of the cache itself."""
        self._etcd = etcd
        self._tables = tuple(tables)
        self._records: dict[Table[Any], dict[str, Versioned[Any]]] = {table: {} for table in tables}
        self._corrupt: set[str] = set()
        self._listeners: list[Listener] = []
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._waiter_ids = itertools.count()
        self._synced = asyncio.Event()
        self._is_doubted = False
        self._current_at = float("-inf")
        self._task: asyncio.Task[None] | None = None

    # For readers

    def get(self, table: Table[T], identifier: str) -> Versioned[T]:
        """Return a record; an absent one has record None and revision 0. KeyError: the table is not mirrored."""
        return self._records[table].get(identifier) or Versioned(identifier, None)

    def all(self, table: Table[T]) -> Mapping[str, Versioned[T]]:
        """Return a live view of a table by id: do not await while you iterate over it."""
        return MappingProxyType(self._records[table])

    def mirrors(self, table: Table[Any]) -> bool:
        """Tell whether this table is one of the cache's."""
        return table in self._records

    def view(self, refs: Iterable[Ref[Any]]) -> View | None:
        """Return these records at the cache's revision; None when it cannot vouch for them all."""
        refs = list(refs)
        if not self._synced.is_set() or any(not self.mirrors(r.table) or r.key in self._corrupt for r in refs):
            return None
        return View(self.revision, {ref.key: self.get(ref.table, ref.id) for ref in refs})

    def freshness(self) -> Freshness:
        """Tell how far the contents can be trusted now."""
        return Freshness(self._synced.is_set(), time.monotonic() - self._current_at)

    def subscribe(self, listener: Listener) -> None:
        """Have a function called with the changes of each revision, after they are in the cache.

        It is called at once with all that is there, if anything. It must be quick and must not raise.
        """
        self._listeners.append(listener)
        present = [Change(t, i, None, record) for t, records in self._records.items() for i, record in records.items()]
        if present:
            self._tell([listener], present)

    async def wait_revision(self, revision: int, timeout_seconds: float) -> None:
        """Wait until the cache shows this revision, in which a record of its tables changed.

        Raises StoreUnavailable after timeout_seconds.
        """
        if revision <= self.revision:
            return
        future = asyncio.get_running_loop().create_future()
        if len(self._waiters) >= _WAITERS:
            self._waiters = [waiter for waiter in self._waiters if not waiter[2].done()]
            heapq.heapify(self._waiters)
        heapq.heappush(self._waiters, (revision, next(self._waiter_ids), future))
        try:
            async with asyncio.timeout(timeout_seconds):
                await future
        except TimeoutError:
            raise StoreUnavailable(
                f"the cache is at revision {self.revision}, not yet at {revision}, after {timeout_seconds:g} s"
            ) from None

    async def ready(self, timeout_seconds: float) -> None:
        """Wait for the first list. Raises StoreUnavailable after timeout_seconds."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._synced.wait()
        except TimeoutError:
            raise StoreUnavailable(f"etcd did not answer a first list within {timeout_seconds:g} s") from None

    def doubt(self) -> None:
        """Have everything listed again with the watch's next sign of life, some seconds from now at most."""
        self._is_doubted = True

    # Upkeep

    async def start(self) -> None:
        """Begin to list and watch in the background; go on until closed, whatever etcd does."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="etcd cache")

    async def close(self) -> None:
        """Stop; the contents stay and grow old."""
        self._synced.clear()
        if self._task:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        pause = _RETRY_SECONDS
        while True:
            try:
                await self._list()
                pause = _RETRY_SECONDS
                await self._follow()
            except Compacted as error:
                log.info("etcd history is gone, listing again", revision=self.revision, error=str(error))
            except StoreUnavailable as error:
                log.warning("etcd cannot be listed", error=str(error))
            except Exception:
                self.failures += 1
                log.exception("the cache failed, listing again")
            self._synced.clear()
            await asyncio.sleep(pause)
            pause = min(_RETRY_CAP_SECONDS, pause * 2)

    async def _list(self) -> None:
        asked_at = time.monotonic()
        revision, listed = 0, []
        for table in self._tables:
            found, revision = await self._etcd.scan(table.scope, revision=revision)
            listed.append((table, found))
        rewound = revision < self.revision
        corrupt: set[str] = set()
        changes: list[Change] = []
        pictures = [(table, await self._decode(table, found, rewound, corrupt, changes)) for table, found in listed]
        # Other tasks ran while we decoded. From here on they must see the new picture, and all of it.
        for table, records in pictures:
            held = self._records[table]
            gone = [held[identifier] for identifier in held.keys() - records.keys()]
            changes += [Change(table, record.id, record, Versioned(record.id, None)) for record in gone]
            held.clear()
            held.update(records)
        self._corrupt = corrupt
        self.rewinds += rewound
        self._current_at = asked_at
        self._synced.set()
        self._arrive(revision, changes)

    async def _decode(
        self, table: Table[Any], found: Sequence[KV], rewound: bool, corrupt: set[str], changes: list[Change]
    ) -> dict[str, Versioned[Any]]:
        """Decode a listed table, with turns for other tasks; add what differs from what we hold to the changes."""
        records: dict[str, Versioned[Any]] = {}
        held = self._records[table]
        for index, kv in enumerate(found):
            if index % _SLICE == 0:
                await asyncio.sleep(0)
            if not table.owns(kv.key):
                continue
            before = held.get(table.id_of(kv.key))
            # Revisions of a store that was set back may mean something else now: decode all.
            record = self._decoded(table, kv, None if rewound else before, corrupt)
            if record is None:
                continue
            records[record.id] = record
            if record is not before:
                changes.append(Change(table, record.id, before, record))
        return records

    async def _follow(self) -> None:
        watch = self._etcd.watch([table.scope for table in self._tables], self.revision + 1)
        async with contextlib.aclosing(watch) as batches:
            async for batch in batches:
                if self._is_doubted:
                    self._is_doubted = False
                    raise Compacted("the contents are in doubt")
                if time.monotonic() - self._current_at > _CHECK_AFTER_SECONDS:
                    await self._check_same_store()
                if batch.events:
                    self._apply(batch)
                if batch.current:
                    self._current_at = time.monotonic()

    async def _check_same_store(self) -> None:
        """After an interruption make sure that etcd was not wiped meanwhile, and has got new revisions since.

        The revisions would look as if nothing had been missed; the record of the cluster tells.
        """
        if not self.mirrors(CLUSTER):
            return
        found, _ = await self._etcd.get(CLUSTER.key(CLUSTER_ID))
        known = self.get(CLUSTER, CLUSTER_ID)
        # In another etcd the record may be at the same revision: both were put first.
        now = decode(CLUSTER, CLUSTER_ID, found)
        if (now.mod_revision, now.record) != (known.mod_revision, known.record):
            raise Compacted("the record of the cluster is another: etcd may have been wiped or restored")

    def _apply(self, batch: Batch) -> None:
        changes = []
        for event in batch.events:
            for table in self._tables:
                if table.owns(event.key):
                    changes += self._changed(table, event)
        self._arrive(batch.revision, changes)

    def _changed(self, table: Table[Any], event: Event) -> list[Change]:
        identifier = table.id_of(event.key)
        records = self._records[table]
        before = records.get(identifier)
        self._corrupt.discard(event.key)
        if event.value is None:
            records.pop(identifier, None)
            return [Change(table, identifier, before, Versioned(identifier, None))] if before else []
        after = self._decoded(table, event, before, self._corrupt)
        if after is None or after is before:
            return []
        records[identifier] = after
        return [Change(table, identifier, before, after)]

    def _decoded(
        self, table: Table[Any], kv: KV | Event, known: Versioned[Any] | None, corrupt: set[str]
    ) -> Versioned[Any] | None:
        """Decode a value, unless it is the one we know; return the known one when it is none of the table."""
        if known and known.mod_revision == kv.mod_revision:
            return known
        try:
            return decode(table, table.id_of(kv.key), kv)
        except CorruptRecord as error:
            self.undecodable += 1
            corrupt.add(kv.key)
            log.error("a value in etcd was skipped", error=str(error))  # noqa: TRY400 - the message says it all
            return known

    def _arrive(self, revision: int, changes: Sequence[Change]) -> None:
        self.revision = revision
        if changes:
            self._tell(self._listeners, changes)
        while self._waiters and self._waiters[0][0] <= revision:
            future = heapq.heappop(self._waiters)[2]
            if not future.done():
                future.set_result(None)

    def _tell(self, listeners: Sequence[Listener], changes: Sequence[Change]) -> None:
        for listener in listeners:
            try:
                listener(changes)
            except Exception:
                self.failures += 1
                log.exception("a listener of the cache failed")
