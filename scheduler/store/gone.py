"""Which workloads lost a record, and when: absence alone does not tell whether it is older than a report."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from scheduler.store.cache import Cache, Change
from scheduler.store.keys import SPECS, STATUSES, TOMBSTONES
from scheduler.store.tombstones import split_tombstone_id

MAX_REMEMBERED = 10_000
"""Some seconds of removals are asked about; this is more than any cluster removes in them."""


class Gone:
    """Remembers at which revision a spec, a status or a tombstone of a workload went last. For one event loop."""

    def __init__(self, cache: Cache, *, most: int = MAX_REMEMBERED) -> None:
        """Follow this cache, which must mirror specs, statuses and tombstones."""
        self._cache = cache
        self._most = most
        self._at: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        """The newest revision that was forgotten: whoever asks about older ones is told yes."""
        cache.subscribe(self._take)

    def since(self, workload_id: str, revision: int) -> bool:
        """Tell whether a record of this workload may have gone after this revision of the cache."""
        return self._at.get(workload_id, self._forgotten) > revision

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after.record is not None:
                continue
            if change.table is SPECS or change.table is STATUSES:
                self._note(change.id)
            elif change.table is TOMBSTONES:
                self._note(split_tombstone_id(change.id)[1])

    def _note(self, workload_id: str) -> None:
        self._at[workload_id] = self._cache.revision
        self._at.move_to_end(workload_id)
        if len(self._at) > self._most:
            self._forgotten = max(self._forgotten, self._at.popitem(last=False)[1])
