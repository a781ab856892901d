"""The decision table: every combination of what is wanted, what is, which revision, and where."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.convergence.actions import (
    Action,
    Apply,
    Ask,
    Delete,
    Finalise,
    Nothing,
    Place,
    Policy,
    Stop,
    needs_attention,
    next_action,
)
from scheduler.convergence.loss import Move, Wait
from scheduler.domain.node import Node
from scheduler.domain.workload import Actual, Desired, Reapply, Retry, StatusInfo, WorkloadSpec, WorkloadStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy(grace_seconds=60, reapply_base_seconds=45, no_news_seconds=60)
REVISION, OLD = "b" * 24, "a" * 24


def seconds(count: float) -> timedelta:
    """So many seconds."""
    return timedelta(seconds=count)


def make_spec(desired: str = Desired.RUNNING, **fields: object) -> WorkloadSpec:
    """Return a spec at generation 2."""
    spec = WorkloadSpec(id="web", type="container", revision_id=REVISION, generation=2, desired_state=desired)
    return spec.replace(**fields)


def make_status(actual: str = Actual.NONE, *, age: float = 5, **fields: object) -> WorkloadStatus:
    """Return the status of a copy on n1 that took the latest order, in this state for `age` seconds."""
    status = WorkloadStatus(
        id="web",
        node_id="n1",
        epoch=7,
        observed_generation=2,
        observed_revision=REVISION,
        status_info=StatusInfo(actual_state=actual, last_updated=NOW - seconds(age)),
    )
    return status.replace(**fields)


READY = Node(node_id="n1", status="Ready")
WITHIN = Node(node_id="n1", status="NotReady", status_updated_at=NOW - seconds(59))
PAST = Node(node_id="n1", status="NotReady", status_updated_at=NOW - seconds(60))
NODES: dict[str, Node | None] = {"ready": READY, "within": WITHIN, "past": PAST, "gone": None, "none": None}

# Rows: desired state and node. A blank observed state is a copy that was never reported. The
# columns hold for a copy with the current revision and for one with an older one.
STATES = [Actual.NONE, Actual.MISSING, Actual.PENDING, Actual.RUNNING, Actual.STOPPED, Actual.FAILED, Actual.UNKNOWN]
SAME: dict[tuple[str, str], list[type[Action]]] = {
    ("Running", "ready"): [Wait, Apply, Wait, Nothing, Apply, Apply, Wait],
    ("Stopped", "ready"): [Wait, Nothing, Wait, Wait, Nothing, Nothing, Wait],
    ("Deleted", "ready"): [Delete] * 7,
}
OTHER: dict[tuple[str, str], list[type[Action]]] = {
    ("Running", "ready"): [Apply] * 7,
    ("Stopped", "ready"): [Stop] * 7,
    ("Deleted", "ready"): [Delete] * 7,
}
ANY: dict[tuple[str, str], type[Action]] = {
    ("Running", "within"): Wait,
    ("Stopped", "within"): Wait,
    ("Deleted", "within"): Wait,
    ("Running", "past"): Move,
    ("Stopped", "past"): Move,
    ("Deleted", "past"): Finalise,
    ("Running", "gone"): Move,
    ("Stopped", "gone"): Move,
    ("Deleted", "gone"): Finalise,
    ("Running", "none"): Place,
    ("Stopped", "none"): Place,
    ("Deleted", "none"): Finalise,
}


def expected(desired: str, node: str, actual: Actual, *, same: bool) -> type[Action]:
    """Look the cell up."""
    if (desired, node) in ANY:
        return ANY[desired, node]
    return (SAME if same else OTHER)[desired, node][STATES.index(actual)]


@pytest.mark.parametrize(
    ("desired", "actual", "same", "node"),
    list(itertools.product(["Running", "Stopped", "Deleted"], STATES, [True, False], NODES)),
)
def test_F20_every_cell_of_the_table_has_its_action(desired: str, actual: Actual, same: bool, node: str) -> None:
    """All 3 x 7 x 2 x 5 cells: an action that brings the two closer, a wait with a time, or agreement."""
    status = make_status(actual, observed_revision=REVISION if same else OLD, node_id="" if node == "none" else "n1")
    action = next_action(make_spec(desired), status, NODES[node], NOW, POLICY)
    assert type(action) is expected(desired, node, actual, same=same)
    if isinstance(action, Wait):
        assert action.until > NOW


@pytest.mark.parametrize("actual", [Actual.NONE, Actual.PENDING, Actual.UNKNOWN])
@pytest.mark.parametrize("desired", [Desired.RUNNING, Desired.STOPPED])
def test_9_20_a_copy_without_news_is_asked_for(desired: Desired, actual: Actual) -> None:
    """Pending and Unknown do not last for ever: after a minute without news the agent is asked."""
    fresh = next_action(make_spec(desired), make_status(actual, age=59), READY, NOW, POLICY)
    stale = next_action(make_spec(desired), make_status(actual, age=60), READY, NOW, POLICY)
    assert isinstance(fresh, Wait)
    assert fresh.until == NOW + seconds(1)
    assert isinstance(stale, Ask)


def test_9_20_sending_the_order_again_postpones_the_next_question() -> None:
    """A copy that is still Pending after its order was repeated is not asked for again in the next cycle."""
    status = make_status(Actual.PENDING, age=600, reapply=Reapply(last_at=NOW - seconds(1)))
    assert isinstance(next_action(make_spec(), status, READY, NOW, POLICY), Wait)


def test_F19_a_stop_that_did_not_take_is_asked_for() -> None:
    """A copy that still runs a minute after the stop was sent is looked into."""
    action = next_action(make_spec(Desired.STOPPED), make_status(Actual.RUNNING, age=61), READY, NOW, POLICY)
    assert isinstance(action, Ask)


def test_F19_already_stopped_needs_no_order() -> None:
    """A copy that has stopped by itself is not told to, even if it has not heard of the wish yet."""
    status = make_status(Actual.STOPPED, observed_generation=1)
    assert next_action(make_spec(Desired.STOPPED), status, READY, NOW, POLICY) == Nothing()


@pytest.mark.parametrize("actual", [Actual.RUNNING, Actual.PENDING, Actual.UNKNOWN, Actual.FAILED, Actual.MISSING])
def test_F19_a_changed_wish_reaches_the_node_at_once(actual: Actual) -> None:
    """Whatever the copy does, a stop asked since the last order is sent without a wait."""
    status = make_status(actual, observed_generation=1)
    assert isinstance(next_action(make_spec(Desired.STOPPED), status, READY, NOW, POLICY), Stop)


@pytest.mark.parametrize("actual", STATES)
def test_F20_a_start_asked_after_a_stop_is_sent(actual: Actual) -> None:
    """Running is ordered again after a stop was, even while the last report still says Running."""
    status = make_status(actual, observed_generation=1)
    assert isinstance(next_action(make_spec(), status, READY, NOW, POLICY), Apply)


@pytest.mark.parametrize("actual", [Actual.MISSING, Actual.STOPPED, Actual.FAILED])
def test_F22_a_crash_loop_waits_for_its_guard(actual: Actual) -> None:
    """From the third start on, the next one waits until the guard is over."""
    reapply = Reapply(attempts=3, revision_id=REVISION, next_at=NOW + seconds(10), last_at=NOW - seconds(35))
    status = make_status(actual, reapply=reapply)
    assert next_action(make_spec(), status, READY, NOW, POLICY) == Wait(
        NOW + seconds(10), "it was started too often", "ReapplyBackoffWait"
    )
    assert isinstance(next_action(make_spec(), status, READY, NOW + seconds(10), POLICY), Apply)


def test_F22_a_new_revision_bypasses_the_guard() -> None:
    """A guard armed by the old revision does not hold up its successor."""
    reapply = Reapply(attempts=9, revision_id=OLD, next_at=NOW + seconds(900))
    status = make_status(Actual.FAILED, observed_revision=OLD, reapply=reapply)
    assert isinstance(next_action(make_spec(), status, READY, NOW, POLICY), Apply)


def test_F22_an_agent_that_never_adopts_a_revision_is_not_called_every_cycle() -> None:
    """An apply that leaves the node with another revision counts as a start, and is guarded like one."""
    reapply = Reapply(attempts=3, revision_id=REVISION, next_at=NOW + seconds(10))
    status = make_status(Actual.RUNNING, observed_revision=OLD, reapply=reapply)
    assert isinstance(next_action(make_spec(), status, READY, NOW, POLICY), Wait)


def test_F26_a_refused_order_waits_and_a_deletion_does_not() -> None:
    """While the next try lies in the future nothing is sent, except a delete."""
    status = make_status(Actual.NONE, observed_revision="", retry=Retry(attempts=3, next_retry_at=NOW + seconds(5)))
    wait = next_action(make_spec(), status, READY, NOW, POLICY)
    assert isinstance(wait, Wait)
    assert wait.until == NOW + seconds(5)
    assert isinstance(next_action(make_spec(Desired.DELETED), status, READY, NOW, POLICY), Delete)


def test_F16_a_delete_on_a_lost_node_leaves_a_tombstone_and_one_without_a_node_does_not() -> None:
    """Only a copy that may still exist is owed."""
    spec = make_spec(Desired.DELETED)
    assert next_action(spec, make_status(Actual.RUNNING), PAST, NOW, POLICY) == Finalise(tombstone=True)
    assert next_action(spec, make_status(Actual.RUNNING), None, NOW, POLICY) == Finalise(tombstone=True)
    assert next_action(spec, WorkloadStatus(id="web"), None, NOW, POLICY) == Finalise(tombstone=False)


def test_F32_a_held_move_waits_with_the_reason() -> None:
    """While the brake holds, nothing moves; deletions are not held."""
    status = make_status(Actual.RUNNING)
    held = next_action(make_spec(), status, PAST, NOW, POLICY, hold="the brake holds")
    assert held == Wait(NOW + seconds(60), "the brake holds", "AwaitFailover")
    assert isinstance(
        next_action(make_spec(Desired.DELETED), status, PAST, NOW, POLICY, hold="the brake holds"), Finalise
    )


def test_F32_a_node_that_does_not_say_since_when_it_is_lost_is_past_its_grace() -> None:
    """Records of the reference system may lack the time."""
    node = Node(node_id="n1", status="NotReady")
    assert isinstance(next_action(make_spec(), make_status(Actual.RUNNING), node, NOW, POLICY), Move)


def test_F32_active_counts_as_ready() -> None:
    """The reference system's synonym."""
    node = Node(node_id="n1", status="Active")
    assert next_action(make_spec(), make_status(Actual.RUNNING), node, NOW, POLICY) == Nothing()


def test_F8_a_workload_without_a_status_record_is_placed() -> None:
    """A spec alone is as good as a blank status."""
    assert next_action(make_spec(), None, None, NOW, POLICY) == Place()


def test_P2_attention_is_asked_for_what_differs_only() -> None:
    """A report that agrees with the wish wakes nobody."""
    assert not needs_attention(make_spec(), make_status(Actual.RUNNING))
    assert not needs_attention(make_spec(), make_status(Actual.PENDING))
    assert not needs_attention(make_spec(Desired.STOPPED), make_status(Actual.STOPPED))
    assert needs_attention(make_spec(), make_status(Actual.FAILED))
    assert needs_attention(make_spec(), make_status(Actual.RUNNING, observed_revision=OLD))
    assert needs_attention(make_spec(Desired.STOPPED), make_status(Actual.RUNNING))
    assert needs_attention(make_spec(Desired.DELETED), make_status(Actual.RUNNING))
