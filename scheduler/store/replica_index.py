"""Which workloads have, or are to have, further copies: kept current by the cache's changes."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.convergence.replicas import Change, What, changes, paced
from scheduler.domain.groups import Groups
from scheduler.domain.replicas import FIRST_NUMBER, replica_id
from scheduler.domain.workload import WorkloadSpec
from scheduler.store import cache as caches
from scheduler.store.keys import LEGACY, SPECS, STATUSES


class ReplicaIndex:
    """Copies by the workload that they are of. For one event loop."""

    def __init__(self, cache: caches.Cache) -> None:
        """Follow this cache, which must mirror specs and statuses."""
        self._cache = cache
        self._parent_of: dict[str, str] = {}
        self._copies = Groups()
        self._scaled: set[str] = set()
        """Workloads that want more than one copy."""
        cache.subscribe(self._take)

    def replicated(self) -> list[str]:
        """Return the workloads that want further copies, or of which there are any, in order."""
        return sorted(self._scaled.union(self._copies.names()))

    def copies_of(self, workload_id: str) -> list[str]:
        """Return the further copies that there are of a workload, also those that are being removed."""
        return sorted(self._copies.get(workload_id))

    def due(self, workload_id: str, parent: WorkloadSpec | None) -> list[Change]:
        """Return what the copies of a workload need now, as far as the cache tells; the rest waits for its turn.

        parent: the workload's own record, when it is known better than the cache has it.
        """
        ids = set(self._copies.get(workload_id))
        if parent:
            ids |= {replica_id(workload_id, number) for number in range(FIRST_NUMBER, parent.replicas + 1)}
        copies = {i: spec for i in ids if (spec := self._cache.get(SPECS, i).record)}
        found = [change for change in changes(parent, copies) if not self._is_taken(change)]
        if not found:
            return []
        statuses = {i: self._cache.get(STATUSES, i).record for i in (workload_id, *copies)}
        return paced(parent, found, copies, statuses)

    def _is_taken(self, change: Change) -> bool:
        """Whether a workload of another scheduler's has the id of a copy to create: it is left to its takeover."""
        if change.what is not What.CREATE or not self._cache.mirrors(LEGACY):
            return False
        return self._cache.get(LEGACY, change.id).record is not None

    def _take(self, records: Sequence[caches.Change]) -> None:
        for change in records:
            if change.table is not SPECS:
                continue
            spec = change.after.record
            if spec is not None and spec.replicas > 1:
                self._scaled.add(change.id)
            else:
                self._scaled.discard(change.id)
            self._put(change.id, spec.replica_of if spec is not None else "")

    def _put(self, copy: str, parent: str) -> None:
        before = self._parent_of.pop(copy, "")
        if before and before != parent:
            self._copies.remove(before, copy)
        if parent:
            self._parent_of[copy] = parent
            self._copies.add(parent, copy)
