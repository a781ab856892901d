"""Choose a node: filter, score, take the best."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.placement.explain import Explanation, explain
from scheduler.placement.filters import FILTERS
from scheduler.placement.fleet import Fleet, Floats
from scheduler.placement.request import Request
from scheduler.placement.score import JITTER_LIMIT, score

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
    unjittered = _scores(fleet, rows, np.zeros(rows.size))
    rows = rows[unjittered >= unjittered.max() - JITTER_LIMIT]
    scores = _scores(fleet, rows, fleet.ids.jitters(request.workload_id, rows))
    best = rows[scores == scores.max()]
    row = int(best[np.argmin(fleet.ranks[best])])
    points = float(scores.max())
    held = int(fleet.workloads[row])
    noun = "workload" if held == 1 else "workloads"
    return Choice(fleet.node(row).node_id, points, f"selected by highest score {points:.4f}, {held} {noun} on the node")


def _scores(fleet: Fleet, rows: Rows, jitters: Floats) -> Floats:
    return score(
        fleet.available.take(rows, axis=1),
        fleet.pending.take(rows, axis=1),
        fleet.total.take(rows, axis=1),
        workloads=fleet.workloads[rows].astype(np.float64),
        most_workloads=float(fleet.workloads[: fleet.rows].max()),
        jitters=jitters,
    )
