"""What the front asks of the cache and the cache cannot answer by id: orders, who is where, counts.

Kept current by the cache's changes, so that no call scans the fleet.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Any

from scheduler.convergence.phase import phase_shown
from scheduler.domain.groups import Groups
from scheduler.domain.legacy import LegacyWorkload, legacy_flaw
from scheduler.domain.workload import Desired, Phase, WorkloadSpec, WorkloadStatus
from scheduler.placement.explain import OTHER, main_filter
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import LEGACY, NODES, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.tombstones import split_tombstone_id
from scheduler.store.write import Versioned

_BULK = 64
"""From so many new ids on, sorting the whole list is quicker than inserting them one by one."""


class SortedIds:
    """Ids in order."""

    def __init__(self) -> None:
        """Start empty."""
        self._ids: list[str] = []

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._ids)

    def __iter__(self) -> Iterator[str]:
        """Go through them in order; they must not change meanwhile."""
        return iter(self._ids)

    def after(self, identifier: str) -> Iterator[str]:
        """Go through those behind this one, which need not be there any more."""
        ids = self._ids
        return (ids[i] for i in range(bisect_right(ids, identifier), len(ids)))

    def update(self, new: Sequence[str], gone: Sequence[str]) -> None:
        """Add and remove ids."""
        for identifier in gone:
            place = bisect_left(self._ids, identifier)
            if place < len(self._ids) and self._ids[place] == identifier:
                del self._ids[place]
        if len(new) >= _BULK:
            self._ids = sorted({*self._ids, *new})
            return
        for identifier in new:
            place = bisect_left(self._ids, identifier)
            if place == len(self._ids) or self._ids[place] != identifier:
                insort(self._ids, identifier)


class FleetIndex:
    """The index of one front."""

    def __init__(self, cache: Cache) -> None:
        """Follow this cache, which must mirror nodes, specs, statuses, whole records and tombstones."""
        self._cache = cache
        self._legacy: dict[str, LegacyWorkload] = {}
        """Workloads that only a whole record of the reference scheduler's tells of: shown as if they were ours."""
        self.node_ids = SortedIds()
        self.workload_ids = SortedIds()
        """Workloads that have a spec, or a whole record of the reference scheduler's."""
        self._on_node = Groups()
        self._unplaced: set[str] = set()
        self.retrying: int = 0
        """Workloads that wait for another try, or are being tried again."""
        self._by_status: Counter[str] = Counter()
        self._by_desired: Counter[str] = Counter()
        self._not_ready: set[str] = set()
        self._owed_for = Groups()
        self._drained: set[str] = set()
        """Nodes that are heard, and are being drained or are drained."""
        cache.subscribe(self._take)

    def spec(self, workload_id: str) -> WorkloadSpec | None:
        """Return the spec to show of a workload."""
        legacy = self._legacy.get(workload_id)
        return legacy.spec if legacy else self._cache.get(SPECS, workload_id).record

    def status(self, workload_id: str) -> WorkloadStatus | None:
        """Return the status to show of a workload."""
        legacy = self._legacy.get(workload_id)
        return legacy.status if legacy else self._cache.get(STATUSES, workload_id).record

    def on_node(self, node_id: str) -> AbstractSet[str]:
        """Return the workloads assigned to a node."""
        return self._on_node.get(node_id)

    def owed_for(self, workload_id: str) -> AbstractSet[str]:
        """Return the nodes that owe the removal of a workload."""
        return self._owed_for.get(workload_id)

    @property
    def busy_nodes(self) -> Iterable[str]:
        """Return the nodes that workloads are assigned to."""
        return self._on_node.names()

    @property
    def unplaced(self) -> Iterable[str]:
        """Return the workloads that have a status and no node."""
        return self._unplaced

    def shown(self, status: WorkloadStatus) -> tuple[str, datetime | None]:
        """Return the phase to show and since when: of a node that is not heard nobody knows what runs there."""
        node = self._cache.get(NODES, status.node_id).record if status.node_id in self._not_ready else None
        phase, since = phase_shown(status, node)
        return str(phase) or str(Phase.UNKNOWN), since

    def nodes(self) -> Counter[str]:
        """Count nodes by the status shown."""
        ready = len(self.node_ids) - len(self._not_ready) - len(self._drained)
        found = Counter(self._node_status(node_id) for node_id in self._not_ready | self._drained)
        if ready:
            found["Ready"] += ready
        return found

    def workloads(self) -> Counter[str]:
        """Count workloads by the status shown."""
        found = Counter(self._by_status)
        for node_id in self._not_ready:
            for workload_id in self.on_node(node_id):
                if status := self.status(workload_id):
                    found[_stored(status)] -= 1
                    found[self.shown(status)[0]] += 1
        return +found

    def desired(self) -> Counter[str]:
        """Count workloads by desired state."""
        return +self._by_desired

    def deleted(self) -> int:
        """Count workloads that are to be deleted, or are."""
        done = (
            [i for i, s in self._cache.all(STATUSES).items() if s.record and s.record.status == Phase.DELETED]
            if (self._by_status[Phase.DELETED])
            else []
        )
        specs = (self.spec(workload_id) for workload_id in done)
        return self._by_desired[Desired.DELETED] + sum(1 for s in specs if s is None or s.desired_state != "Deleted")

    def pending(self) -> Counter[str]:
        """Count the workloads that wait for a node by why: the commonest rejection, or the code of their reason."""
        statuses = (self.status(w) for w in self._unplaced if self._waiting_since(w))
        return Counter(_why_pending(status) for status in statuses if status)

    def oldest_pending(self) -> datetime | None:
        """Return since when the workload that has waited longest for a node has waited."""
        found = [self._waiting_since(workload_id) for workload_id in self._unplaced]
        return min((since for since in found if since), default=None)

    def _waiting_since(self, workload_id: str) -> datetime | None:
        spec, status = self.spec(workload_id), self.status(workload_id)
        if spec is None or status is None or spec.desired_state != Desired.RUNNING:
            return None
        return status.status_info.last_updated or spec.created_at

    def _node_status(self, node_id: str) -> str:
        node = self._cache.get(NODES, node_id).record
        return (node.state_shown if node else "") or "Unknown"

    def _take(self, changes: Sequence[Change]) -> None:
        gone, new = self._legacy_changes(changes)
        if gone or new:
            changes = [*gone, *changes, *new]
        self._take_ids(self.node_ids, [c for c in changes if c.table is NODES])
        self._take_ids(self.workload_ids, [c for c in changes if c.table is SPECS])
        for change in changes:
            before = change.before.record if change.before else None
            after = change.after.record
            if change.table is STATUSES:
                self._take_status(change.id, before, after)
            elif change.table is SPECS:
                self._by_desired.subtract([before.desired_state] if before else [])
                self._by_desired.update([after.desired_state] if after else [])
            elif change.table is TOMBSTONES:
                node_id, workload_id = split_tombstone_id(change.id)
                (self._owed_for.add if after else self._owed_for.remove)(workload_id, node_id)
            elif change.table is NODES:
                _put(self._not_ready, change.id, present=after is not None and not after.is_ready)
                _put(self._drained, change.id, present=after is not None and after.is_ready and bool(after.drain))

    def _legacy_changes(self, changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
        """Return what ceases to be shown by a whole record, and what begins to be, as changes of spec and status."""
        if not self._legacy and not self._cache.all(LEGACY):
            return [], []
        touched = [c.id for c in changes if c.table in (LEGACY, SPECS, STATUSES)]
        gone: list[Change] = []
        new: list[Change] = []
        for workload_id in dict.fromkeys(touched):
            before, after = self._legacy.pop(workload_id, None), self._legacy_shown(workload_id)
            if before:
                gone += _as_changes(workload_id, before, None)
            if after:
                self._legacy[workload_id] = after
                new += _as_changes(workload_id, None, after)
        return gone, new

    def _legacy_shown(self, workload_id: str) -> LegacyWorkload | None:
        found = self._cache.get(LEGACY, workload_id).record
        if found is None or legacy_flaw(workload_id, found):
            return None
        has_ours = self._cache.get(SPECS, workload_id).record or self._cache.get(STATUSES, workload_id).record
        return None if has_ours else found

    def _take_ids(self, ids: SortedIds, changes: Sequence[Change]) -> None:
        new = [c.id for c in changes if c.after.record and not (c.before and c.before.record)]
        ids.update(new, [c.id for c in changes if c.after.record is None])

    def _take_status(self, workload_id: str, before: WorkloadStatus | None, after: WorkloadStatus | None) -> None:
        if before:
            self._by_status[_stored(before)] -= 1
            self.retrying -= before.retry.attempts > 0
            self._on_node.remove(before.node_id, workload_id)
        self._unplaced.discard(workload_id)
        if after:
            self._by_status[_stored(after)] += 1
            self.retrying += after.retry.attempts > 0
            if after.node_id:
                self._on_node.add(after.node_id, workload_id)
            else:
                self._unplaced.add(workload_id)


def _as_changes(workload_id: str, before: LegacyWorkload | None, after: LegacyWorkload | None) -> list[Change]:
    old, new = before or LegacyWorkload(), after or LegacyWorkload()
    pairs: list[tuple[Table[Any], Any, Any]] = [(SPECS, old.spec, new.spec), (STATUSES, old.status, new.status)]
    return [Change(t, workload_id, Versioned(workload_id, a), Versioned(workload_id, b)) for t, a, b in pairs]


def _why_pending(status: WorkloadStatus) -> str:
    told = main_filter(status.pending_reason)
    reason = status.status_info.reason
    return reason.code.lower() if told == OTHER and reason and reason.code else told


def _stored(status: WorkloadStatus) -> str:
    return status.status or str(Phase.UNKNOWN)


def _put(members: set[str], identifier: str, *, present: bool) -> None:
    if present:
        members.add(identifier)
    else:
        members.discard(identifier)
