"""One run of the write path: attempts until one commits, the deadline passes or a guard fails.

Why a write is never lost and never applied twice:

* A transaction compares the mod revision of every record that the decision was shown, so it
  commits only if none of them changed in between. A failed compare writes nothing.
* When the answer to a transaction is lost, it may have been applied, may be applied later
  (a paused server goes on, a proposal is still on its way), or never. It is kept as
  *doubtful*. Because of its compares it can only be the first change of its records after
  the read it rested on. So while one of them is unchanged it has not been applied, and the
  next transaction over the same records and it exclude each other; and once all have
  changed, the first change after that read, in etcd's history, says whether it was ours.

Two limits. A record that was absent, that we created, and that another deleted again before we
looked, counts as unchanged. And a write is known as ours by its bytes: two writers that were
shown the same view and write the same bytes count as one when an answer is lost. A decision
whose result must be claimed once has to put who claims it into the record.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scheduler.domain.errors import Conflict, Fenced, FleetbeatError, StoreUnavailable
from scheduler.store.decode import decode
from scheduler.store.kv import KV, Compacted, Delete, EtcdApi, Get, Operation, Put, UnknownOutcome, mod_is
from scheduler.store.write import Guard, Ref, Uncovered, Versioned, View, Write

R = TypeVar("R")

_BACKOFF_SECONDS = 0.005
_BACKOFF_CAP_SECONDS = 0.25
_HISTORY_SECONDS = 3.0
_NAMED_IN_MESSAGE = 3

Changes = dict[str, bytes | None]
"""New values by key; None: delete."""


@dataclass(frozen=True)
class Committed(Generic[R]):
    """How a run ended: the decision's result, what was written, and at which revision (0: nothing)."""

    result: R
    changes: Changes = field(default_factory=dict)
    revision: int = 0


@dataclass(frozen=True)
class _Attempt(Generic[R]):
    view: View
    write: Write[R]
    changes: Changes


@dataclass(frozen=True)
class _Look:
    """What is stored now: the records, and a guard that does not hold any more."""

    view: View
    found: Mapping[str, KV]
    broken: Guard | None


class Run(Generic[R]):
    """The attempts of one call of Store.transact."""

    def __init__(
        self,
        etcd: EtcdApi,
        refs: Sequence[Ref[Any]],
        decide: Callable[[View], Write[R]],
        *,
        guards: Sequence[Guard],
        timeout_seconds: float,
        on_conflict: Callable[[View, View], None],
    ) -> None:
        """Take what Store.transact was given."""
        self._etcd = etcd
        self._refs = refs
        self._decide = decide
        self._guards = guards
        self._deadline = time.monotonic() + timeout_seconds
        self._on_conflict = on_conflict
        self._doubtful: list[_Attempt[R]] = []
        self._rounds = 0

    async def start(self, cached: View | None) -> Committed[R]:
        """Run; the first decision rests on the cached view when there is one."""
        if cached is None:
            return await self._start_fresh()
        try:
            write = self._decide(cached)
        except FleetbeatError:
            # "Not found", "refused" and the like are told only on the word of etcd itself.
            return await self._start_fresh()
        return await self._go(cached, write)

    async def _start_fresh(self) -> Committed[R]:
        view = (await self._look(None)).view
        return await self._go(view, self._decide(view))

    async def _go(self, view: View, write: Write[R]) -> Committed[R]:
        try:
            while True:
                attempt = _Attempt(view, write, changes_of(view, write))
                if not attempt.changes:
                    return Committed(write.result)
                done = await self._try(attempt)
                if isinstance(done, _Look):
                    done = await self._go_on(attempt, done)
                if isinstance(done, Committed):
                    return done
                view = done.view
                write = self._decide(view)
        except Uncovered as error:
            if self._doubtful:  # whoever begins anew with more records would not know of it
                raise UnknownOutcome("a write may or may not have been applied") from error
            raise
        except StoreUnavailable as error:
            if self._doubtful and not isinstance(error, UnknownOutcome):
                raise UnknownOutcome(f"a write may or may not have been applied: {error}") from error
            raise

    async def _try(self, attempt: _Attempt[R]) -> Committed[R] | _Look:
        """Send one transaction; return how it ended, or what is stored when it did not commit."""
        compares = [mod_is(ref.key, attempt.view.at(ref.key).mod_revision) for ref in self._refs]
        compares += [mod_is(guard.key, guard.mod_revision) for guard in self._guards]
        leases = attempt.write.leases
        then: list[Operation] = [
            Delete(k) if v is None else Put(k, v, leases.get(k, 0)) for k, v in attempt.changes.items()
        ]
        keys = [compare.key for compare in compares]
        try:
            result = await self._etcd.txn(compares, then, [Get(key) for key in keys])
        except UnknownOutcome:
            self._doubtful.append(attempt)
            return await self._look(attempt.view)
        if result.succeeded:
            return Committed(attempt.write.result, attempt.changes, result.revision)
        found = {kv.key: kv for kv in result.responses if kv}
        return self._looked(found, result.revision, attempt.view)

    async def _go_on(self, attempt: _Attempt[R], look: _Look) -> Committed[R] | _Look:
        """After an attempt that did not commit: end, or return what the next decision rests on."""
        settled = await self._settle(look)
        if settled:
            return settled
        self._raise_if_over(attempt, look)
        if attempt not in self._doubtful:
            self._on_conflict(attempt.view, look.view)
        self._rounds += 1
        if self._rounds == 1:
            return look
        limit = min(_BACKOFF_CAP_SECONDS, _BACKOFF_SECONDS * 2 ** min(self._rounds, 10))
        await asyncio.sleep(random.uniform(0, limit))  # noqa: S311 - jitter, not a secret
        look = await self._look(look.view)
        return await self._settle(look) or look

    def _raise_if_over(self, attempt: _Attempt[R], look: _Look) -> None:
        if look.broken:
            raise Fenced(
                f"{look.broken.key} is at revision {_mod_revision(look.found.get(look.broken.key))}, "
                f"not at {look.broken.mod_revision}: somebody newer has taken over"
            )
        if time.monotonic() < self._deadline:
            return
        if self._doubtful:
            raise UnknownOutcome("a write may or may not have been applied, and the deadline has passed")
        raise Conflict(_conflict_text(attempt.view, look.view))

    async def _look(self, previous: View | None) -> _Look:
        """Read the records and the guards, linearizably."""
        keys = [ref.key for ref in self._refs] + [guard.key for guard in self._guards]
        found, revision = await self._etcd.get_many(list(dict.fromkeys(keys)))
        return self._looked(found, revision, previous)

    def _looked(self, found: Mapping[str, KV], revision: int, previous: View | None) -> _Look:
        broken = (g for g in self._guards if _mod_revision(found.get(g.key)) != g.mod_revision)
        return _Look(view_of(self._refs, found, revision, previous), found, next(broken, None))

    async def _settle(self, look: _Look) -> Committed[R] | None:
        """Find out whether a doubtful attempt was applied; forget those that no longer can be."""
        undecided = []
        for attempt in self._doubtful:
            if any(_mod_revision(look.found.get(k)) == attempt.view.at(k).mod_revision for k in attempt.changes):
                undecided.append(attempt)
                continue
            revision = _revision_if_stored(attempt, look.found) or await self._revision_in_history(attempt)
            if revision:
                return Committed(attempt.write.result, attempt.changes, revision)
        self._doubtful = undecided
        return None

    async def _revision_in_history(self, attempt: _Attempt[R]) -> int:
        """Return the revision at which the attempt was applied; 0 when another's change came first."""
        watch = self._etcd.watch(list(attempt.changes), attempt.view.revision + 1)
        try:
            async with asyncio.timeout(_HISTORY_SECONDS), contextlib.aclosing(watch) as batches:
                async for batch in batches:
                    values = {e.key: e.value for e in batch.events if e.key in attempt.changes}
                    if values:
                        return batch.revision if values == attempt.changes else 0
        except (TimeoutError, Compacted) as error:
            raise UnknownOutcome("a write may have been applied, and etcd's history does not tell") from error
        raise UnknownOutcome


def changes_of(view: View, write: Write[Any]) -> Changes:
    """Return what a write really changes: no put of what is stored, no delete of what is absent.

    Raises ValueError for a key that the decision did not name: it could not be compared.
    """
    changes: Changes = {}
    for key, value in [*write.puts.items(), *((key, None) for key in sorted(write.deletes))]:
        try:
            stored = view.at(key).record
        except KeyError:
            raise ValueError(f"{key} is written but not among the refs of the transaction") from None
        if key in changes:
            raise ValueError(f"{key} is both put and deleted")
        if value != (None if stored is None else stored.to_json()):
            changes[key] = value
    return changes


def view_of(refs: Sequence[Ref[Any]], found: Mapping[str, KV], revision: int, previous: View | None = None) -> View:
    """Decode what was read; a record that is unchanged since the previous view is taken from there."""
    records: dict[str, Versioned[Any]] = {}
    for ref in refs:
        kv = found.get(ref.key)
        before = previous.at(ref.key) if previous else None
        known = before is not None and kv is not None and before.mod_revision == kv.mod_revision
        records[ref.key] = before if before is not None and known else decode(ref.table, ref.id, kv)
    return View(revision, records)


def _mod_revision(kv: KV | None) -> int:
    return kv.mod_revision if kv else 0


def _revision_if_stored(attempt: _Attempt[Any], found: Mapping[str, KV]) -> int:
    """Return the one revision at which all the attempt's changes are stored now; 0 when they are not."""
    for key, value in attempt.changes.items():
        if value != (found[key].value if key in found else None):
            return 0
    revisions = {found[key].mod_revision for key in attempt.changes if key in found}
    return revisions.pop() if len(revisions) == 1 else 0


def _conflict_text(before: View, after: View) -> str:
    moved = [
        f"{key} went from revision {record.mod_revision} to {after.at(key).mod_revision}"
        for key, record in before.items()
        if record.mod_revision != after.at(key).mod_revision
    ]
    more = f" and {len(moved) - _NAMED_IN_MESSAGE} more" if len(moved) > _NAMED_IN_MESSAGE else ""
    return "others kept changing what this rests on: " + ", ".join(moved[:_NAMED_IN_MESSAGE]) + more
