"""Why no node fits: every node counted once, by the first filter it fails, and the one that came nearest."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np

from scheduler.placement.capacity import RESOURCES
from scheduler.placement.filters import FILTERS, Filter, objections
from scheduler.placement.fleet import Bools, Fleet, Floats
from scheduler.placement.request import Request

EXCLUDED = "excluded"
"""The pseudo-filter of nodes that the caller ruled out, such as the one a workload is moved off."""

NO_NODES = "no_nodes"
"""Stands for a filter where there is no node at all."""
NO_NODES_TEXT = "no nodes available"
NOT_TRIED = "not_tried"
OTHER = "other"

_LONGEST_WHY = 200
_NAMES = frozenset({EXCLUDED, *(each.name for each in FILTERS)})
_FIRST_FILTER = re.compile(r"no node fits: \d+ of \d+ nodes (\w+) \(")
_FIGURES = re.compile(r" \(.*?\)(?=,|;|$)|; nearest .*$")


@dataclass(frozen=True, slots=True)
class Rejection:
    """How many nodes failed this filter first, and one of them in words."""

    filter: str
    nodes: int
    example: str


@dataclass(frozen=True, slots=True)
class NearestFit:
    """The node that failed least: it is right in every way but has too little left."""

    node_id: str
    lacks: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a workload has no node; the counts of the rejections add up to nodes_total."""

    rejections: tuple[Rejection, ...]
    nearest: NearestFit | None
    nodes_total: int

    @property
    def summary(self) -> str:
        """One sentence: the commonest rejection first, with an example in figures; who was ruled out comes last."""
        if not self.nodes_total:
            return NO_NODES_TEXT
        first, *rest = sorted(self.rejections, key=lambda r: (r.filter == EXCLUDED, -r.nodes))
        text = f"no node fits: {first.nodes} of {self.nodes_total} nodes {first.filter} ({first.example})"
        text += "".join(f", {r.nodes} {r.filter}" for r in rest)
        if self.nearest and not first.example.startswith(f"{self.nearest.node_id} "):
            text += f"; nearest fit: {self.nearest.node_id} {self.nearest.lacks}"
        return text


def without_figures(summary: str) -> str:
    """Reduce a summary to what is worth storing anew when it changes: filters and counts, not examples."""
    return _FIGURES.sub("", summary)


def main_filter(summary: str) -> str:
    """Name the filter that rejected the most nodes, by a stored summary; one of a few words for any other text."""
    if not summary:
        return NOT_TRIED
    if summary == NO_NODES_TEXT:
        return NO_NODES
    found = _FIRST_FILTER.match(summary)
    return found[1] if found and found[1] in _NAMES else OTHER


def explain(fleet: Fleet, request: Request, exclude: AbstractSet[str] = frozenset()) -> Explanation:
    """Say why no node of the fleet fits the request; nodes in `exclude` count as excluded."""
    left = fleet.mask(fleet.everyone & ~fleet.bits_of(exclude))
    rejections = [_excluded(fleet, exclude)]
    reachable: Bools | None = None
    for each in FILTERS:
        if each.of_amounts and reachable is None:
            reachable = left.copy()
        failing = left & ~each.passing(fleet, request)
        rejections.append(_reject(fleet, request, each, failing))
        left &= ~failing
    found = tuple(r for r in rejections if r.nodes)
    return Explanation(found, _nearest(fleet, request, left if reachable is None else reachable), len(fleet))


def _excluded(fleet: Fleet, exclude: AbstractSet[str]) -> Rejection:
    known = sorted(node_id for node_id in exclude if node_id in fleet)
    return Rejection(EXCLUDED, len(known), f"{known[0]} is ruled out" if known else "")


def _reject(fleet: Fleet, request: Request, each: Filter, failing: Bools) -> Rejection:
    count = int(np.count_nonzero(failing))
    if not count:
        return Rejection(each.name, 0, "")
    rows = np.flatnonzero(failing)
    indices = [i for i, resource in enumerate(RESOURCES) if resource.filter == each.name]
    if indices:
        free = fleet.free[indices[0], rows]
        rows = rows[free == free.max()]
    row = int(rows[np.argmin(fleet.ranks[rows])])
    node, ledger = fleet.node(row), fleet.ledger(row)
    why = each.objection(node, ledger, request, fleet.overcommit) or "has been silent for too long"
    return Rejection(each.name, count, f"{node.node_id} {_short(why)}")


def _nearest(fleet: Fleet, request: Request, reachable: Bools) -> NearestFit | None:
    """Pick the reachable node with the smallest shortfall: missing shares of what is asked, added up."""
    rows = np.flatnonzero(reachable)
    if not rows.size:
        return None
    shortfall = _shortfall(fleet, request)[rows]
    rows = rows[shortfall == shortfall.min()]
    row = int(rows[np.argmin(fleet.ranks[rows])])
    lacks = objections(fleet.node(row), fleet.ledger(row), request, fleet.overcommit)
    return NearestFit(fleet.node(row).node_id, _short("; ".join(objection.why for objection in lacks)))


def _shortfall(fleet: Fleet, request: Request) -> Floats:
    total = np.zeros(fleet.rows)
    for index, asked in enumerate(request.amounts):
        if asked:
            total += np.maximum(asked - np.maximum(fleet.free[index, : fleet.rows], 0), 0) / asked
    for port in request.ports:
        total += fleet.mask(fleet.ports[port]) / len(request.ports)
    return total + fleet.mask(fleet.crowded)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_WHY else text[: _LONGEST_WHY - 1] + "…"
