"""Choose a node: filter, score, take the best."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from scheduler.domain.node import Node, Taint
from scheduler.domain.toleration import taint_text, tolerates
from scheduler.placement.explain import Explanation, explain
from scheduler.placement.filters import FILTERS
from scheduler.placement.fleet import Fleet, Floats
from scheduler.placement.request import Request
from scheduler.placement.score import COPY_PENALTY, JITTER_LIMIT, SOFT_TAINT_PENALTY, score
from scheduler.placement.traits import soft_taints

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Choice:
    """The best node, its score, and why in words."""

    node_id: str
    score: float
    reason: str


def choose(fleet: Fleet, request: Request, exclude: AbstractSet[str] = frozenset()) -> Choice | Explanation:
    """Return the best node for the request, or why there is none.

    Equal scores go to the node whose id comes first, so the same fleet always gives the same choice.
    """
    fitting = fleet.mask(fleet.everyone & ~fleet.bits_of(exclude))
    for each in FILTERS:
        fitting &= each.passing(fleet, request)
    rows = np.flatnonzero(fitting)
    return _best(fleet, request, rows) if rows.size else explain(fleet, request, exclude)


def _best(fleet: Fleet, request: Request, rows: Rows) -> Choice:
    # Only nodes that the jitter can still bring to the top are worth hashing.
    unjittered = _scores(fleet, request, rows, np.zeros(rows.size))
    rows = rows[unjittered >= unjittered.max() - JITTER_LIMIT]
    scores = _scores(fleet, request, rows, fleet.ids.jitters(request.workload_id, rows))
    best = rows[scores == scores.max()]
    row = int(best[np.argmin(fleet.ranks[best])])
    points = float(scores.max())
    held = int(fleet.workloads[row])
    noun = "workload" if held == 1 else "workloads"
    node = fleet.node(row)
    reason = f"selected by highest score {points:.4f}, {held} {noun} on the node" + _in_spite_of(node, request)
    return Choice(node.node_id, points, reason)


def _in_spite_of(node: Node, request: Request) -> str:
    """Name the soft taints of the node that the workload does not tolerate."""
    taints = sorted(taint_text(t) for t in soft_taints(node) if not tolerates(request.tolerations, t))
    return f", in spite of taint {', '.join(taints)}" if taints else ""


def _scores(fleet: Fleet, request: Request, rows: Rows, jitters: Floats) -> Floats:
    points = score(
        fleet.available.take(rows, axis=1),
        fleet.pending.take(rows, axis=1),
        fleet.total.take(rows, axis=1),
        workloads=fleet.workloads[rows].astype(np.float64),
        most_workloads=float(fleet.workloads[: fleet.rows].max()),
        jitters=jitters,
    )
    for taint, tainted in fleet.soft_taints.items():
        if not tolerates(request.tolerations, cast("Taint", taint)):
            points -= SOFT_TAINT_PENALTY * fleet.mask(tainted)[rows]
    if request.replica_set:
        points -= COPY_PENALTY * fleet.copies(request.replica_set, rows)
    return points
