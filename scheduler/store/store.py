"""Reading and writing records: the write path of write.py over an etcd client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from scheduler.domain.errors import Conflict, WrongCluster
from scheduler.domain.record import Record
from scheduler.store.cache import Cache
from scheduler.store.keys import Table
from scheduler.store.kv import MAX_TXN_OPERATIONS, EtcdApi
from scheduler.store.transact import Committed, Run, view_of
from scheduler.store.write import Guard, Ref, Uncovered, Versioned, View, Write

R = TypeVar("R")
T = TypeVar("T", bound=Record)

_GROWTHS = 8
"""How often a decision may ask for more records before others have changed them under it too often."""


class Store:
    """Reads and writes records. Safe for any number of tasks of one loop."""

    def __init__(self, etcd: EtcdApi, *, cache: Cache | None = None) -> None:
        """Take the client, and the cache that `from_cache` may use."""
        self.etcd = etcd
        self.cache = cache
        self._last_revision = 0
        self._rewinds = 0
        """Of the cache, when the last revision was noted: in a store that was set back it means nothing."""
        self.epoch_base = 0
        """Of the cluster that this etcd holds; decisions find it in their view."""
        self.refused: WrongCluster | None = None
        """Set once this etcd turned out to hold another cluster: nothing is read or written any more."""
        self.on_refused: Callable[[WrongCluster], None] = lambda _why: None
        self.writes: Counter[str] = Counter()
        """Keys written, by table prefix."""
        self.conflicts: Counter[str] = Counter()
        """Records that had changed under a decision, by table prefix."""
        self.on_write: Callable[[str], None] = lambda _category: None
        self.on_conflict: Callable[[str], None] = lambda _category: None

    @property
    def last_revision(self) -> int:
        """The newest revision that this store wrote to a record of its cache (to any, without a cache).

        `await cache.wait_revision(store.last_revision, …)` makes the cache show what was written.
        """
        return self._last_revision if self.cache is None or self._rewinds == self.cache.rewinds else 0

    def _note(self, revision: int) -> None:
        self._last_revision = max(self.last_revision, revision)
        self._rewinds = self.cache.rewinds if self.cache else 0

    def refuse(self, why: WrongCluster) -> None:
        """Read and write nothing from now on: every call raises this."""
        if self.refused is None:
            self.refused = why
            self.on_refused(why)

    def _check(self) -> None:
        if self.refused:
            raise WrongCluster(str(self.refused))

    async def read(self, refs: Sequence[Ref[Any]]) -> View:
        """Read records, all at one revision, linearizably. Raises StoreUnavailable, CorruptRecord, WrongCluster."""
        self._check()
        refs = tuple(dict.fromkeys(refs))
        found, revision = await self.etcd.get_many([ref.key for ref in refs])
        return view_of(refs, found, revision)

    async def get(self, table: Table[T], identifier: str) -> Versioned[T]:
        """Read one record, linearizably. Raises StoreUnavailable, CorruptRecord."""
        return (await self.read([Ref(table, identifier)])).get(table, identifier)

    async def transact(
        self,
        refs: Sequence[Ref[Any]],
        decide: Callable[[View], Write[R]],
        *,
        guards: Sequence[Guard] = (),
        timeout_seconds: float = 5.0,
        from_cache: bool = False,
    ) -> R:
        """Read the records, let `decide` say what to write, and write it if none of them has changed.

        refs: every record that the decision reads or writes; at most 128 together with the guards.
            What it only learns from them it asks for by View.require; then it is called again.
        decide: pure; called again with a fresh view after each conflict. What it raises is
            raised here, but never on the word of the cache alone.
        guards: keys that must not have moved; checked only when there is something to write.
        from_cache: let the first decision rest on the cache. The transaction compares all the
            same; only a decision to write nothing is as old as the cache is.

        Returns the result of the Write that was stored, or that had nothing to store. Raises
        Fenced when a guard fails, Conflict when others kept changing the records until the
        deadline, StoreUnavailable when etcd does not answer and nothing was written,
        UnknownOutcome when it cannot be told whether something was, CorruptRecord.
        """
        for _ in range(_GROWTHS):
            try:
                return await self._run(refs, decide, guards, timeout_seconds, from_cache=from_cache)
            except Uncovered as more:
                refs = (*refs, *more.refs)
        raise Conflict("others kept changing which records this rests on")

    async def _run(
        self,
        refs: Sequence[Ref[Any]],
        decide: Callable[[View], Write[R]],
        guards: Sequence[Guard],
        timeout_seconds: float,
        *,
        from_cache: bool,
    ) -> R:
        self._check()
        refs = tuple(dict.fromkeys(refs))
        _check_size(len(refs) + len(guards))
        cached = self.cache.view(refs) if from_cache and self.cache else None

        def conflicted(before: View, after: View) -> None:
            self._count_conflict(refs, before, after)

        def based(view: View) -> Write[R]:
            self._check()
            view.epoch_base = self.epoch_base
            return decide(view)

        run = Run(self.etcd, refs, based, guards=guards, timeout_seconds=timeout_seconds, on_conflict=conflicted)
        committed = await run.start(cached)
        self._count_writes(refs, committed)
        return committed.result

    def wrote(self, prefix: str) -> None:
        """Count a key under this prefix as written; for the few that no transaction of this store writes."""
        self.writes[prefix] += 1
        self.on_write(prefix)

    def _count_writes(self, refs: Sequence[Ref[Any]], committed: Committed[Any]) -> None:
        for ref in refs:
            if ref.key not in committed.changes:
                continue
            self.wrote(ref.table.prefix)
            if self.cache is None or self.cache.mirrors(ref.table):
                self._note(committed.revision)

    def _count_conflict(self, refs: Sequence[Ref[Any]], before: View, after: View) -> None:
        for ref in refs:
            if before.at(ref.key).mod_revision != after.at(ref.key).mod_revision:
                self.conflicts[ref.table.prefix] += 1
                self.on_conflict(ref.table.prefix)


def _check_size(count: int) -> None:
    if count > MAX_TXN_OPERATIONS:
        raise ValueError(
            f"a transaction over {count} records and guards: etcd takes {MAX_TXN_OPERATIONS}; split the batch"
        )
