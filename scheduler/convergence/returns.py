"""A lost node is back and still has its copy of a workload that was replaced: which of the two stays. Pure.

Where the replacement never started, nothing is gained by starting it now. Where both could go
on, the workload's own policy decides. A copy that is not what is wanted, or does not run, never
wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.domain.node import Node
from scheduler.domain.policy import OnReturn, is_exclusive, on_return
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, Tombstone, WorkloadSpec, WorkloadStatus


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which copy stays, and by which rule."""

    original: bool
    rule: str


def is_weighed(spec: WorkloadSpec | None, status: WorkloadStatus | None, owed: Tombstone) -> bool:
    """Whether the copy that a node owes the stop of is the original of a replacement that stands elsewhere."""
    if spec is None or status is None or not owed.lost or spec.desired_state != Desired.RUNNING:
        return False
    return status.previous_node == owed.node_id != status.node_id and bool(status.node_id) and status.epoch > owed.epoch


def which_stays(
    spec: WorkloadSpec,
    status: WorkloadStatus,
    owed: Tombstone,
    node: Node,
    found: Report,
    *,
    original_score: float | None,
    replacement_score: float,
) -> Verdict:
    """Decide between the copy on the node that is back and the one that has replaced it.

    found: how the copy is on the node that is back. original_score: that of the node now; None:
    the workload does not fit there any more.
    """
    if found.state != Actual.RUNNING or found.epoch not in (0, owed.epoch):
        return Verdict(original=False, rule="original_not_running")
    if found.revision_id != spec.revision_id:
        return Verdict(original=False, rule="newer_revision")
    if original_score is None or not node.schedulable or node.drain:
        return Verdict(original=False, rule="node_takes_no_work")
    if is_pending(status):
        return Verdict(original=True, rule="replacement_pending")
    if is_exclusive(spec):  # the original should not even run: the replacement rests on that
        return Verdict(original=False, rule="exclusive")
    rule = on_return(spec)
    return Verdict(_prefers_original(rule, original_score, replacement_score), str(rule))


def is_pending(status: WorkloadStatus) -> bool:
    """Whether the node of the present assignment has never been seen with the workload."""
    return not status.observed_revision and status.actual in (Actual.NONE, Actual.PENDING)


def _prefers_original(rule: OnReturn, original_score: float, replacement_score: float) -> bool:
    """Apply the workload's own rule; the original began before its replacement, so it has run longest."""
    if rule is OnReturn.BEST_SCORE:
        return original_score > replacement_score
    return rule in (OnReturn.KEEP_ORIGINAL, OnReturn.LONGEST_RUNNING)
