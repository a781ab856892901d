"""The `status` that users see, from what is wanted and what was observed."""

from __future__ import annotations

from datetime import datetime

from scheduler.domain.node import Node
from scheduler.domain.workload import Actual, Desired, Phase, WorkloadSpec, WorkloadStatus

_OBSERVED = {
    Actual.RUNNING: Phase.RUNNING,
    Actual.STOPPED: Phase.STOPPED,
    Actual.FAILED: Phase.FAILED,
    Actual.UNKNOWN: Phase.UNKNOWN,
}
_SETTLED = frozenset({
    Phase.FAILED, Phase.STOPPED, Phase.PENDING, Phase.RETRY_PENDING, Phase.LOST, Phase.ORPHANED
})  # fmt: skip


def phase_of(spec: WorkloadSpec, status: WorkloadStatus) -> Phase:
    """Return the phase to store with this status."""
    if spec.desired_state == Desired.DELETED:
        return Phase.DELETING
    if not status.node_id:
        return Phase.PENDING
    if status.observed_revision and status.observed_revision != spec.revision_id:
        return Phase.UPDATING
    if status.terminal and spec.desired_state != Desired.STOPPED and status.actual != Actual.RUNNING:
        return Phase.FAILED
    if status.retry.next_retry_at and status.actual != Actual.RUNNING:
        return Phase.RETRY_PENDING
    return _phase_observed(spec, status)


def _phase_observed(spec: WorkloadSpec, status: WorkloadStatus) -> Phase:
    if spec.desired_state == Desired.STOPPED and status.actual == Actual.MISSING:
        return Phase.STOPPED  # nothing runs there, and nothing is to
    return next((phase for actual, phase in _OBSERVED.items() if actual == status.actual), Phase.SCHEDULED)


def phase_shown(status: WorkloadStatus, node: Node | None) -> tuple[str, datetime | None]:
    """Return the phase to show, and since when.

    Of a node that is not heard nobody knows what runs there: its workloads are Unknown since
    it fell silent, without a write for each of them. What was over stays as it was.
    """
    if node is None or node.is_ready or status.status in _SETTLED or status.status == Phase.DELETING:
        return status.status, status.status_info.last_updated
    return Phase.UNKNOWN, node.status_updated_at
