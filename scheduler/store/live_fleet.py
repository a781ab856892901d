"""The fleet as this process knows it: the cache's nodes and ledgers, and what is on its way to etcd.

Three sources tell of a ledger, and the newest wins: the watch, a transaction's own read, and our own
commits. On top lie *assumptions*: placements that this process has chosen but not committed yet, so
that those which choose at the same time see each other. An assumption is forgotten with its
transaction, whatever came of it; none of this decides anything, the committing transaction does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Generic, TypeVar

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node
from scheduler.domain.record import Record
from scheduler.placement.capacity import Overcommit
from scheduler.placement.fleet import IDLE, Fleet, Measured
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import LEDGERS, NODES
from scheduler.store.write import Versioned

T = TypeVar("T", bound=Record)


class Newest(Generic[T]):
    """The newest known version of each record of a table."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._records: dict[str, Versioned[T]] = {}

    def get(self, identifier: str) -> T | None:
        """Return a record, None when it is absent."""
        known = self._records.get(identifier)
        return known.record if known else None

    def learn(self, seen: Versioned[T]) -> None:
        """Keep this version unless a newer one is known; an absence has no revision and is believed."""
        known = self._records.get(seen.id)
        if seen.record is None:
            self._records.pop(seen.id, None)
        elif known is None or seen.mod_revision >= known.mod_revision:
            self._records[seen.id] = seen

    def rewind(self) -> None:
        """Let any version replace the known ones: etcd was restored, and its revisions began anew."""
        self._records = {i: Versioned(i, v.record) for i, v in self._records.items()}


class LiveFleet:
    """Keeps a Fleet current."""

    def __init__(self, cache: Cache, overcommit: Overcommit) -> None:
        """Subscribe to the cache, which must mirror NODES and LEDGERS."""
        self.fleet = Fleet(overcommit)
        self._cache = cache
        self._cache_revision = 0
        self._nodes: Newest[Node] = Newest()
        self._ledgers: Newest[Ledger] = Newest()
        self._measured: dict[str, Measured] = {}
        self._assumed: dict[str, dict[str, Commitment]] = {}
        cache.subscribe(self._changed)

    def learn(self, node: Versioned[Node], ledger: Versioned[Ledger]) -> None:
        """Take what a linearizable read of a node and its ledger has shown."""
        self._nodes.learn(node)
        self._ledgers.learn(ledger)
        self._refresh(node.id)

    def learn_commit(self, node_id: str, before: Versioned[Ledger], after: Ledger) -> None:
        """Take a ledger that we have just written over `before`.

        Its revision is not known here, only that it is above that of `before`, and that no other
        version lies in between: so the watch's next word of this ledger is of our write or newer.
        """
        self._ledgers.learn(Versioned(node_id, after, before.mod_revision + 1))
        self._refresh(node_id)

    def measure(self, measured: Mapping[str, Measured]) -> None:
        """Take the measured use of these nodes, by node id; unknown nodes are passed over."""
        for node_id, use in measured.items():
            if node_id in self.fleet and self._measured.get(node_id) != use:
                self._measured[node_id] = use
                self._refresh(node_id)

    def holders(self, node_id: str) -> AbstractSet[str]:
        """Return who holds something of the node, or is assumed to."""
        ledger = self._ledgers.get(node_id)
        return (ledger.commitments.keys() if ledger else set()) | self._assumed.get(node_id, {}).keys()

    @contextmanager
    def assuming(self, node_id: str, workload_id: str, commitment: Commitment) -> Iterator[None]:
        """Count a commitment against the node for a block, as if it were in the ledger."""
        self._assumed.setdefault(node_id, {})[workload_id] = commitment
        self._refresh(node_id)
        try:
            yield
        finally:
            held = self._assumed.get(node_id, {})
            held.pop(workload_id, None)
            if not held:
                self._assumed.pop(node_id, None)
            self._refresh(node_id)

    def _changed(self, changes: Sequence[Change]) -> None:
        if self._cache.revision < self._cache_revision:
            self._nodes.rewind()
            self._ledgers.rewind()
        self._cache_revision = self._cache.revision
        touched: dict[str, None] = {}  # a set that keeps its order, so that rows come the same way every time
        for change in changes:
            if change.table is NODES:
                self._nodes.learn(change.after)
            elif change.table is LEDGERS:
                self._ledgers.learn(change.after)
            else:
                continue
            touched[change.id] = None
        for node_id in touched:
            self._refresh(node_id)

    def _refresh(self, node_id: str) -> None:
        node = self._nodes.get(node_id)
        if node is None:
            self.fleet.remove(node_id)
            self._measured.pop(node_id, None)
            return
        self.fleet.upsert(_named(node, node_id), self._ledger(node_id), self._measured.get(node_id, IDLE))

    def _ledger(self, node_id: str) -> Ledger:
        ledger = self._ledgers.get(node_id) or Ledger(node_id=node_id)
        assumed = self._assumed.get(node_id)
        return ledger.replace(commitments={**assumed, **ledger.commitments}) if assumed else ledger


def _named(node: Node, node_id: str) -> Node:
    """Return the node under the id of its key, which is what everything else goes by."""
    return node if node.node_id == node_id else node.replace(node_id=node_id)
