"""Keeping the copies of workloads: part of the reconcile loop, by the shard that drives the workload itself.

A cycle compares in memory; only sets that differ cost a read or a write. Copies whose workload is
gone are driven by the shard of its id.
"""

from __future__ import annotations

import structlog

from scheduler.domain.errors import Conflict
from scheduler.domain.replicas import FIRST_NUMBER, number_of, replica_id
from scheduler.domain.shard import ShardMap, shard_of_workload
from scheduler.domain.workload import WorkloadSpec
from scheduler.leadership.shards import current_map
from scheduler.loops.context import Guards, LoopContext
from scheduler.store.cache import Cache
from scheduler.store.keys import SPECS, STATUSES
from scheduler.store.replicas import EVENTS, Settled, write_copies

log = structlog.get_logger(__name__)

MAX_CHANGES = 400
"""Copies written in one cycle; the next one goes on."""


async def keep_replicas(ctx: LoopContext, shard: int, guards: Guards) -> int:
    """Bring the copies of all workloads of a shard in line; return how many were changed."""
    shards = current_map(ctx.cache)
    if shards is None:
        return 0
    written = 0
    for workload_id in ctx.replicas.replicated():
        if written >= MAX_CHANGES:
            break
        if _shard_of(ctx.cache, workload_id, shards) != shard:
            continue
        try:
            written += await keep_copies(ctx, workload_id, guards, MAX_CHANGES - written)
        except Conflict as error:  # of this workload only; the next cycle goes on with it
            log.warning("copies kept changing", workload=workload_id, error=str(error))
    return written


async def keep_copies(ctx: LoopContext, workload_id: str, guards: Guards, most: int = MAX_CHANGES) -> int:
    """Bring the copies of one workload in line, as far as the cache tells that they are not; return how many were."""
    parent = ctx.cache.get(SPECS, workload_id).record
    due = ctx.replicas.due(workload_id, parent)[:most]
    if not due:
        return 0
    done = await write_copies(
        ctx.store, workload_id, [change.id for change in due], now=ctx.now(), guards=await guards()
    )
    log.info("copies changed", workload=workload_id, count=len(done), wanted=parent.replicas if parent else 0)
    for one in done:
        _tell(ctx, workload_id, one)
    return len(done)


async def end_copies(ctx: LoopContext, spec: WorkloadSpec, guards: Guards) -> None:
    """Before the records of a deleted workload go: have all its copies marked for removal, by the word of etcd."""
    wanted = {replica_id(spec.id, number) for number in range(FIRST_NUMBER, spec.replicas + 1)}
    ids = sorted(wanted | set(ctx.replicas.copies_of(spec.id)))
    if not ids:
        return
    for one in await write_copies(ctx.store, spec.id, ids, now=ctx.now(), guards=await guards()):
        _tell(ctx, spec.id, one)


def copy_is_gone(ctx: LoopContext, copy: WorkloadSpec) -> None:
    """After the records of a copy went: when its number is wanted again, have it created anew at once."""
    parent = ctx.cache.get(SPECS, copy.replica_of).record if copy.replica_of else None
    if parent and number_of(copy) <= parent.replicas:
        ctx.wake(parent.id, _node_of(ctx.cache, parent.id))


def _tell(ctx: LoopContext, workload_id: str, one: Settled) -> None:
    ctx.wake(one.change.id, one.node_id)
    if kind := EVENTS.get(one.change.what):
        ctx.emit(kind, workload_id=one.change.id, node_id=one.node_id, reason=f"copy of {workload_id}")


def _shard_of(cache: Cache, workload_id: str, shards: ShardMap) -> int:
    return shard_of_workload(workload_id, _node_of(cache, workload_id), shards)


def _node_of(cache: Cache, workload_id: str) -> str:
    status = cache.get(STATUSES, workload_id).record
    return status.node_id if status else ""
