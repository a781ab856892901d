"""The node monitor: notice nodes that have fallen silent.

It marks, and moves nothing: the reconcile loop moves the work of nodes that stay NotReady for
the grace. A node that is heard again is marked Ready by the front that hears it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from scheduler.convergence.liveness import Brake, silent_nodes
from scheduler.domain.event import EventType
from scheduler.domain.node import Health, Node
from scheduler.domain.shard import Cycle
from scheduler.leadership.brakes import brake_of
from scheduler.loops.context import Fence, LoopContext
from scheduler.store.keys import NODES
from scheduler.store.nodes import set_health
from scheduler.store.write import Versioned
from scheduler.telemetry.redis import TelemetryUnavailable

log = structlog.get_logger(__name__)


async def run(
    ctx: LoopContext,
    cycle: Cycle,
    nodes: Sequence[str],
    *,
    unassigned: bool,  # noqa: ARG001 - every loop has this form
    fence: Fence,
) -> dict[str, int]:
    """Mark those of the nodes NotReady that have provably been silent for the lease.

    Return how many are ready and how many were lost. Raises Fenced, StoreUnavailable.
    """
    known = {node_id: ctx.cache.get(NODES, node_id) for node_id in nodes}
    ready = {i: node for i, node in known.items() if node.record and node.record.is_ready}
    if not ready:
        return {"ready": 0}
    try:
        log_of_pulses = await ctx.pulses.read(sorted(ready))
    except TelemetryUnavailable as error:
        log.warning("nobody can be judged: pulses cannot be read", shard=cycle.shard, error=str(error))
        return {"telemetry_away": 1}
    records = [node.record for node in ready.values() if node.record]
    silent = silent_nodes(records, log_of_pulses, lease_seconds=ctx.settings.node_lease_seconds)
    lost = 0
    for node_id, reason in silent.items():
        if await _mark(ctx, ready[node_id], reason, fence):
            lost += 1
            log.warning("a node fell silent", node=node_id, reason=reason)
            ctx.emit(EventType.NODE_LOST, node_id=node_id, reason=reason)
    if lost:
        await ctx.cache.wait_revision(ctx.store.last_revision, ctx.settings.etcd_timeout_seconds)
        _tell_of_brake(ctx, ready[next(iter(silent))])
    return {"ready": len(ready) - lost, "lost": lost}


async def _mark(ctx: LoopContext, node: Versioned[Node], reason: str, fence: Fence) -> bool:
    """Mark one node, unless its record has changed since it was judged."""
    return await set_health(
        ctx.store,
        node.id,
        Health.NOT_READY,
        reason,
        "monitor",
        now=ctx.now(),
        guards=await fence.guards(),
        seen_revision=node.mod_revision,
    )


def _tell_of_brake(ctx: LoopContext, node: Versioned[Node]) -> None:
    held = brake_of(ctx.cache, ctx.settings, node.record, ctx.now()) if node.record else Brake()
    if held.held:
        log.error("the brake holds", reason=held.reason, nodes=len(held.held))
        ctx.emit(EventType.BRAKE_HELD, reason=held.reason, details={"nodes": str(len(held.held))})
