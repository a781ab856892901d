"""Steps on workloads whose node is lost, or back: stay, wait for a proof, weigh the two copies."""

from __future__ import annotations

import structlog

from scheduler.convergence.loss import NO_FAILOVER_TARGET, Stay, as_told
from scheduler.convergence.returns import Verdict, is_pending, is_weighed, which_stays
from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.event import EventType
from scheduler.domain.node import Node
from scheduler.domain.policy import is_exclusive
from scheduler.domain.workload import Phase, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.loops.context import Guards, LoopContext
from scheduler.loops.done import Done, goes_on_here
from scheduler.loops.holds import Holds
from scheduler.loops.look import Look
from scheduler.store.keys import NODES, TOMBSTONES
from scheduler.store.losses import record_stay
from scheduler.store.returns import keep_original, renew_epoch
from scheduler.store.tombstones import tombstone_id
from scheduler.store.write import Ref

log = structlog.get_logger(__name__)

RETURN = "Return"


async def stay(ctx: LoopContext, seen: Look, guards: Guards, why: Stay) -> Done:
    """Record why a workload stays on its lost node, and tell people once."""
    told = await record_stay(ctx.store, seen.status, why, now=ctx.now(), guards=await guards())
    if told:
        log.info("a workload stays on its lost node", workload=seen.spec.id, node=seen.status.node_id, code=why.code)
        ctx.emit(
            EventType.RESCHEDULE_SKIPPED,
            workload_id=seen.spec.id,
            node_id=seen.status.node_id,
            reason=why.why,
            details={"code": why.code},
        )
    return Done("AwaitFailover", why=why.why)


async def no_target(ctx: LoopContext, seen: Look, guards: Guards, summary: str) -> Done:
    """Record that no other node takes a workload of a lost one; it is tried again with each cycle."""
    why = Stay(NO_FAILOVER_TARGET, f"no failover target: {summary}", Phase.RETRY_PENDING)
    if seen.node is None:
        log.info("no failover target", workload=seen.spec.id, node=seen.status.node_id, why=summary)
    await stay(ctx, seen, guards, why)
    return Done("AwaitFailover", success=False, why=why.why)


async def blocked(ctx: LoopContext, seen: Look, holds: Holds) -> str:
    """Say which node may still run a copy of an exclusive workload that has none now; blank: none can.

    A node may, as long as it owes the stop: one that is heard has to carry it out first, of one that
    is lost the silence has to prove it. With the record of a node an operator has removed its copies.
    """
    if not is_exclusive(seen.spec):
        return ""
    names = {*ctx.index.owed_for(seen.spec.id), seen.status.previous_node} - {""}
    if not names:
        return ""
    refs = [Ref(TOMBSTONES, tombstone_id(name, seen.spec.id)) for name in sorted(names)]
    view = await ctx.store.read(refs)
    for ref in refs:
        owed = view.get(TOMBSTONES, ref.id).record
        if owed and not owed.confirmed and (why := await _may_run(ctx, seen, owed, holds)):
            return f"it is exclusive and may still run on {owed.node_id}: {why}"
    return ""


async def _may_run(ctx: LoopContext, seen: Look, owed: Tombstone, holds: Holds) -> str:
    node = ctx.cache.get(NODES, owed.node_id).record or (await ctx.store.get(NODES, owed.node_id)).record
    if node is None:
        return ""
    if node.is_ready:
        return "the node has not stopped it yet"
    return await holds.reason(seen.spec, as_told(seen.status, owed, ctx.policy), node)


async def weigh(
    ctx: LoopContext, node: Node, owed: Tombstone, spec: WorkloadSpec | None, status: WorkloadStatus | None
) -> Verdict | None:
    """Decide which copy stays of a workload whose lost node is back; None: there is nothing to weigh.

    Raises AgentUnreachable.
    """
    if spec is None or status is None or not is_weighed(spec, status, owed):
        return None
    try:
        found = await ctx.agents.status(node, spec.id)
    except AgentRejected:
        return None
    assignment = ctx.placer.assignment_of(spec.id)
    return which_stays(
        spec,
        status,
        owed,
        node,
        found,
        original_score=ctx.placer.score_on(spec, node.node_id),
        replacement_score=assignment.score if assignment else 0.0,
    )


async def take_back_home(
    ctx: LoopContext, owed: Tombstone, status: WorkloadStatus, verdict: Verdict, guards: Guards
) -> Done:
    """Let the original stay. A replacement that has not started is first kept from ever starting."""
    held = await guards()
    if is_pending(status) and not await _is_cancelled(ctx, status):
        return Done(RETURN, success=False)
    kept = await keep_original(ctx.store, status, owed, ctx.overcommit, rule=verdict.rule, now=ctx.now(), guards=held)
    if kept is None:
        return Done(RETURN, success=False)
    tell(ctx, owed, status.node_id, verdict)
    ctx.wake(owed.workload_id, status.node_id)  # its stop is due
    return Done(RETURN, again=goes_on_here(ctx, owed.workload_id, owed.node_id, kept.node_id))


async def _is_cancelled(ctx: LoopContext, status: WorkloadStatus) -> bool:
    """Have the node of a replacement refuse every order for it, also one that is on its way; False: not now."""
    node = ctx.cache.get(NODES, status.node_id).record
    if node is None or not node.reports_epochs:
        return False
    try:
        return await ctx.agents.delete(node, status.id, epoch=status.epoch)
    except (AgentUnreachable, AgentRejected) as error:
        log.info("a replacement cannot be cancelled", workload=status.id, node=node.node_id, error=str(error))
        return False


def tell(ctx: LoopContext, owed: Tombstone, replacement: str, verdict: Verdict) -> None:
    """Tell people which copy stays, and by which rule."""
    kept, stopped = (owed.node_id, replacement) if verdict.original else (replacement, owed.node_id)
    log.info("a lost node is back", workload=owed.workload_id, kept=kept, stopped=stopped, rule=verdict.rule)
    ctx.emit(
        EventType.RESCHEDULED if verdict.original else EventType.RESCHEDULE_SKIPPED,
        workload_id=owed.workload_id,
        node_id=kept,
        reason=f"node {owed.node_id} is back: the copy on {kept} stays, by the rule {verdict.rule}",
        details={"rule": verdict.rule, "kept": kept, "stopped": stopped},
    )


def came_back(ctx: LoopContext, seen: Look) -> str:
    """Return the node whose copy is to be weighed before a replacement is started for the first time; blank: none."""
    previous = seen.status.previous_node
    if not previous or not is_pending(seen.status):
        return ""
    owed = ctx.cache.get(TOMBSTONES, tombstone_id(previous, seen.spec.id)).record
    node = ctx.cache.get(NODES, previous).record
    return previous if owed and node and node.is_ready and is_weighed(seen.spec, seen.status, owed) else ""


async def renew(ctx: LoopContext, seen: Look, guards: Guards) -> bool:
    """Give an assignment a new epoch that its own node refuses as too old; say whether that was done."""
    epoch = await renew_epoch(ctx.store, seen.status, now=ctx.now(), guards=await guards())
    if epoch:
        node_id = seen.status.node_id
        log.warning("a refused assignment has a new epoch", workload=seen.spec.id, node=node_id, epoch=epoch)
    return epoch is not None
