"""When a workload is not started again, and when its tries are used up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.convergence.actions import Apply, Halt, Nothing, Policy, Stop, next_action
from scheduler.convergence.backoff import after_failure, retry_delay
from scheduler.convergence.failures import (
    RETRIES_EXHAUSTED,
    RETRY_TERMINAL,
    TERMINAL_CODES,
    lacks_runtime,
    terminal_code,
)
from scheduler.convergence.phase import phase_of
from scheduler.domain.node import Node
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import (
    Actual,
    Desired,
    Phase,
    Reason,
    Resources,
    Retry,
    StatusInfo,
    WorkloadSpec,
    WorkloadStatus,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy(grace_seconds=60)
READY = Node(node_id="n1", status="Ready")
LOST = Node(node_id="n1", status="NotReady", status_updated_at=NOW - timedelta(hours=1))
SPEC = WorkloadSpec(id="web", type="container", revision_id="r", generation=2)


def failed(actual: str = Actual.FAILED, code: str = "", **fields: object) -> WorkloadStatus:
    """A copy of the current order that has ended."""
    reason = Reason(code=code, message="as it said") if code else None
    info = StatusInfo(actual_state=actual, last_updated=NOW, reason=reason)
    status = WorkloadStatus(
        id="web", node_id="n1", epoch=1, observed_revision="r", observed_generation=2, status_info=info
    )
    return status.replace(**fields)


@pytest.mark.parametrize("code", sorted(TERMINAL_CODES))
@pytest.mark.parametrize("actual", [Actual.FAILED, Actual.STOPPED, Actual.MISSING])
def test_F27_after_a_terminal_code_nothing_is_started(code: str, actual: str) -> None:
    """Eight codes, from the reason or from the agent's metadata."""
    for status in (failed(actual, code), failed(actual, metadata={"failure_reason": code})):
        action = next_action(SPEC, status, READY, NOW, POLICY)
        assert isinstance(action, Halt)
        assert action.code == code


@pytest.mark.parametrize("code", ["RUNTIME_ERROR", "IMAGE_PULL_TIMEOUT", "UNKNOWN_ERROR", ""])
def test_F27_other_codes_are_tried_again(code: str) -> None:
    """The agent's own retry has ended, ours has not."""
    assert isinstance(next_action(SPEC, failed(Actual.FAILED, code), READY, NOW, POLICY), Apply)


def test_F27_the_end_is_recorded_once_and_holds() -> None:
    """Nothing more is done then, on this node or another; the workload shows Failed."""
    ended = failed(Actual.FAILED, "INVALID_IMAGE", terminal="INVALID_IMAGE")
    assert next_action(SPEC, ended, READY, NOW, POLICY) == Nothing()
    assert next_action(SPEC, ended, LOST, NOW, POLICY) == Nothing()
    assert phase_of(SPEC, ended.replace(observed_revision="")) == Phase.FAILED


def test_F27_a_terminal_failure_of_another_revision_or_order_does_not_count() -> None:
    """A new spec, or a new wish to run it, is tried."""
    status = failed(Actual.FAILED, "INVALID_IMAGE")
    for later in (SPEC.replace(revision_id="s"), SPEC.replace(generation=3)):
        assert isinstance(next_action(later, status, READY, NOW, POLICY), Apply)


def test_F27_what_is_wanted_stopped_is_stopped_all_the_same() -> None:
    """The end of its tries keeps nothing from being stopped or deleted."""
    stopped = SPEC.replace(desired_state=Desired.STOPPED, generation=3)
    running = failed(Actual.RUNNING, terminal="INVALID_IMAGE")
    assert isinstance(next_action(stopped, running, READY, NOW, POLICY), Stop)


@pytest.mark.parametrize(("said", "ends"), [("true", True), ("TRUE", True), ("1", True), ("false", False), ("", False)])
def test_F28_an_agent_can_say_that_trying_is_of_no_use(said: str, ends: bool) -> None:
    """In the metadata of its report; without another code the end has one of its own."""
    status = failed(metadata={"retry_terminal": said})
    assert terminal_code(status) == (RETRY_TERMINAL if ends else "")


def test_F25_within_the_grace_no_failure_is_the_last_one() -> None:
    """However many there are; the first one after it, with all tries but one used up, is."""
    retry = Retry()
    for second in range(0, 119, 7):
        retry = after_failure(retry, NOW + timedelta(seconds=second), 120)
        assert retry.attempts <= 4
        assert not retry.is_used_up
    retry = after_failure(retry, NOW + timedelta(seconds=120), 120)
    assert retry.is_used_up
    assert terminal_code(failed(retry=retry)) == RETRIES_EXHAUSTED


def test_F25_after_the_grace_the_budget_still_has_to_be_used_up() -> None:
    """One early failure and one late one are two, not the end."""
    retry = after_failure(after_failure(Retry(), NOW, 120), NOW + timedelta(hours=1), 120)
    assert (retry.attempts, retry.is_used_up) == (2, False)


@given(st.lists(st.floats(0, 300), min_size=1, max_size=30), st.integers(2, 9), st.integers(0, 600))
def test_F24_F25_the_schedule_is_exact_and_the_count_never_falls(gaps: list[float], most: int, grace: int) -> None:
    """The n-th failure waits as the table says; attempts grow, and reach the limit only after the grace."""
    retry, now = Retry(max_attempts=most), NOW
    for number, gap in enumerate(gaps, 1):
        before = retry
        retry = after_failure(retry, now, grace)
        assert retry.next_retry_at == now + timedelta(seconds=retry_delay(number))
        assert before.attempts <= retry.attempts <= most
        assert not retry.is_used_up or (now - NOW).total_seconds() >= grace
        now += timedelta(seconds=gap)


def test_F31_the_lack_of_a_runtime_is_told_by_code_or_text() -> None:
    """As the reference system's agents say it, and as ours do."""
    assert lacks_runtime("RUNTIME_UNAVAILABLE", "")
    assert lacks_runtime("", "the agent refuses: Docker runtime not available")
    assert not lacks_runtime("RUNTIME_ERROR", "the runtime failed")


@pytest.mark.parametrize(
    "key", ["fleetbeat.exclusive", "fleetbeat.tolerations", "persys.scheduling.allow_move", "allow_move"]
)
def test_F14_F35_a_policy_is_not_content(key: str) -> None:
    """So changing it restarts nothing; any other key of the metadata is content."""
    plain = SPEC.replace(resources=Resources(cpu_usage=0.5), metadata={"team": "a"})
    assert revision_of(plain.replace(metadata={"team": "a", key: "true"})) == revision_of(plain)
    assert revision_of(plain.replace(metadata={"team": "b"})) != revision_of(plain)
