"""The steps by which workloads leave a node that is being drained, or that they may not stay on."""

from __future__ import annotations

import structlog

from scheduler.convergence.drain import is_vacating, leaving
from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.event import EventType
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Drain, Node
from scheduler.domain.workload import Desired
from scheduler.loops.context import Guards, LoopContext
from scheduler.loops.done import Done, goes_on_here
from scheduler.loops.drain_turns import default_pace, siblings
from scheduler.loops.look import Look
from scheduler.placement.explain import Explanation
from scheduler.store.assign import Placed, Vanished
from scheduler.store.handover import begin_vacate, end_vacate
from scheduler.store.intent import mark_drained
from scheduler.store.keys import LEDGERS, SPECS, STATUSES
from scheduler.store.placements import Outcome

log = structlog.get_logger(__name__)

RELOCATE = "Relocate"


async def relocate(ctx: LoopContext, seen: Look, guards: Guards, why: str) -> Done:
    """Start a workload on another node; the copy on the old one is stopped when the new one runs."""
    old = seen.status.node_id
    outcome = await ctx.placer.hand_over(seen.spec.id, from_node=old, pace=default_pace(ctx), guards=await guards())
    if isinstance(outcome, Placed) and outcome.node_id == old:
        return Done("NoAction")
    return _arrived(ctx, seen, outcome, why)


async def vacate(ctx: LoopContext, seen: Look, guards: Guards, why: str) -> Done:
    """Stop a workload that must not run twice, then give it another node."""
    if not is_vacating(seen.status):
        target = ctx.placer.elsewhere(seen.spec, seen.status.node_id)
        if isinstance(target, Explanation):
            return _blocked(seen, target)
        others = siblings(ctx, seen.spec)
        if not await begin_vacate(
            ctx.store, seen.status, default_pace(ctx), now=ctx.now(), guards=await guards(), siblings=others
        ):
            return Done("NoAction")
    gone = await _is_stopped(ctx, seen)
    if not gone:
        return Done(RELOCATE, success=gone is not None)
    if not await end_vacate(ctx.store, seen.status, default_pace(ctx), why, now=ctx.now(), guards=await guards()):
        return Done("NoAction")
    return _arrived(ctx, seen, await ctx.placer.place(seen.spec.id, guards=await guards()), why)


async def _is_stopped(ctx: LoopContext, seen: Look) -> bool | None:
    """Have the node stop its copy; say whether it is gone, None when the node does not do it now."""
    if seen.node is None:
        return None
    try:
        return await ctx.agents.delete(seen.node, seen.status.id, epoch=seen.status.epoch)
    except (AgentUnreachable, AgentRejected) as error:
        log.warning(
            "a node does not stop what is to leave it",
            node=seen.node.node_id,
            workload=seen.status.id,
            error=str(error),
        )
        return None


def _arrived(ctx: LoopContext, seen: Look, outcome: Outcome, why: str) -> Done:
    if isinstance(outcome, Vanished):
        return Done(RELOCATE, again=True)
    if not isinstance(outcome, Placed):
        return _blocked(seen, outcome)
    ctx.emit(
        EventType.RELOCATED,
        workload_id=seen.spec.id,
        node_id=outcome.node_id,
        reason=why,
        details={"previous_node": seen.status.node_id, "epoch": str(outcome.epoch)},
    )
    again = goes_on_here(ctx, seen.spec.id, seen.status.node_id, outcome.node_id)
    return Done(RELOCATE, again=again, why=f"from {seen.status.node_id} to {outcome.node_id}: {why}", anew=True)


def _blocked(seen: Look, explanation: Explanation) -> Done:
    log.info("no node to move to", workload=seen.spec.id, node=seen.status.node_id, why=explanation.summary)
    return Done(RELOCATE, success=False, why=explanation.summary)


async def look_at_drain(ctx: LoopContext, node: Node, guards: Guards) -> None:
    """Mark a node drained when nothing that must leave it is left, and tell of it once."""
    if node.drain != Drain.DRAINING or not node.is_ready or ctx.index.owed_by(node.node_id):
        return
    there = ctx.index.on_node(node.node_id)
    pinned = frozenset(w for w in there if _is_left_alone(ctx, w, node))
    ledger = ctx.cache.get(LEDGERS, node.node_id).record or Ledger(node_id=node.node_id)
    if len(pinned) < len(there) or ledger.commitments.keys() - pinned:
        return
    if await mark_drained(ctx.store, node, pinned, now=ctx.now(), guards=await guards()):
        reason = node.drain_job.reason if node.drain_job else ""
        ctx.emit(EventType.NODE_DRAINED, node_id=node.node_id, reason=reason)


def _is_left_alone(ctx: LoopContext, workload_id: str, node: Node) -> bool:
    """Whether a workload stays because it is pinned, and the operator does not mind."""
    if node.drain_job is None or not node.drain_job.ignore_pinned:
        return False
    spec, status = ctx.cache.get(SPECS, workload_id).record, ctx.cache.get(STATUSES, workload_id).record
    wanted = spec is not None and spec.desired_state != Desired.DELETED
    return spec is not None and status is not None and wanted and leaving(spec, status, node) is None
