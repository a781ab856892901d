"""The score: how good a node that fits is. Highest wins.

    score  = 0.4 * (available - pending) / total for CPU, the same for memory, + 0.2 * spread + jitter
    spread = 1 - workloads / most workloads on any node
    jitter = (FNV-1a-32("workload|node") mod 1000) / 1000 * 0.01

as the reference system scores; the weights are its constants. From that goes 1 for each taint
PreferNoSchedule that the workload does not tolerate, and 1 for each copy of the same workload on
the node: the formula gives 0 to 1.01, so such a node is taken only where no other fits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CPU_WEIGHT: Final = 0.4
MEMORY_WEIGHT: Final = 0.4
SPREAD_WEIGHT: Final = 0.2
JITTER_LIMIT: Final = 0.01
NO_CAPACITY_SCORE: Final = -1e9
SOFT_TAINT_PENALTY: Final = 1.0
COPY_PENALTY: Final = 1.0
"""For each copy of the same workload that is on the node: one more copy counts more than any load."""

_OFFSET = 0x811C9DC5
_PRIME = 0x01000193
_MASK = 0xFFFFFFFF
_PRIME_32 = np.uint32(_PRIME)


def fnv1a_32(data: bytes, start: int = _OFFSET) -> int:
    """Hash bytes with 32-bit FNV-1a; `start` continues an earlier hash."""
    value = start
    for octet in data:
        value = ((value ^ octet) * _PRIME) & _MASK
    return value


def jitter(workload_id: str, node_id: str) -> float:
    """Return the share of the score that only breaks ties, 0 to 0.00999, the same at any time for this pair."""
    return fnv1a_32(f"{workload_id}|{node_id}".encode()) % 1000 / 1000 * JITTER_LIMIT


def score(
    available: Floats,
    pending: Floats,
    total: Floats,
    *,
    workloads: Floats,
    most_workloads: float,
    jitters: Floats,
) -> Floats:
    """Score nodes.

    Args:
        available: total minus measured use; shape (2, nodes): CPU, then memory.
        pending: committed but not yet measured as used; same shape.
        total: capacity; same shape.
        workloads: how many workloads are committed on each node.
        most_workloads: the largest of those counts over *all* nodes, also those that do not fit.
        jitters: `jitter` of each node.

    """
    usable = (total[0] > 0) & (total[1] > 0)
    share = (available - pending) / np.where(total > 0, total, 1.0)
    spread = 1 - workloads / most_workloads if most_workloads else np.ones_like(jitters)
    scores = CPU_WEIGHT * share[0] + MEMORY_WEIGHT * share[1] + SPREAD_WEIGHT * spread + jitters
    return np.where(usable, scores, NO_CAPACITY_SCORE)


class IdColumn:
    """Node ids as a matrix of bytes, so that the jitter of all nodes is hashed at once.

    FNV-1a takes one byte after the other; here each step takes one byte of every id.
    """

    def __init__(self, rows: int) -> None:
        """Reserve this many rows; more are added as they are needed."""
        self._octets: npt.NDArray[np.uint8] = np.zeros((16, rows), np.uint8)
        self._lengths: npt.NDArray[np.int32] = np.zeros(rows, np.int32)

    def put(self, row: int, node_id: str) -> None:
        """Store the id of a row."""
        data = node_id.encode()
        height, width = self._octets.shape
        if len(data) > height or row >= width:
            self._grow(max(height, len(data)), 2 * width if row >= width else width)
        self._octets[: len(data), row] = np.frombuffer(data, np.uint8)
        self._lengths[row] = len(data)

    def jitters(self, workload_id: str, rows: npt.NDArray[np.intp]) -> Floats:
        """Return `jitter` for each of the rows."""
        lengths = self._lengths[rows]
        values = np.full(rows.size, fnv1a_32(f"{workload_id}|".encode()), np.uint32)
        shortest, longest = (int(lengths.min()), int(lengths.max())) if rows.size else (0, 0)
        for position in range(longest):
            active: npt.NDArray[np.bool_] | bool = True if position < shortest else lengths > position
            np.bitwise_xor(values, self._octets[position].take(rows), out=values, where=active)
            np.multiply(values, _PRIME_32, out=values, where=active)
        return values % np.uint32(1000) / 1000 * JITTER_LIMIT

    def _grow(self, height: int, width: int) -> None:
        octets, lengths = np.zeros((height, width), np.uint8), np.zeros(width, np.int32)
        old_height, old_width = self._octets.shape
        octets[:old_height, :old_width], lengths[:old_width] = self._octets, self._lengths
        self._octets, self._lengths = octets, lengths
