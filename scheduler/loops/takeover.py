"""Take over what the reference scheduler has stored: some each cycle, those that call for a look at once."""

from __future__ import annotations

import structlog

from scheduler.domain.errors import Conflict, Fenced, StoreUnavailable
from scheduler.domain.event import EventType
from scheduler.domain.shard import shard_of
from scheduler.leadership.shards import current_map
from scheduler.loops.context import Guards, LoopContext
from scheduler.store.decode import CorruptRecord
from scheduler.store.kv import StoreRefused
from scheduler.store.takeover import Outcome, TakenOver, take_over

log = structlog.get_logger(__name__)

MAX_TAKEN = 200
"""Workloads of a shard taken over in one cycle, some milliseconds each."""


async def take_over_some(ctx: LoopContext, shard: int, guards: Guards) -> int:
    """Take over what waits in a shard, up to a bound; return how many became ours. Raises Fenced, StoreUnavailable."""
    shards = current_map(ctx.cache)
    if shards is None or not (waiting := ctx.foreign.waiting(ctx.now())):
        return 0
    mine = [w for w in waiting if shard_of(w, shards) == shard]
    return sum([await _is_taken(ctx, w, guards) for w in mine[:MAX_TAKEN]])


async def _is_taken(ctx: LoopContext, workload_id: str, guards: Guards) -> bool:
    """Take over one of several: what is wrong with its records stops no other."""
    try:
        return (await take_over_now(ctx, workload_id, guards)).outcome is Outcome.TAKEN
    except (Conflict, CorruptRecord, StoreRefused) as error:
        if isinstance(error, Fenced):
            raise
        if ctx.foreign.leave(workload_id, str(error), ctx.now()):
            log.warning("a workload is not taken over now", workload_id=workload_id, error=str(error))
        return False
    except StoreUnavailable:
        raise
    except Exception as error:
        if ctx.foreign.leave(workload_id, repr(error), ctx.now()):
            log.exception("the takeover of a workload hit a defect", workload_id=workload_id)
        ctx.on_result(Outcome.LEFT, False)  # noqa: FBT003 - as for every step
        return False


async def take_over_now(ctx: LoopContext, workload_id: str, guards: Guards) -> TakenOver:
    """Take over one workload, and have it looked at. Raises Fenced, StoreUnavailable, Conflict."""
    done = await take_over(ctx.store, workload_id, now=ctx.now(), guards=await guards())
    if done.outcome is Outcome.LEFT:
        if ctx.foreign.leave(workload_id, done.why, ctx.now()):
            log.error("a record of another scheduler is left as it is", workload_id=workload_id, why=done.why)
        ctx.on_result(done.outcome, False)  # noqa: FBT003 - as for every step
    elif done.outcome is not Outcome.NOTHING:
        log.info("a record of another scheduler was taken over", workload_id=workload_id, node_id=done.node_id)
        ctx.on_result(done.outcome, True)  # noqa: FBT003
    if done.outcome is Outcome.TAKEN:
        if done.node_id:
            ctx.emit(EventType.WORKLOAD_SCHEDULED, workload_id=workload_id, node_id=done.node_id, reason="taken over")
        ctx.wake(workload_id, done.node_id)
    return done
