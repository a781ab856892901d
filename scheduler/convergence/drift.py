"""What differs on a node, what is to be done about it, and whether a copy nobody knows may be deleted. Pure.

Most differences need nothing of their own: news about a workload's copy is recorded as if the agent
had reported it, and reconciling does the rest. Copies of workloads that are assigned elsewhere, or
are being deleted, get a tombstone. A copy that no record speaks of is another matter: the records
may be the ones that are wrong. It is kept, unless the operator says otherwise, and deleted only
after several sightings over a grace, few at a time, on a node that is this cluster's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.domain.drift import DriftAction, DriftRecord, DriftType, OrphanPolicy
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, Tombstone, WorkloadSpec, WorkloadStatus

SETTLED_SECONDS = 30.0
"""A copy whose record has just changed is not called missing: the order may be on its way."""
UNKNOWN = "unknown"
"""The status of what no record speaks of."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """When a copy that nobody knows may be deleted."""

    policy: OrphanPolicy = OrphanPolicy.KEEP
    sightings: int = 3
    grace_seconds: float = 600.0
    max_share: float = 0.1
    """Of the copies of a node, in one cycle; one is always allowed."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """What the records say about one workload."""

    spec: WorkloadSpec | None = None
    status: WorkloadStatus | None = None
    owed: Tombstone | None = None
    """The stop that the node owes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference."""

    workload_id: str
    kind: DriftType
    action: DriftAction
    scheduler_status: str
    agent_status: str
    epoch: int = 0


def findings(
    node_id: str, reports: Mapping[str, Report], known: Mapping[str, Known], now: datetime, policy: OrphanPolicy
) -> list[Finding]:
    """Compare what a node has with what the records say; in order of the workloads' ids.

    known: of all workloads that the node reports or that are assigned to it.
    """
    found = (_difference(node_id, w, reports.get(w), known.get(w, Known()), now, policy) for w in sorted(known))
    return [one for one in found if one]


def may_delete(
    found: Iterable[DriftRecord], copies: int, now: datetime, rules: Quarantine, *, trusted: bool
) -> list[DriftRecord]:
    """Return those unknown copies of a node that may be deleted now, the oldest findings first.

    copies: how many the node has. trusted: the node is this cluster's, and the records are whole.
    """
    if rules.policy is not OrphanPolicy.DELETE or rules.dry_run or not trusted:
        return []
    grace = timedelta(seconds=rules.grace_seconds)
    ripe = [
        one
        for one in found
        if one.action == DriftAction.DELETE_UNKNOWN
        and one.sightings >= rules.sightings
        and now - one.detected_at >= grace
    ]
    most = max(1, int(copies * rules.max_share))
    return sorted(ripe, key=lambda one: (one.detected_at, one.workload_id))[:most]


def _difference(  # noqa: PLR0917 - what one comparison rests on
    node_id: str, workload_id: str, report: Report | None, known: Known, now: datetime, policy: OrphanPolicy
) -> Finding | None:
    if report is None:
        return _missing(node_id, workload_id, known, now)
    spec, status = known.spec, known.status
    if known.owed is not None and known.owed.epoch >= report.epoch:
        return None  # it is being removed
    if spec is None:
        return _finding(report, DriftType.ORPHAN, ORPHAN_ACTIONS[policy], UNKNOWN)
    if status is None or status.node_id != node_id:
        residual = spec.desired_state == Desired.DELETED
        action = DriftAction.DELETE_RESIDUAL if residual else DriftAction.DELETE_DUPLICATE
        return _finding(report, DriftType.ORPHAN, action, f"on {status.node_id}" if status and status.node_id else "")
    return _news(spec, status, report)


def _news(spec: WorkloadSpec, status: WorkloadStatus, report: Report) -> Finding | None:
    """Compare a copy with its own record."""
    if spec.desired_state == Desired.DELETED or (report.epoch and report.epoch != status.epoch):
        return None  # it is being removed, or an order is on its way
    if report.revision_id and status.observed_revision == spec.revision_id != report.revision_id:
        return _finding(report, DriftType.REVISION, DriftAction.REAPPLY, status.status)
    if report.state != status.actual:
        return _finding(report, DriftType.STATE, DriftAction.ALIGN, status.actual)
    return None


ORPHAN_ACTIONS = {
    OrphanPolicy.KEEP: DriftAction.INVESTIGATE,
    OrphanPolicy.ADOPT: DriftAction.ADOPT,
    OrphanPolicy.DELETE: DriftAction.DELETE_UNKNOWN,
}
"""What is done about a copy that no record speaks of."""


def _missing(node_id: str, workload_id: str, known: Known, now: datetime) -> Finding | None:
    """Say that a node lacks a copy which runs there by the records; not what is stopped, new or known to be missing."""
    spec, status = known.spec, known.status
    if spec is None or status is None or status.node_id != node_id or spec.desired_state != Desired.RUNNING:
        return None
    since = status.status_info.last_updated
    is_new = since is not None and now - since < timedelta(seconds=SETTLED_SECONDS)
    if not status.observed_revision or status.actual == Actual.MISSING or is_new or status.terminal:
        return None
    return Finding(workload_id, DriftType.MISSING, DriftAction.RETRY, status.actual, Actual.MISSING, status.epoch)


def _finding(report: Report, kind: DriftType, action: DriftAction, scheduler_status: str) -> Finding:
    return Finding(report.workload_id, kind, action, scheduler_status, report.state, report.epoch)
