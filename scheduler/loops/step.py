"""One step on one workload: look, decide, act, record.

The look that an action rests on is a read of etcd itself, made right before it. What is
recorded afterwards compares the assignment again; an order that turns out to have been for an
assignment that is over is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from scheduler.agents.classify import NOT_NOW, OLDER_EPOCH
from scheduler.convergence.actions import Action, Apply, Ask, Delete, Finalise, Halt, Nothing, Place, Stop
from scheduler.convergence.drain import Relocate, Vacate, waits_for
from scheduler.convergence.failures import RETRIES_EXHAUSTED, lacks_runtime
from scheduler.convergence.loss import Move, Stay, Wait
from scheduler.domain.errors import AgentRejected, AgentUnreachable, Fenced
from scheduler.domain.event import EventType
from scheduler.domain.node import Node
from scheduler.domain.policy import told_stop_after_ms
from scheduler.domain.workload import Actual, Desired
from scheduler.loops.context import Guards, LoopContext
from scheduler.loops.done import Done, goes_on_here
from scheduler.loops.drain_steps import relocate, vacate
from scheduler.loops.drain_turns import wake_next
from scheduler.loops.holds import Holds
from scheduler.loops.look import Look, action_for, look
from scheduler.loops.loss_steps import RETURN, blocked, came_back, no_target, renew, stay, take_back_home, weigh
from scheduler.loops.loss_steps import tell as tell_of_return
from scheduler.loops.replicas import copy_is_gone, end_copies
from scheduler.placement.request import request_of, workload_type
from scheduler.store.assign import Placed, Vanished
from scheduler.store.keys import LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.losses import is_told_blocked, record_blocked
from scheduler.store.nodes import drop_type
from scheduler.store.observations import (
    Counted,
    Recorded,
    record_applied,
    record_failure,
    record_halt,
    record_report,
)
from scheduler.store.placements import Outcome
from scheduler.store.refit import is_committed, refit
from scheduler.store.tombstones import add_tombstone, clear_tombstone, tombstone_id
from scheduler.store.volumes import needs_keeping_up
from scheduler.store.workloads import finalize_delete
from scheduler.store.write import Guard, Ref

log = structlog.get_logger(__name__)

UNREACHABLE = "AGENT_UNREACHABLE"
APPLY = "ReapplyRunning"
STOP = "ApplyStopped"
HALT = "TerminalFailureNoReapply"


async def step(ctx: LoopContext, workload_id: str, guards: Guards, holds: Holds) -> Done:
    """Do the next thing for a workload. Raises Fenced, StoreUnavailable, Conflict."""
    seen = await look(ctx, workload_id)
    if seen is None:
        return Done("NoAction")
    action = await action_for(ctx, seen, holds)
    if isinstance(action, Apply | Stop | Ask | Halt | Delete | Finalise):
        done = await _on_its_node(ctx, seen, guards, action)
    else:
        done = await _find_its_node(ctx, seen, guards, holds, action)
    _tell(ctx, workload_id, action, done)
    return done


def _tell(ctx: LoopContext, workload_id: str, action: Action, done: Done) -> None:
    """Count what a step did; have it kept for people, where it did something or tried to."""
    ctx.on_result(done.what, done.success)
    if done.what != "NoAction" and not isinstance(action, Nothing | Wait):
        why = done.why or getattr(action, "why", "")
        ctx.record(workload_id, done.what, success=done.success, reason=why, anew=done.anew)


async def _find_its_node(
    ctx: LoopContext,
    seen: Look,
    guards: Guards,
    holds: Holds,
    action: Nothing | Wait | Place | Stay | Move | Relocate | Vacate,
) -> Done:
    """Do what concerns the question on which node the workload is."""
    match action:
        case Nothing() | Wait():
            return Done(action.name if isinstance(action, Wait) else "NoAction")
        case Place():
            return await _place(ctx, seen, guards, holds)
        case Stay():
            return await stay(ctx, seen, guards, action)
        case Move(why=why):
            return await _move(ctx, seen, guards, why)
        case Relocate(why=why):
            return await relocate(ctx, seen, guards, why)
        case Vacate(why=why):
            return await vacate(ctx, seen, guards, why)


async def _on_its_node(
    ctx: LoopContext, seen: Look, guards: Guards, action: Apply | Stop | Ask | Halt | Delete | Finalise
) -> Done:
    """Do what concerns the copy on its node."""
    match action:
        case Apply(why=why) | Stop(why=why):
            return await _order(ctx, seen, guards, why)
        case Ask(why=why):
            return await _ask(ctx, seen, guards, why)
        case Halt():
            return await _halt(ctx, seen, guards, action)
        case Delete():
            return await _delete(ctx, seen, guards)
        case Finalise(tombstone=tombstone):
            return await _finalise(ctx, seen, guards, tombstone=tombstone)


async def _halt(ctx: LoopContext, seen: Look, guards: Guards, halt: Halt) -> Done:
    """Record that it is not started again, and tell of it once."""
    if await record_halt(ctx.store, seen.status, halt.code, halt.why, now=ctx.now(), guards=await guards()):
        _tell_of_end(ctx, seen, halt.code, halt.why)
    return Done(HALT, why=f"{halt.code}: {halt.why}")


def _tell_of_end(ctx: LoopContext, seen: Look, code: str, why: str) -> None:
    log.warning("a workload has failed for good", workload=seen.spec.id, code=code, why=why)
    details = {"code": code, "revision": seen.spec.revision_id}
    ctx.emit(
        EventType.WORKLOAD_FAILED, workload_id=seen.spec.id, node_id=seen.status.node_id, reason=why, details=details
    )


async def settle_tombstone(ctx: LoopContext, node_id: str, workload_id: str, guards: Guards) -> Done:
    """Have a node that is back do the removal it owes."""
    identifier = tombstone_id(node_id, workload_id)
    view = await ctx.store.read([
        Ref(TOMBSTONES, identifier), Ref(SPECS, workload_id), Ref(STATUSES, workload_id), Ref(NODES, node_id)
    ])  # fmt: skip
    owed, status = view.get(TOMBSTONES, identifier).record, view.get(STATUSES, workload_id).record
    node = view.get(NODES, node_id).record
    if owed is None or node is None or not node.is_ready:
        return Done("NoAction")
    if waits_for(owed, view.get(SPECS, workload_id).record, status, ctx.now()):
        return Done("NoAction")
    # A newer assignment to the same node takes an old copy over; to agents that know no epochs a delete would hit it.
    taken_over = status is not None and status.node_id == node_id and status.epoch > owed.epoch
    held = await guards()
    try:
        verdict = await weigh(ctx, node, owed, view.get(SPECS, workload_id).record, status)
    except AgentUnreachable:
        return Done(RETURN, success=False)
    if status and verdict and verdict.original:
        return await take_back_home(ctx, owed, status, verdict, guards)
    if not taken_over and not await _is_removed(ctx, node, workload_id, owed.epoch):
        return Done("Delete", success=False)
    cleared = await clear_tombstone(ctx.store, node_id, workload_id, owed.epoch, guards=held)
    wake_next(ctx, node_id)
    if cleared and status and verdict:
        tell_of_return(ctx, owed, status.node_id, verdict)
    return Done("Delete")


async def _is_removed(ctx: LoopContext, node: Node, workload_id: str, epoch: int) -> bool:
    """Remove every copy up to an epoch from a node; say whether there is none any more."""
    try:
        return await ctx.agents.delete(node, workload_id, epoch=epoch)
    except AgentUnreachable:
        return False
    except AgentRejected as error:
        if error.code == OLDER_EPOCH:
            return True
        log.warning("a node refuses a removal it owes", node=node.node_id, workload=workload_id, error=str(error))
        return False


async def _place(ctx: LoopContext, seen: Look, guards: Guards, holds: Holds) -> Done:
    if why := await blocked(ctx, seen, holds):
        told = is_told_blocked(seen.status, why)
        if not told and await record_blocked(ctx.store, seen.spec.id, why, guards=await guards()):
            log.info("a workload waits for the end of its old copy", workload=seen.spec.id, why=why)
        return Done("Assign", success=False, why=why)
    outcome = await ctx.placer.place(seen.spec.id, guards=await guards(), frees_volumes=True)
    return _handed_on(ctx, seen, outcome)


def _handed_on(ctx: LoopContext, seen: Look, outcome: Outcome) -> Done:
    """After an attempt to find a node: go on here, or leave it to the shard of the node."""
    if isinstance(outcome, Vanished):
        return Done("Assign", again=True)
    if not isinstance(outcome, Placed):
        return Done("Assign", success=False, why=outcome.summary)
    workload_id = seen.spec.id
    ctx.emit(EventType.WORKLOAD_SCHEDULED, workload_id=workload_id, node_id=outcome.node_id, reason=outcome.reason)
    again = goes_on_here(ctx, workload_id, seen.status.node_id, outcome.node_id)
    return Done("Assign", again=again, why=f"to {outcome.node_id}: {outcome.reason}", anew=True)


async def _move(ctx: LoopContext, seen: Look, guards: Guards, why: str) -> Done:
    workload_id, old = seen.spec.id, seen.status.node_id
    outcome = await ctx.placer.move(workload_id, from_node=old, guards=await guards())
    if isinstance(outcome, Vanished):
        return Done("Reschedule", again=True)
    if not isinstance(outcome, Placed):
        return await no_target(ctx, seen, guards, outcome.summary)
    if outcome.node_id == old:
        return Done("NoAction")
    ctx.emit(
        EventType.RESCHEDULED,
        workload_id=workload_id,
        node_id=outcome.node_id,
        reason=why,
        details={"previous_node": old, "epoch": str(outcome.epoch)},
    )
    again = goes_on_here(ctx, workload_id, seen.status.node_id, outcome.node_id)
    return Done("Reschedule", again=again, why=f"from {old} to {outcome.node_id}: {why}", anew=True)


async def _order(ctx: LoopContext, seen: Look, guards: Guards, why: str) -> Done:
    """Tell the node what the spec wants."""
    what = STOP if seen.spec.desired_state == Desired.STOPPED else APPLY
    node, status, held = _node(seen), seen.status, await guards()
    if returned := came_back(ctx, seen):
        settled = await settle_tombstone(ctx, returned, status.id, guards)
        if settled.what == RETURN and settled.success:
            return replace(settled, again=True)
    if misfit := await _misfit(ctx, seen, guards):
        log.info("a workload gives up its node", workload=status.id, node=node.node_id, why=misfit)
        await settle_tombstone(ctx, node.node_id, status.id, guards)
        return Done("ReschedulePending", again=True, why=misfit)
    if what == APPLY and (alive := await _lives_already(ctx, seen, held)):
        return alive
    try:
        report = await ctx.agents.apply(node, seen.spec, desired=seen.spec.desired_state, epoch=status.epoch)
    except (AgentUnreachable, AgentRejected) as error:
        return await _not_taken(ctx, seen, guards, what, error)
    log.info("ordered", workload=status.id, node=node.node_id, what=what, why=why, epoch=status.epoch)
    try:
        recorded = await record_applied(
            ctx.store,
            seen.spec,
            status,
            report,
            now=ctx.now(),
            reapply_base_seconds=ctx.policy.reapply_base_seconds,
            guards=held,
            told_stop_after_ms=told_stop_after_ms(seen.spec, ctx.policy.stop_after_seconds, ctx.policy.lease_seconds),
        )
    except Fenced:
        await _owe_if_over(ctx, seen)
        raise
    if recorded is Recorded.SUPERSEDED:
        await _take_back(ctx, seen, guards)
        return Done(what, success=False, again=True, why="the order came too late: the assignment is over")
    if status.reapply.attempts and what == APPLY:
        ctx.emit(EventType.RETRY_TRIGGERED, workload_id=status.id, node_id=node.node_id, reason=why)
    return Done(what, why=why, anew=True)


async def _lives_already(ctx: LoopContext, seen: Look, guards: Sequence[Guard]) -> Done | None:
    """Look again before a copy is started anew, where news comes by lists and may be old; None: start it."""
    node, status = _node(seen), seen.status
    if node.reports_epochs or status.observed_revision != seen.spec.revision_id or status.actual == Actual.PENDING:
        return None
    try:
        report = await ctx.agents.status(node, status.id)
    except (AgentUnreachable, AgentRejected):
        return None  # the order will tell
    if report.state != Actual.RUNNING or status.observed_generation < seen.spec.generation:
        return None
    await record_report(
        ctx.store, node.node_id, report, now=ctx.now(), from_cache=False, guards=guards,
        seen_revision=seen.status_revision,
    )  # fmt: skip
    return Done("NoAction")


async def _misfit(ctx: LoopContext, seen: Look, guards: Guards) -> str:
    """Bring the node's ledger in line with a changed spec; say why that is impossible, blank when it is not."""
    status = seen.status
    changed = status.observed_revision not in ("", seen.spec.revision_id)
    changed = changed or status.observed_generation < seen.spec.generation  # a policy: where it may run
    ledger = ctx.cache.get(LEDGERS, status.node_id).record
    is_held = is_committed(ledger, request_of(seen.spec), status.epoch) and not needs_keeping_up(seen.spec, status)
    if not changed and is_held:
        return ""
    return await refit(ctx.store, status, ctx.overcommit, now=ctx.now(), guards=await guards())


async def _not_taken(
    ctx: LoopContext, seen: Look, guards: Guards, what: str, error: AgentUnreachable | AgentRejected
) -> Done:
    """Record why an order did not get through. Only a refusal of the order itself delays the next one."""
    code = error.code if isinstance(error, AgentRejected) else UNREACHABLE
    if code == OLDER_EPOCH:
        log.warning("a node knows a newer assignment", workload=seen.spec.id, epoch=seen.status.epoch)
        await renew(ctx, seen, guards)
        return Done(what, success=False, why=f"{code}: {error}")
    if what == APPLY and lacks_runtime(code, str(error)):
        return await _without_runtime(ctx, seen, guards, str(error))
    uses_up = what in (APPLY, STOP) and code not in (UNREACHABLE, NOT_NOW)
    counted = await record_failure(
        ctx.store,
        seen.status,
        code=code,
        message=str(error),
        counted=uses_up,
        now=ctx.now(),
        grace_seconds=ctx.policy.retry_grace_seconds,
        guards=await guards(),
    )
    if counted is Counted.EXHAUSTED:
        _tell_of_end(ctx, seen, RETRIES_EXHAUSTED, str(error))
    return Done(what, success=False, why=f"{code}: {_message(seen, code, error, counted)}", anew=uses_up)


def _message(seen: Look, code: str, error: Exception, counted: Counted) -> str:
    """Return what an agent's failure says; the words it was recorded with, where an outage words it anew each time."""
    known = seen.status.status_info.reason
    return known.message if counted is Counted.KNOWN and known and known.code == code else str(error)


async def _without_runtime(ctx: LoopContext, seen: Look, guards: Guards, why: str) -> Done:
    """Take a node for one that cannot run workloads of this type, until its agent registers again; find another one."""
    node, workload_id = _node(seen), seen.spec.id
    held = await guards()
    await drop_type(ctx.store, node.node_id, workload_type(seen.spec.type), guards=held)
    misfit = await refit(ctx.store, seen.status, ctx.overcommit, now=ctx.now(), guards=held)
    log.warning("a node lacks a runtime", node=node.node_id, workload=workload_id, type=seen.spec.type, error=why)
    if misfit:
        ctx.emit(EventType.RESCHEDULED, workload_id=workload_id, node_id=node.node_id, reason=why)
        await settle_tombstone(ctx, node.node_id, workload_id, guards)
    return Done("ReschedulePending", success=bool(misfit), again=bool(misfit), why=why)


async def _take_back(ctx: LoopContext, seen: Look, guards: Guards) -> None:
    """Have the copy removed that was ordered for an assignment which is over."""
    await _owe(ctx, seen)
    await settle_tombstone(ctx, seen.status.node_id, seen.status.id, guards)


async def _owe_if_over(ctx: LoopContext, seen: Look) -> None:
    """When a newer cycle has begun: leave it a tombstone if the order was for an assignment that is over."""
    now_is = (await ctx.store.get(STATUSES, seen.status.id)).record
    if now_is is None or (now_is.node_id, now_is.epoch) != (seen.status.node_id, seen.status.epoch):
        await _owe(ctx, seen)


async def _owe(ctx: LoopContext, seen: Look) -> None:
    """Leave a tombstone. It needs no guard: whatever has happened since, that assignment never comes back."""
    status = seen.status
    await add_tombstone(ctx.store, status.node_id, status.id, status.epoch, now=ctx.now())
    log.info("an order came too late and is taken back", workload=status.id, node=status.node_id, epoch=status.epoch)


async def _ask(ctx: LoopContext, seen: Look, guards: Guards, why: str) -> Done:
    """Ask the agent; when it has no news either, send the order again: it may have been lost."""
    node = _node(seen)
    held = await guards()
    try:
        report = await ctx.agents.status(node, seen.spec.id)
    except (AgentUnreachable, AgentRejected) as error:
        return await _not_taken(ctx, seen, guards, "Investigate", error)
    outcome = await record_report(
        ctx.store,
        node.node_id,
        report,
        now=ctx.now(),
        from_cache=False,
        guards=held,
        seen_revision=seen.status_revision,
    )
    if outcome.changed and report.state not in (Actual.PENDING, Actual.UNKNOWN):
        return Done("Investigate", again=outcome.needs_action)
    fresh = await look(ctx, seen.spec.id)
    return Done("Investigate") if fresh is None or fresh.node is None else await _order(ctx, fresh, guards, why)


async def _delete(ctx: LoopContext, seen: Look, guards: Guards) -> Done:
    node, status = _node(seen), seen.status
    await guards()
    try:
        gone = await ctx.agents.delete(node, status.id, epoch=status.epoch)
    except (AgentUnreachable, AgentRejected) as error:
        return await _not_taken(ctx, seen, guards, "Delete", error)
    return await _finalise(ctx, seen, guards, tombstone=False) if gone else Done("Delete")


async def _finalise(ctx: LoopContext, seen: Look, guards: Guards, *, tombstone: bool) -> Done:
    await end_copies(ctx, seen.spec, guards)
    removed = await finalize_delete(
        ctx.store, seen.spec.id, tombstone=tombstone, now=ctx.now(), guards=await guards(), seen=seen.status
    )
    if removed:
        ctx.emit(EventType.WORKLOAD_DELETED, workload_id=seen.spec.id, node_id=seen.status.node_id)
        copy_is_gone(ctx, seen.spec)
    return Done("FinalizeDelete", success=removed)


def _node(seen: Look) -> Node:
    if seen.node is None:
        raise AssertionError(f"{seen.spec.id}: an action that needs a node was decided without one")
    return seen.node
