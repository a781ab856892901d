"""The workload monitor: refresh what agents that report no epochs have, and count states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from scheduler.domain.shard import Cycle
from scheduler.loops.context import Fence, LoopContext
from scheduler.loops.each import each
from scheduler.loops.observe import observe
from scheduler.store.keys import STATUSES


async def run(
    ctx: LoopContext,
    cycle: Cycle,  # noqa: ARG001 - every loop has this form
    nodes: Sequence[str],
    *,
    unassigned: bool,  # noqa: ARG001
    fence: Fence,
) -> dict[str, int]:
    """Record what those agents report; return how many workloads of the nodes are in each state, and what changed.

    Our own agents report changes in their heartbeats and are not asked. Raises Fenced, StoreUnavailable.
    """
    tally: Counter[str] = Counter()

    async def refresh(node_id: str) -> None:
        seen = await observe(ctx, node_id, fence.guards)
        tally["listed"] += seen.asked
        tally["changed"] += seen.changed
        for workload_id in seen.needs_action:
            ctx.wake(workload_id, node_id)

    await each(nodes, ctx.settings.reconcile_concurrency, refresh)
    for node_id in nodes:
        for workload_id in ctx.index.on_node(node_id):
            status = ctx.cache.get(STATUSES, workload_id).record
            tally[(status.status if status else "") or "Unknown"] += 1
    return dict(tally)
