"""Asking agents that report no epochs: one list of the node instead of one question a workload.

Only when the list fails are its workloads asked for by themselves (F45), and none any more once the
agent does not answer: a dead one costs a list and, at most, one call a slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.node import Node
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, WorkloadStatus
from scheduler.loops.context import Guards, LoopContext
from scheduler.loops.each import each
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
        seen = sorted(reports.keys() | before.keys())
    except (AgentUnreachable, AgentRejected) as error:
        log.info("a node could not be listed, asking for its workloads", node=node_id, error=str(error))
        asked = await _ask_one_by_one(ctx, node, list(before))
        reports = {w: report for w, report in asked.items() if report.state != Actual.MISSING}
        seen = sorted(asked)
    found = Observed(asked=bool(seen), unknown=sum(ctx.cache.get(SPECS, w).record is None for w in reports))
    for workload_id in seen:
        line = _Line(node_id, workload_id, reports.get(workload_id), before.get(workload_id))
        outcome = await _record(ctx, line, guards)
        found.changed += outcome.changed
        if outcome.changed and outcome.needs_action:
            found.needs_action.add(workload_id)
    return found


async def _ask_one_by_one(ctx: LoopContext, node: Node, workload_ids: Sequence[str]) -> dict[str, Report]:
    """Return what the node says of each workload; once it does not answer, no more of them are asked for."""
    answers: dict[str, Report] = {}
    silent = False

    async def ask(workload_id: str) -> None:
        nonlocal silent
        if silent:
            return
        try:
            answers[workload_id] = await ctx.agents.status(node, workload_id)
        except AgentUnreachable:
            silent = True
        except AgentRejected as error:
            log.info("a node does not tell of a workload", node=node.node_id, workload=workload_id, error=str(error))

    await each(workload_ids, ctx.settings.calls_per_node, ask)
    return answers


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
