"""Which workloads still have records of the reference scheduler's.

Kept current by the cache's changes: where nothing is left to take over, a cycle only finds it empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from scheduler.domain.legacy import is_foreign
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import LEGACY, SPECS, STATUSES

LEFT_FOR = timedelta(seconds=60)
"""How long a workload that could not be taken over is left alone, unless its records change."""
_MAX_TOLD = 10_000
"""Reasons remembered so that each is told once."""


class ForeignIndex:
    """The workloads that have records of the reference scheduler's. For one event loop."""

    def __init__(self, cache: Cache) -> None:
        """Follow this cache, which must mirror specs, statuses and whole records."""
        self._cache = cache
        self._ids: set[str] = set()
        self._left: dict[str, tuple[tuple[int, ...], datetime]] = {}
        """Those that could not be taken over: the revisions of their records then, and when to try again."""
        self._told: set[str] = set()
        cache.subscribe(self._take)

    def waiting(self, now: datetime) -> list[str]:
        """Return the workloads to take over, in order; not those that could not be a moment ago."""
        return sorted(w for w in self._ids if not self._is_left(w, now))

    def __contains__(self, workload_id: str) -> bool:
        """Tell whether a workload has such a record."""
        return workload_id in self._ids

    def is_not_ours(self, workload_id: str) -> bool:
        """Tell whether a workload has such records only."""
        spec = self._cache.get(SPECS, workload_id).record
        return workload_id in self._ids and (spec is None or is_foreign(spec))

    def leave(self, workload_id: str, why: str, now: datetime) -> bool:
        """Note that a workload cannot be taken over as its records are; return whether this was not said yet."""
        self._left[workload_id] = self._revisions(workload_id), now + LEFT_FOR
        if why in self._told or len(self._told) >= _MAX_TOLD:
            return False
        self._told.add(why)
        return True

    def _is_left(self, workload_id: str, now: datetime) -> bool:
        revisions, until = self._left.get(workload_id, ((), now))
        return now < until and revisions == self._revisions(workload_id)

    def _revisions(self, workload_id: str) -> tuple[int, ...]:
        get = self._cache.get
        return (
            get(SPECS, workload_id).mod_revision,
            get(STATUSES, workload_id).mod_revision,
            get(LEGACY, workload_id).mod_revision,
        )

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table is not SPECS and change.table is not LEGACY:
                continue
            spec = self._cache.get(SPECS, change.id).record
            if (spec and is_foreign(spec)) or self._cache.get(LEGACY, change.id).record:
                self._ids.add(change.id)
            elif change.id in self._ids:
                self._ids.discard(change.id)
                self._left.pop(change.id, None)
