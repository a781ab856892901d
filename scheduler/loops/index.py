"""What a loop asks of the cache and the cache cannot answer by id: who is where.

Kept current by the cache's changes, so that a cycle looks only at its own workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.domain.groups import Groups
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.tombstones import split_tombstone_id


class FleetIndex:
    """Workloads and tombstones by node. For one event loop."""

    def __init__(self, cache: Cache) -> None:
        """Follow this cache, which must mirror nodes, specs, statuses and tombstones."""
        self._cache = cache
        self._node_of: dict[str, str] = {}
        """Of each workload that has a spec; blank: none."""
        self._on_node = Groups()
        self._owed_by = Groups()
        self._owed_for = Groups()
        cache.subscribe(self._take)

    def on_node(self, node_id: str) -> list[str]:
        """Return the workloads assigned to a node, in order."""
        return sorted(self._on_node.get(node_id))

    def homeless(self, belongs: Callable[[str], bool]) -> list[str]:
        """Return the workloads that no node's look covers and that belong here, in order.

        belongs: told the id that decides on the shard: the workload's own, while it has no
            node; its node's, when that node has no record any more.
        """
        found = [w for w in self._on_node.get("") if belongs(w)]
        nodes = self._cache.all(NODES)
        for node_id in self._on_node.names():
            if node_id and node_id not in nodes and belongs(node_id):
                found += self._on_node.get(node_id)
        return sorted(found)

    def owed_by(self, node_id: str) -> list[str]:
        """Return the workloads whose removal a node owes, in order."""
        return sorted(self._owed_by.get(node_id))

    def owed_for(self, workload_id: str) -> list[str]:
        """Return the nodes that owe the removal of a workload, in order."""
        return sorted(self._owed_for.get(workload_id))

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table is SPECS or change.table is STATUSES:
                self._place(change.id)
            elif change.table is TOMBSTONES:
                self._owe(change)

    def _place(self, workload_id: str) -> None:
        old = self._node_of.get(workload_id)
        status = self._cache.get(STATUSES, workload_id).record
        known = self._cache.get(SPECS, workload_id).record is not None
        new = (status.node_id if status else "") if known else None
        if new == old:
            return
        if old is not None:
            self._on_node.remove(old, workload_id)
            del self._node_of[workload_id]
        if new is not None:
            self._on_node.add(new, workload_id)
            self._node_of[workload_id] = new

    def _owe(self, change: Change) -> None:
        node_id, workload_id = split_tombstone_id(change.id)
        if change.after.record is None:
            self._owed_by.remove(node_id, workload_id)
            self._owed_for.remove(workload_id, node_id)
        else:
            self._owed_by.add(node_id, workload_id)
            self._owed_for.add(workload_id, node_id)
