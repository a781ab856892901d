"""A look at one workload: its records as etcd has them now, and the action they call for."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.convergence.actions import Action, next_action
from scheduler.convergence.drain import Relocate, Vacate
from scheduler.convergence.loss import Move
from scheduler.domain.legacy import is_foreign
from scheduler.domain.node import Node
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.loops.context import LoopContext
from scheduler.loops.holds import Holds
from scheduler.store.keys import NODES, SPECS, STATUSES
from scheduler.store.write import Ref


@dataclass(frozen=True, slots=True)
class Look:
    """What a decision rests on."""

    spec: WorkloadSpec
    status: WorkloadStatus
    status_revision: int
    """0: there is no record, the status is a blank one."""
    node: Node | None


def glance(ctx: LoopContext, workload_id: str) -> Look | None:
    """Look at what this process knows, which may be a little old; None: no such workload, or not ours yet."""
    spec, status = ctx.cache.get(SPECS, workload_id).record, ctx.cache.get(STATUSES, workload_id)
    if spec is None or is_foreign(spec):
        return None
    record = status.record or WorkloadStatus(id=workload_id)
    node = ctx.cache.get(NODES, record.node_id).record if record.node_id else None
    return Look(spec, record, status.mod_revision, node)


async def look(ctx: LoopContext, workload_id: str) -> Look | None:
    """Look at etcd itself: agents are only told what was true a moment ago. The node may be a little old."""
    view = await ctx.store.read([Ref(SPECS, workload_id), Ref(STATUSES, workload_id)])
    spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id)
    if spec is None or is_foreign(spec):
        return None
    record = status.record or WorkloadStatus(id=workload_id)
    node = ctx.cache.get(NODES, record.node_id).record if record.node_id else None
    if record.node_id and node is None:  # that it is gone for good is told only by etcd
        node = (await ctx.store.get(NODES, record.node_id)).record
    return Look(spec, record, status.mod_revision, node)


def glimpse_action(ctx: LoopContext, seen: Look, holds: Holds) -> Action:
    """Return what the records call for, as if nothing were held on a lost node."""
    action = next_action(seen.spec, seen.status, seen.node, ctx.now(), ctx.policy)
    if isinstance(action, Relocate | Vacate) and seen.node and not holds.turns.has(seen.spec.id, seen.node):
        return next_action(seen.spec, seen.status, seen.node, ctx.now(), ctx.policy, stays=True)
    return action


async def action_for(ctx: LoopContext, seen: Look, holds: Holds) -> Action:
    """Return what the records call for."""
    action = glimpse_action(ctx, seen, holds)
    if not isinstance(action, Move) or seen.node is None:
        return action
    hold = await holds.reason(seen.spec, seen.status, seen.node)
    return next_action(seen.spec, seen.status, seen.node, ctx.now(), ctx.policy, hold=hold)
