"""Drift detection, as far as it goes now: count where agents that report no epochs differ. Nothing is touched.

What our own agents have is compared by the fronts with every full report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog

from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.node import Node
from scheduler.domain.report import Report
from scheduler.domain.shard import Cycle
from scheduler.domain.workload import Desired
from scheduler.loops.context import Fence, LoopContext
from scheduler.loops.each import each
from scheduler.store.keys import NODES, SPECS, STATUSES

log = structlog.get_logger(__name__)


async def run(
    ctx: LoopContext,
    cycle: Cycle,  # noqa: ARG001 - every loop has this form
    nodes: Sequence[str],
    *,
    unassigned: bool,  # noqa: ARG001
    fence: Fence,  # noqa: ARG001
) -> dict[str, int]:
    """Return how many nodes were compared, and how many differences of each kind were found."""
    tally: Counter[str] = Counter()

    async def compare(node_id: str) -> None:
        node = ctx.cache.get(NODES, node_id).record
        if node is None or node.reports_epochs or not node.is_ready:
            return
        try:
            reports = await ctx.agents.list(node)
        except (AgentUnreachable, AgentRejected) as error:
            log.info("a node could not be compared", node=node_id, error=str(error))
            tally["unreachable"] += 1
            return
        tally["compared"] += 1
        tally.update(_differences(ctx, node, reports))

    await each(nodes, ctx.settings.reconcile_concurrency, compare)
    return dict(tally)


def _differences(ctx: LoopContext, node: Node, reports: Sequence[Report]) -> Counter[str]:
    """Count what differs. Workloads that no record speaks of are counted and kept."""
    found = Counter(_difference(ctx, node.node_id, report) for report in reports)
    had = {report.workload_id for report in reports}
    for workload_id in ctx.index.on_node(node.node_id):
        spec, status = ctx.cache.get(SPECS, workload_id).record, ctx.cache.get(STATUSES, workload_id).record
        applied = status is not None and bool(status.observed_revision)
        if workload_id not in had and applied and spec and spec.desired_state != Desired.DELETED:
            found["missing"] += 1
    del found[""]
    return found


def _difference(ctx: LoopContext, node_id: str, report: Report) -> str:
    spec, status = (
        ctx.cache.get(SPECS, report.workload_id).record,
        ctx.cache.get(STATUSES, report.workload_id).record,
    )
    if spec is None or status is None:
        return "unknown"
    if status.node_id != node_id:
        return "elsewhere"
    if report.revision_id and report.revision_id != spec.revision_id:
        return "revision"
    return "" if report.state == status.actual else "state"
