"""The fleet as columns: one row a node, so that a choice among thousands is a handful of array operations.

Counted things (free amounts, measured use) are numpy arrays. Yes-or-no things (a label, a taint, a
taken port …) are bitsets over the rows, kept in plain integers: with bit r set for row r, "which nodes
carry all of these labels" is a few `&`, at one bit a node and distinct label.

Rows are stable: a removed node's row is handed to the next new node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.placement.capacity import MAX_COMMITMENTS, RESOURCES, Overcommit, allocatable, capacity, committed
from scheduler.placement.request import LARGEST_AMOUNT, amount
from scheduler.placement.score import IdColumn
from scheduler.placement.traits import blocking_taints, is_open, soft_taints, storage_drivers, workload_types

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_FIRST_ROWS = 64
_SCORED = 2
"""CPU and memory, the first two of RESOURCES."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a node's agent last measured: use, not commitments."""

    cpu_millicores: int = 0
    memory_mb: int = 0


IDLE = Measured()


class Bitsets:
    """For each trait the set of rows that have it, as the bits of an integer."""

    def __init__(self) -> None:
        """Start with no trait."""
        self._rows: dict[Hashable, int] = {}

    def __getitem__(self, trait: Hashable) -> int:
        """Return the rows that have this trait; 0 when none has."""
        return self._rows.get(trait, 0)

    def items(self) -> Iterable[tuple[Hashable, int]]:
        """Return every trait that a row has, with its rows."""
        return self._rows.items()

    def add(self, traits: Iterable[Hashable], row: int) -> None:
        """Note that the row has these traits."""
        for trait in traits:
            self._rows[trait] = self._rows.get(trait, 0) | 1 << row

    def discard(self, traits: Iterable[Hashable], row: int) -> None:
        """Forget that the row has these traits; a trait that no row has any more takes no room."""
        for trait in traits:
            left = self._rows.get(trait, 0) & ~(1 << row)
            if left:
                self._rows[trait] = left
            else:
                self._rows.pop(trait, None)


class Fleet:
    """All nodes that placement knows, with their ledgers."""

    def __init__(self, overcommit: Overcommit | None = None) -> None:
        """Start empty; `overcommit` says how much of each capacity may be committed."""
        self.overcommit = overcommit or Overcommit()
        self._row_of: dict[str, int] = {}
        self._nodes: list[Node | None] = []
        self._ledgers: list[Ledger | None] = []
        self._spare: list[int] = []
        self._ranks: Ints | None = None
        self.ids = IdColumn(_FIRST_ROWS)
        self.free: Ints = np.zeros((len(RESOURCES), _FIRST_ROWS), np.int64)
        self.total: Floats = np.zeros((_SCORED, _FIRST_ROWS))
        self.available: Floats = np.zeros((_SCORED, _FIRST_ROWS))
        self.pending: Floats = np.zeros((_SCORED, _FIRST_ROWS))
        self.workloads: Ints = np.zeros(_FIRST_ROWS, np.int64)
        self.everyone = 0
        self.open = 0
        self.silent = 0
        self.crowded = 0
        self.labels = Bitsets()
        self.taints = Bitsets()
        self.soft_taints = Bitsets()
        self.types = Bitsets()
        self.drivers = Bitsets()
        self.ports = Bitsets()
        self.groups = Bitsets()
        self._copies: dict[str, Counter[int]] = {}

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._row_of)

    def __contains__(self, node_id: str) -> bool:
        """Whether the node is known."""
        return node_id in self._row_of

    @property
    def rows(self) -> int:
        """How many rows are in use or spare: the length of every column."""
        return len(self._nodes)

    def bits_of(self, node_ids: Iterable[str]) -> int:
        """Return the rows of those nodes that are known, as a bitset."""
        bits = 0
        for node_id in node_ids:
            if node_id in self._row_of:
                bits |= 1 << self._row_of[node_id]
        return bits

    def node(self, row: int) -> Node:
        """Return the node in a row that is in use."""
        node = self._nodes[row]
        assert node is not None, row  # noqa: S101 - rows come from masks over nodes in use
        return node

    def ledger(self, row: int) -> Ledger:
        """Return the ledger in a row that is in use."""
        ledger = self._ledgers[row]
        assert ledger is not None, row  # noqa: S101
        return ledger

    def mask(self, bits: int) -> Bools:
        """Turn a bitset over the rows into an array of booleans."""
        octets = np.frombuffer(bits.to_bytes((self.rows + 7) // 8, "little"), np.uint8)
        return np.unpackbits(octets, count=self.rows, bitorder="little").view(np.bool_)

    @property
    def ranks(self) -> Ints:
        """The position of each row's node in the order of ids; it breaks ties the same way everywhere."""
        if self._ranks is None:
            self._ranks = np.full(self.rows, self.rows, np.int64)
            self._ranks[[self._row_of[i] for i in sorted(self._row_of)]] = np.arange(len(self._row_of))
        return self._ranks

    def upsert(self, node: Node, ledger: Ledger, measured: Measured = IDLE, *, silent: bool = False) -> None:
        """Add a node or bring its row up to date; `silent` marks a node whose heartbeats are too old to place on.

        Liveness has one threshold (`node.is_ready`), for placement and failover alike: the reference
        system's second one of ten minutes does not exist here, and nothing sets `silent` but callers
        that know a silence before the node's record tells it.
        """
        row = self._row_of.get(node.node_id)
        if row is None:
            row = self._take_row(node)
        if self._nodes[row] is not node:
            self._set_node(row, node)
        if self._ledgers[row] is not ledger:
            self._set_ledger(row, ledger)
        self.silent = _with_bit(self.silent, row, silent)
        self._set_numbers(row, node, ledger, measured)

    def remove(self, node_id: str) -> None:
        """Forget a node; one that is not known is no error."""
        row = self._row_of.pop(node_id, None)
        if row is None:
            return
        self._clear_node(row)
        self._clear_ledger(row)
        gone = ~(1 << row)
        self.everyone, self.open = self.everyone & gone, self.open & gone
        self.silent, self.crowded = self.silent & gone, self.crowded & gone
        self.workloads[row] = 0
        self._spare.append(row)
        self._ranks = None

    def _take_row(self, node: Node) -> int:
        if self._spare:
            row = self._spare.pop()
        else:
            row = self.rows
            self._nodes.append(None)
            self._ledgers.append(None)
            if row >= self.workloads.size:
                self._grow(2 * row)
        self._row_of[node.node_id] = row
        self.everyone |= 1 << row
        self.ids.put(row, node.node_id)
        self._ranks = None
        return row

    def _grow(self, size: int) -> None:
        for name in ("free", "total", "available", "pending", "workloads"):
            old = getattr(self, name)
            new = np.zeros((*old.shape[:-1], size), old.dtype)
            new[..., : old.shape[-1]] = old
            setattr(self, name, new)

    def _set_node(self, row: int, node: Node) -> None:
        self._clear_node(row)
        self._nodes[row] = node
        self.open = _with_bit(self.open, row, is_open(node))
        self.labels.add(node.labels.items(), row)
        self.taints.add(blocking_taints(node), row)
        self.soft_taints.add(soft_taints(node), row)
        self.types.add(workload_types(node), row)
        self.drivers.add(storage_drivers(node), row)

    def _clear_node(self, row: int) -> None:
        node = self._nodes[row]
        if node is None:
            return
        self.labels.discard(node.labels.items(), row)
        self.taints.discard(blocking_taints(node), row)
        self.soft_taints.discard(soft_taints(node), row)
        self.types.discard(workload_types(node), row)
        self.drivers.discard(storage_drivers(node), row)
        self._nodes[row] = None

    def _set_ledger(self, row: int, ledger: Ledger) -> None:
        self._clear_ledger(row)
        self._ledgers[row] = ledger
        self.ports.add(ledger.ports, row)
        self.groups.add(_groups(ledger), row)
        for name in _replica_sets(ledger):
            self._copies.setdefault(name, Counter())[row] += 1
        self.workloads[row] = sum(c.kind == "workload" for c in ledger.commitments.values())
        self.crowded = _with_bit(self.crowded, row, len(ledger.commitments) >= MAX_COMMITMENTS)

    def _clear_ledger(self, row: int) -> None:
        ledger = self._ledgers[row]
        if ledger is not None:
            self.ports.discard(ledger.ports, row)
            self.groups.discard(_groups(ledger), row)
            for name in _replica_sets(ledger):
                self._drop_copies(name, row)
            self._ledgers[row] = None

    def _drop_copies(self, name: str, row: int) -> None:
        """Forget the copies of a set on a row."""
        by_row = self._copies.get(name)
        if by_row is None:
            return
        by_row.pop(row, None)
        if not by_row:
            del self._copies[name]

    def copies(self, replica_set: str, rows: npt.NDArray[np.intp]) -> Floats:
        """Return how many copies of a set there are on each of these rows."""
        found = np.zeros(self.rows)
        for row, count in self._copies.get(replica_set, {}).items():
            found[row] = count
        return found[rows]

    def _set_numbers(self, row: int, node: Node, ledger: Ledger, measured: Measured) -> None:
        promised, total = committed(ledger), capacity(node)
        used = amount(measured.cpu_millicores), amount(measured.memory_mb)
        for index, limit in enumerate(allocatable(node, self.overcommit)):
            self.free[index, row] = max(limit - promised[index], -LARGEST_AMOUNT)
        for index in range(_SCORED):
            self.total[index, row] = total[index]
            self.available[index, row] = total[index] - used[index]
            self.pending[index, row] = max(0, promised[index] - used[index])


def _with_bit(bits: int, row: int, on: bool) -> int:
    return bits | 1 << row if on else bits & ~(1 << row)


def _groups(ledger: Ledger) -> set[str]:
    return {c.group for c in ledger.commitments.values() if c.group}


def _replica_sets(ledger: Ledger) -> list[str]:
    """Return the set of each copy on the node, those aside that are leaving it."""
    return [c.replica_set for c in ledger.commitments.values() if c.replica_set and c.kind == "workload"]
