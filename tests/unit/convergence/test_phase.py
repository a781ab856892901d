"""The status that users see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler.convergence.phase import phase_of, phase_shown
from scheduler.domain.node import Node
from scheduler.domain.workload import Actual, Desired, Phase, Retry, StatusInfo, WorkloadSpec, WorkloadStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = WorkloadSpec(id="web", type="container", revision_id="r2")


def status(actual: str, **fields: object) -> WorkloadStatus:
    """Return a status on n1."""
    base = WorkloadStatus(id="web", node_id="n1", observed_revision="r2", status_info=StatusInfo(actual_state=actual))
    return base.replace(**fields)


@pytest.mark.parametrize(
    ("given", "phase"),
    [
        (status(Actual.RUNNING), Phase.RUNNING),
        (status(Actual.STOPPED), Phase.STOPPED),
        (status(Actual.FAILED), Phase.FAILED),
        (status(Actual.UNKNOWN), Phase.UNKNOWN),
        (status(Actual.PENDING), Phase.SCHEDULED),
        (status(Actual.NONE, observed_revision=""), Phase.SCHEDULED),
        (status(Actual.MISSING), Phase.SCHEDULED),
        (status(Actual.RUNNING, observed_revision="r1"), Phase.UPDATING),
        (status(Actual.NONE, node_id="", observed_revision=""), Phase.PENDING),
        (status(Actual.FAILED, retry=Retry(attempts=1, next_retry_at=NOW)), Phase.RETRY_PENDING),
    ],
)
def test_F8_the_phase_follows_what_was_observed(given: WorkloadStatus, phase: Phase) -> None:
    """One phase for each situation."""
    assert phase_of(SPEC, given) == phase


def test_F19_what_is_to_be_stopped_and_was_removed_by_hand_shows_as_stopped() -> None:
    """It is as wanted; that it is Scheduled would promise a start that never comes."""
    assert phase_of(SPEC.replace(desired_state=Desired.STOPPED), status(Actual.MISSING)) == Phase.STOPPED


@pytest.mark.parametrize("actual", list(Actual))
def test_F15_a_deletion_shows_as_deleting_until_it_is_gone(actual: Actual) -> None:
    """No report hides it."""
    assert phase_of(SPEC.replace(desired_state=Desired.DELETED), status(actual)) == Phase.DELETING


def test_scenario_L17_a_node_that_is_not_heard_shows_its_work_as_unknown_since_then() -> None:
    """Running is not claimed for a node that fell silent; what was over stays."""
    lost = Node(node_id="n1", status="NotReady", status_updated_at=NOW)
    running = status(Actual.RUNNING, status=Phase.RUNNING)
    assert phase_shown(running, lost) == (Phase.UNKNOWN, NOW)
    failed = status(
        Actual.FAILED,
        status=Phase.FAILED,
        status_info=StatusInfo(actual_state=Actual.FAILED, last_updated=NOW - timedelta(hours=1)),
    )
    assert phase_shown(failed, lost) == (Phase.FAILED, NOW - timedelta(hours=1))
    assert phase_shown(running, Node(node_id="n1"))[0] == Phase.RUNNING
