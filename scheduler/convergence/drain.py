"""Leaving a node: which workloads must, how, how many at once, and when the old copy may go. Pure.

A workload leaves a node that its operator drains, or that has a taint NoExecute which it does not
tolerate. Its new copy starts first and the old one stops when that runs (`Relocate`). Only where two
copies must never run at once the old one stops first (`Vacate`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.domain.policy import is_exclusive, is_pinned
from scheduler.domain.toleration import NO_EXECUTE, taint_text, tolerates, tolerations_of
from scheduler.domain.workload import Actual, Desired, Tombstone, WorkloadSpec, WorkloadStatus


@dataclass(frozen=True, slots=True)
class Relocate:
    """It must leave its node: start it on another one, then stop the old copy."""

    why: str


@dataclass(frozen=True, slots=True)
class Vacate:
    """It must leave its node and must not run twice: stop it there, then start it on another one."""

    why: str


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the workloads of a node may leave it."""

    max_parallel: int
    """So many may be on their way at once."""
    min_healthy_seconds: float = 0.0
    """A new copy must have run for so long before it counts as arrived."""
    deadline: datetime | None = None
    """From then on nothing waits for the health of anything."""

    def is_over(self, now: datetime) -> bool:
        """Whether there is no more time to be careful."""
        return self.deadline is not None and now >= self.deadline


def leaving(spec: WorkloadSpec, status: WorkloadStatus, node: Node) -> Relocate | Vacate | None:
    """Say how a workload leaves its node, which is Ready; None when it stays.

    Once its copy is being stopped for that, it leaves whatever becomes of the drain: its agent may
    have carried the stop out, and takes no order of that assignment any more.
    """
    if is_vacating(status):
        return Vacate("its copy on the node is being stopped")
    why = why_leave(spec, node)
    if not why or is_pinned(spec):
        return None
    return Vacate(why) if is_exclusive(spec) else Relocate(why)


def why_leave(spec: WorkloadSpec, node: Node) -> str:
    """Say why a workload must leave its node; blank when it may stay. Pinned ones are not told apart here."""
    if node.drain:
        return f"node {node.node_id} is being drained"
    tolerations = tolerations_of(spec)
    taints = (t for t in node.taints if t.effect == NO_EXECUTE and not tolerates(tolerations, t))
    found = ", ".join(sorted(map(taint_text, taints)))
    return f"node {node.node_id} has taint {found}" if found else ""


def is_left(node: Node) -> bool:
    """Whether anything at all may have to leave the node."""
    return bool(node.drain) or any(taint.effect == NO_EXECUTE for taint in node.taints)


def is_vacating(status: WorkloadStatus) -> bool:
    """Whether the copy of the present assignment is being stopped so that the workload can leave."""
    return bool(status.node_id) and status.vacating == status.epoch > 0


def pace_of(node: Node, default: Pace) -> Pace:
    """Return how fast a node is left: as its drain says; by the default where only a taint drives work away."""
    job = node.drain_job
    if not node.drain or job is None:
        return default
    return Pace(max(1, job.max_parallel), job.min_healthy_seconds, job.deadline)


def may_start(ledger: Ledger | None, workload_id: str, pace: Pace, now: datetime) -> bool:
    """Whether this workload may set out now, by the ledger of the node it leaves."""
    under_way = ledger.leaving if ledger else []
    return workload_id in under_way or len(under_way) < pace.max_parallel or pace.is_over(now)


def too_many_down(others: Iterable[WorkloadStatus | None], pace: Pace, now: datetime) -> bool:
    """Whether stopping one more copy would leave more of a replica set down than may be on their way from one node.

    others: the statuses of its other copies, wherever they are; None: there is none.
    """
    down = sum(status is None or status.actual != Actual.RUNNING or is_vacating(status) for status in others)
    return down >= pace.max_parallel and not pace.is_over(now)


def waits_for(owed: Tombstone, spec: WorkloadSpec | None, status: WorkloadStatus | None, now: datetime) -> str:
    """Say what the stop of an old copy waits for; blank when it is due.

    It waits for nothing when the workload is not wanted running any more, when there is no more time, or
    when the copy may still run and must not run twice.
    """
    if not owed.after_epoch or spec is None or status is None or spec.desired_state != Desired.RUNNING:
        return ""
    if (owed.not_after and now >= owed.not_after) or (is_exclusive(spec) and not owed.confirmed):
        return ""
    if status.epoch < owed.after_epoch or not status.node_id:
        return "the workload has no other node yet"
    if status.actual != Actual.RUNNING:
        return f"the copy on {status.node_id} is {status.actual or 'not reported yet'}"
    since = status.status_info.last_updated
    if owed.healthy_seconds and since and now < since + timedelta(seconds=owed.healthy_seconds):
        return f"the copy on {status.node_id} has not run for {owed.healthy_seconds:g} s yet"
    return ""
