"""What to do next is a pure decision."""

from __future__ import annotations

import itertools

import pytest

from agent.records import Code, Desired, Failure, Order, State
from agent.steps import Ended, Facts, Step, is_new_series, is_on_its_way, next_step, restart_delay

ORDER = Order("w", "container", "r2", 1, Desired.RUNNING, None)


def facts(**changes: object) -> Facts:
    """Return the facts of a workload that is to run and does not."""
    base = {
        "order": ORDER,
        "adopted": True,
        "deleting": False,
        "parked": False,
        "copy_revision": None,
        "held": False,
        "wait_seconds": 0.0,
    }
    return Facts(**(base | changes))  # type: ignore[arg-type]


def ordered(**changes: object) -> Order:
    """Return the order with something changed."""
    fields = {name: getattr(ORDER, name) for name in ORDER.__struct_fields__}
    return Order(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, Step.START),
        ({"held": True}, Step.WAIT),
        ({"wait_seconds": 0.5}, Step.WAIT),
        ({"copy_revision": "r2"}, Step.WAIT),
        ({"copy_revision": "r2", "held": True}, Step.WAIT),
        ({"copy_revision": "r1"}, Step.STOP),
        ({"copy_revision": ""}, Step.STOP),
        ({"copy_revision": "r2", "order": ordered(desired=Desired.STOPPED)}, Step.STOP),
        ({"order": ordered(desired=Desired.STOPPED)}, Step.WAIT),
        ({"copy_revision": "r2", "order": ordered(refusal=Failure(Code.RUNTIME_ERROR, "no"))}, Step.STOP),
        ({"parked": True}, Step.WAIT),
        ({"parked": True, "copy_revision": "r2"}, Step.STOP),
    ],
)
def test_the_next_step_follows_from_where_the_workload_stands(changes: dict[str, object], step: Step) -> None:
    """Each row is one state of affairs."""
    assert next_step(facts(**changes)) is step


def test_scenario_O4_delete_wins_in_every_state() -> None:
    """Whatever else holds, a workload that is to go is removed; only its copy is looked for first."""
    for copy, held, parked, wait in itertools.product((None, "r1", "r2"), (True, False), (True, False), (0.0, 9.0)):
        state = {"copy_revision": copy, "held": held, "parked": parked, "wait_seconds": wait}
        assert next_step(facts(deleting=True, **state)) is Step.REMOVE
        assert next_step(facts(deleting=True, adopted=False, **state)) is Step.ADOPT


@pytest.mark.parametrize(
    ("state", "held", "desired", "expected"),
    [
        (State.RUNNING, False, Desired.RUNNING, True),
        (State.PENDING, False, Desired.RUNNING, True),
        (State.FAILED, True, Desired.RUNNING, False),
        (State.FAILED, False, Desired.RUNNING, False),
        (State.STOPPED, True, Desired.RUNNING, False),
        (State.UNKNOWN, True, Desired.RUNNING, False),
        (State.STOPPED, True, Desired.STOPPED, True),
        (State.RUNNING, False, Desired.STOPPED, True),
        (State.FAILED, True, Desired.STOPPED, False),
    ],
)
def test_a_repeated_order_is_skipped_only_while_it_is_fulfilled_or_worked_on(
    state: State, held: bool, desired: Desired, expected: bool
) -> None:
    """A workload that has failed or ended by itself is started again when it is ordered again."""
    assert is_on_its_way(ordered(desired=desired), state, held=held) is expected


def test_restarts_wait_100_ms_doubling_up_to_30_s() -> None:
    """The waits of a series."""
    waits = [restart_delay("always", 0, n, Ended(1, 1.0)) for n in range(12)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    assert restart_delay("always", 0, 10_000, Ended(1, 1.0)) == 30.0


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [
        ("no", 1, False),
        ("no", None, False),
        ("on-failure", 0, False),
        ("on-failure", 1, True),
        ("on-failure", -9, True),
        ("on-failure", None, True),
        ("always", 0, True),
        ("always", None, True),
        ("unless-stopped", 0, True),
    ],
)
def test_the_restart_policy_decides_by_the_exit_code(policy: str, code: int | None, restarts: bool) -> None:
    """An unknown exit, of a process that an earlier agent started, counts as a failure."""
    assert (restart_delay(policy, 0, 0, Ended(code, 1.0)) is not None) is restarts


def test_on_failure_gives_up_after_its_most_restarts() -> None:
    """max_retry_count bounds a series; 0 does not."""
    assert restart_delay("on-failure", 2, 1, Ended(1, 1.0)) is not None
    assert restart_delay("on-failure", 2, 2, Ended(1, 1.0)) is None
    assert restart_delay("on-failure", 0, 99, Ended(1, 1.0)) is not None


def test_a_minute_of_running_begins_a_new_series() -> None:
    """Then the first wait is 100 ms again."""
    assert not is_new_series(Ended(1, 59.9))
    assert is_new_series(Ended(1, 60.0))
