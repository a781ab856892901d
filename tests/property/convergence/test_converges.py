"""The decisions, carried out by a perfect agent, converge from anywhere and then rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

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
    next_action,
)
from scheduler.convergence.backoff import after_start, after_stop
from scheduler.convergence.loss import Move, Wait
from scheduler.domain.node import Node
from scheduler.domain.workload import (
    Actual,
    Desired,
    Reapply,
    Retry,
    StatusInfo,
    WorkloadSpec,
    WorkloadStatus,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy(grace_seconds=60, reapply_base_seconds=45, no_news_seconds=60)
STEPS = 12
"""The longest way: wait for a grace, move, apply; or wait for news, ask, apply, rest."""


class World:
    """One workload, its records, and nodes whose agents do at once what they are told."""

    def __init__(self, spec: WorkloadSpec, status: WorkloadStatus, node: Node | None) -> None:
        """Start anywhere."""
        self.spec, self.status, self.node, self.now = spec, status, node, START
        self.deleted = False
        self.sent = 0

    def act(self, action: Action) -> None:
        """Carry an action out."""
        match action:
            case Wait(until=until):
                assert until > self.now
                self.now = until
            case Place() | Move():
                self._assign()
            case Apply():
                self._order(Actual.RUNNING)
            case Stop():
                self._order(Actual.STOPPED)
            case Ask():
                # A perfect agent knows the state; asking is as good as ordering again.
                wanted = Actual.STOPPED if self.spec.desired_state == Desired.STOPPED else Actual.RUNNING
                self._order(wanted)
            case Delete() | Finalise():
                self.deleted = True

    def _assign(self) -> None:
        self.node = Node(node_id=f"n{self.status.epoch + 1}")
        self.status = self.status.replace(
            node_id=self.node.node_id,
            epoch=self.status.epoch + 1,
            observed_revision="",
            status_info=StatusInfo(actual_state=Actual.PENDING, last_updated=self.now),
            retry=Retry(),
            reapply=Reapply(),
        )

    def _order(self, state: Actual) -> None:
        self.sent += 1
        revision = self.spec.revision_id
        self.status = self.status.replace(
            observed_revision=revision,
            observed_generation=self.spec.generation,
            status_info=StatusInfo(actual_state=state, last_updated=self.now),
            reapply=after_start(self.status.reapply, revision, self.now, 45)
            if state is Actual.RUNNING
            else after_stop(revision, self.now),
        )


def times(low: int, high: int) -> st.SearchStrategy[datetime | None]:
    """Return a time around the start, or none."""
    return st.none() | st.integers(low, high).map(lambda s: START + timedelta(seconds=s))


statuses = st.builds(
    lambda node, actual, revision, generation, updated, retry_at, reapply: WorkloadStatus(
        id="web",
        node_id=node,
        epoch=3,
        observed_revision=revision,
        observed_generation=generation,
        status_info=StatusInfo(actual_state=actual, last_updated=updated),
        retry=Retry(attempts=3, next_retry_at=retry_at),
        reapply=reapply,
    ),
    st.sampled_from(["", "n1"]),
    st.sampled_from(list(Actual)),
    st.sampled_from(["", "old", "new"]),
    st.integers(0, 5),
    times(-1000, 0),
    times(-100, 200),
    st.builds(
        Reapply,
        attempts=st.integers(0, 12),
        next_at=times(-100, 900),
        last_at=times(-900, 0),
        revision_id=st.sampled_from(["", "old", "new"]),
    ),
)
nodes = st.none() | st.builds(
    lambda status, since: Node(node_id="n1", status=status, status_updated_at=since),
    st.sampled_from(["Ready", "NotReady"]),
    times(-200, 0),
)
specs = st.builds(
    lambda desired, generation: WorkloadSpec(
        id="web", type="container", revision_id="new", generation=generation, desired_state=desired
    ),
    st.sampled_from([Desired.RUNNING, Desired.STOPPED, Desired.DELETED]),
    st.integers(1, 5),
)


@settings(max_examples=600, deadline=None)
@given(specs, statuses, nodes)
def test_F20_a_perfect_agent_always_converges_and_then_nothing_happens(
    spec: WorkloadSpec, status: WorkloadStatus, node: Node | None
) -> None:
    """From any records: a bounded number of steps, each of which changes something or waits; then rest."""
    world = World(spec, status, node if status.node_id else None)
    for _ in range(STEPS):
        before = (world.status, world.now, world.deleted)
        action = next_action(world.spec, world.status, world.node, world.now, POLICY)
        if isinstance(action, Nothing):
            break
        world.act(action)
        if world.deleted:
            break
        assert (world.status, world.now, world.deleted) != before, f"a step that changes nothing: {action}"
    wants = world.spec.desired_state
    assert world.deleted == (wants == Desired.DELETED)
    if world.deleted:
        return
    later = world.now + timedelta(days=30)
    assert next_action(world.spec, world.status, world.node, later, POLICY) == Nothing()
    if wants == Desired.RUNNING:
        assert world.status.actual == Actual.RUNNING
        assert world.status.observed_revision == "new"
    else:
        assert world.status.actual != Actual.RUNNING


@settings(max_examples=300, deadline=None)
@given(specs, statuses, nodes, st.integers(0, 2_000))
def test_F32_nothing_leaves_a_node_that_is_held_or_ready(
    spec: WorkloadSpec, status: WorkloadStatus, node: Node | None, seconds: int
) -> None:
    """A move is only ever decided for a node whose record is gone, or that is past its grace and not held."""
    now = START + timedelta(seconds=seconds)
    node = node if status.node_id else None
    held = next_action(spec, status, node, now, POLICY, hold="held")
    assert not isinstance(held, Move) or node is None
    free = next_action(spec, status, node, now, POLICY)
    assert not isinstance(free, Move) or node is None or not node.is_ready
