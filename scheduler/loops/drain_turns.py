"""Who may leave a node now, and which old copies may go: told by the caches alone.

Which workloads must leave, and how many at once, is decided by convergence/drain.py, and the
transactions of store/handover.py compare the same again. Here those are found that could go now, so
that all others, which wait for their turn or for a node that fits, cost neither a read nor a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scheduler.convergence.drain import (
    Pace,
    is_left,
    is_vacating,
    leaving,
    may_start,
    pace_of,
    too_many_down,
    waits_for,
)
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.domain.policy import is_exclusive
from scheduler.domain.replicas import FIRST_NUMBER, replica_id, replica_set
from scheduler.domain.workload import Desired, WorkloadSpec, WorkloadStatus
from scheduler.loops.context import LoopContext
from scheduler.placement.explain import Explanation
from scheduler.store.keys import LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.tombstones import tombstone_id

Pair = tuple[WorkloadSpec, WorkloadStatus]

MAX_TRIED = 64
"""So many workloads of a node are asked, in one look, whether another node fits; the rest waits for its turn."""


class Turns:
    """Says whose turn it is to leave its node. For the length of one look: what it found is kept."""

    def __init__(self, ctx: LoopContext) -> None:
        """Take the parts."""
        self._ctx = ctx
        self._going: dict[str, frozenset[str]] = {}

    def has(self, workload_id: str, node: Node) -> bool:
        """Whether a workload that must leave this node may set out now, as far as the caches tell."""
        found = self._going.get(node.node_id)
        if found is None:
            found = self._going[node.node_id] = frozenset(_going(self._ctx, node))
        return workload_id in found


def default_pace(ctx: LoopContext) -> Pace:
    """Return how fast nodes are left that do not say so themselves."""
    return Pace(ctx.settings.drain_max_parallel, ctx.settings.drain_min_healthy_seconds)


def owed_now(ctx: LoopContext, node_id: str, workload_ids: Sequence[str]) -> list[str]:
    """Return those of the workloads whose removal the node owes and need not wait with, as far as the caches tell."""
    return [w for w in workload_ids if not what_stop_waits_for(ctx, node_id, w)]


def nodes_owing_now(ctx: LoopContext, workload_id: str) -> list[str]:
    """Return the nodes that owe the removal of a workload and need not wait with it, as far as the caches tell."""
    return [n for n in ctx.index.owed_for(workload_id) if not what_stop_waits_for(ctx, n, workload_id)]


def what_stop_waits_for(ctx: LoopContext, node_id: str, workload_id: str) -> str:
    """Say what the removal of a workload from a node that it has left waits for; blank when it is due."""
    owed = ctx.cache.get(TOMBSTONES, tombstone_id(node_id, workload_id)).record
    spec, status = ctx.cache.get(SPECS, workload_id).record, ctx.cache.get(STATUSES, workload_id).record
    return waits_for(owed, spec, status, ctx.now()) if owed else ""


def wake_next(ctx: LoopContext, node_id: str) -> None:
    """Have those looked at whose turn it is now to leave the node: somebody has arrived."""
    node = ctx.cache.get(NODES, node_id).record
    if node and node.is_ready and is_left(node):
        for workload_id in _going(ctx, node):
            ctx.wake(workload_id, node_id)


def _going(ctx: LoopContext, node: Node) -> list[str]:
    """Return who may set out now: those under way, then as many others as there is room for and a node that fits."""
    pace, now = pace_of(node, default_pace(ctx)), ctx.now()
    ledger = ctx.cache.get(LEDGERS, node.node_id).record or Ledger(node_id=node.node_id)
    there = _must_leave(ctx, node)
    going = [spec.id for spec, status in there if is_vacating(status)]
    for spec, status in _some(there, now):
        if not may_start(ledger, spec.id, pace, now) or is_vacating(status) or _is_needed(ctx, spec, pace, now):
            continue
        if not isinstance(ctx.placer.elsewhere(spec, node.node_id), Explanation):
            going.append(spec.id)
            ledger = ledger.with_left(spec.id, status.epoch)
    return going


def _must_leave(ctx: LoopContext, node: Node) -> list[Pair]:
    found = []
    for workload_id in ctx.index.on_node(node.node_id):
        spec, status = ctx.cache.get(SPECS, workload_id).record, ctx.cache.get(STATUSES, workload_id).record
        if spec and status and spec.desired_state != Desired.DELETED and leaving(spec, status, node):
            found.append((spec, status))
    return found


def _some(there: Sequence[Pair], now: datetime) -> Sequence[Pair]:
    """Return as many as may be tried in one look: others as time goes on, so that none keeps another from its turn."""
    if len(there) <= MAX_TRIED:
        return there
    start = int(now.timestamp()) * MAX_TRIED % len(there)
    return [*there[start:], *there[:start]][:MAX_TRIED]


def siblings(ctx: LoopContext, spec: WorkloadSpec) -> list[str]:
    """Return the other copies of a workload that is stopped before it moves; none where only one copy is wanted."""
    of = replica_set(spec)
    parent = ctx.cache.get(SPECS, of).record if of and is_exclusive(spec) else None
    if parent is None:
        return []
    copies = [of, *(replica_id(of, number) for number in range(FIRST_NUMBER, parent.replicas + 1))]
    return [copy for copy in copies if copy != spec.id]


def _is_needed(ctx: LoopContext, spec: WorkloadSpec, pace: Pace, now: datetime) -> bool:
    """Whether a copy must not be stopped now, since too many others of its replica set are down, on whatever nodes."""
    others = siblings(ctx, spec)
    return bool(others) and too_many_down((ctx.cache.get(STATUSES, copy).record for copy in others), pace, now)
