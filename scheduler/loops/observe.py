"""Asking agents that report no epochs: one list of the node instead of one question a workload."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, WorkloadStatus
from scheduler.loops.context import Guards, LoopContext
from scheduler.store.keys import NODES, SPECS, STATUSES
from scheduler.store.observations import ReportOutcome, is_news, record_missing, record_report
from scheduler.store.write import Versioned

log = structlog.get_logger(__name__)


@dataclass
class Observed:
    """What a list showed."""

    asked: bool = False
    changed: int = 0
    unknown: int = 0
    """Workloads that no record speaks of: counted, and left alone."""
    needs_action: set[str] = field(default_factory=set)


async def observe(ctx: LoopContext, node_id: str, guards: Guards) -> Observed:
    """List what a node has and record what differs. A node that reports epochs, or is not Ready, is not asked."""
    node = ctx.cache.get(NODES, node_id).record
    if node is None or node.reports_epochs or not node.is_ready:
        return Observed()
    before = {w: ctx.cache.get(STATUSES, w) for w in ctx.index.on_node(node_id)}
    if not before:
        return Observed()
    try:
        reports = {report.workload_id: report for report in await ctx.agents.list(node)}
    except (AgentUnreachable, AgentRejected) as error:
        log.info("a node could not be listed", node=node_id, error=str(error))
        return Observed()
    found = Observed(asked=True, unknown=sum(ctx.cache.get(SPECS, w).record is None for w in reports))
    for workload_id in sorted(reports.keys() | before.keys()):
        line = _Line(node_id, workload_id, reports.get(workload_id), before.get(workload_id))
        outcome = await _record(ctx, line, guards)
        found.changed += outcome.changed
        if outcome.changed and outcome.needs_action:
            found.needs_action.add(workload_id)
    return found


@dataclass(frozen=True, slots=True)
class _Line:
    """A workload of the list, and its status as known before the node was asked."""

    node_id: str
    workload_id: str
    report: Report | None
    before: Versioned[WorkloadStatus] | None


async def _record(ctx: LoopContext, line: _Line, guards: Guards) -> ReportOutcome:
    """Record one line of the list, unless the status has changed since the node was asked."""
    spec, status = ctx.cache.get(SPECS, line.workload_id).record, ctx.cache.get(STATUSES, line.workload_id).record
    if spec is None or status is None:
        return ReportOutcome()
    seen_revision = line.before.mod_revision if line.before else None
    if line.report:
        if not is_news(spec, status, line.node_id, line.report):
            return ReportOutcome()
        return await record_report(
            ctx.store, line.node_id, line.report, now=ctx.now(), guards=await guards(), seen_revision=seen_revision
        )
    if status.actual == Actual.MISSING or not status.observed_revision:
        return ReportOutcome()
    return await record_missing(
        ctx.store,
        line.node_id,
        line.workload_id,
        status.epoch,
        now=ctx.now(),
        guards=await guards(),
        seen_revision=seen_revision,
    )
