"""What a workload needs next: one pure function from what is wanted, what is, and where.

Every combination of desired state, observed state, revision and node ends in an action that
brings the two closer, in a wait with a time, or in nothing because they agree. Losing or
repeating an action changes nothing: the next look decides again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.convergence.backoff import RETRY_GRACE_SECONDS, guarded_until
from scheduler.convergence.drain import Relocate, Vacate, is_vacating, leaving
from scheduler.convergence.failures import terminal_code, terminal_text
from scheduler.convergence.loss import Move, Stay, Wait, away
from scheduler.domain.node import Node
from scheduler.domain.workload import Actual, Desired, WorkloadSpec, WorkloadStatus


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decisions depend on."""

    grace_seconds: float
    """How long a node is NotReady before its work moves."""
    reapply_base_seconds: float = 45.0
    """Base of the crash-loop guard."""
    no_news_seconds: float = 60.0
    """How long a copy may be Pending or Unknown before its agent is asked."""
    lease_seconds: float = 30.0
    """How long a node may be silent before it is NotReady."""
    stop_after_seconds: float = 60.0
    """After how much silence a node has stopped its exclusive work, where the workload says nothing else."""
    retry_grace_seconds: float = RETRY_GRACE_SECONDS
    """For how long after the first refusal none is the last one."""
    orphan_after_seconds: float = 86_400.0
    """How long a node is NotReady before what is committed there is released."""


@dataclass(frozen=True, slots=True)
class Place:
    """It has no node: find one."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Its node shall run this revision."""

    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Its node shall hold this revision, stopped."""

    why: str


@dataclass(frozen=True, slots=True)
class Ask:
    """There was no news for too long: ask its agent, and send the order again if there still is none."""

    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Its node shall remove it; then its records go."""


@dataclass(frozen=True, slots=True)
class Finalise:
    """No agent can or need be told: its records go."""

    tombstone: bool
    """The node owes the removal when it comes back."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Trying again is of no use: record that, once; it is left by a retry or a new spec."""

    code: str
    why: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """What is, is what is wanted, or nothing more is done about it."""


Action = Place | Apply | Stop | Ask | Halt | Move | Stay | Relocate | Vacate | Delete | Finalise | Wait | Nothing

_DEAD = frozenset({Actual.MISSING, Actual.STOPPED, Actual.FAILED})
_LONG_AGO = timedelta.max


def next_action(
    spec: WorkloadSpec,
    status: WorkloadStatus | None,
    node: Node | None,
    now: datetime,
    policy: Policy,
    *,
    hold: str = "",
    stays: bool = False,
) -> Action:
    """Decide the next step for a workload.

    status: None when there is no record yet, which is as good as a blank one.
    node: the record of status.node_id; None when there is none.
    hold: why nothing may move away from the node now; blank when work may move.
    stays: it cannot leave a node that is being drained yet: there is no room elsewhere, or others go first.
    """
    status = status or WorkloadStatus(id=spec.id)
    if spec.desired_state == Desired.DELETED:
        return _deletion(status, node, now, policy)
    if not status.node_id:
        return Place()
    if node is not None and not node.is_ready and status.terminal and spec.desired_state == Desired.RUNNING:
        return Nothing()  # what was over when its node was lost is not begun anew elsewhere
    if node is None or not node.is_ready:
        return away(spec, status, node, now, policy, hold)
    if (not stays or is_vacating(status)) and (departure := leaving(spec, status, node)):
        return departure
    return _order_or_wait(spec, status, now, policy)


def past_grace(node: Node, now: datetime, policy: Policy) -> bool:
    """Whether a node has been NotReady for the whole grace; one that does not say since when has."""
    return not node.is_ready and _not_ready_for(node, now) >= timedelta(seconds=policy.grace_seconds)


def needs_attention(spec: WorkloadSpec, status: WorkloadStatus) -> bool:
    """Whether what was just observed calls for an early look; a wrong answer only costs or delays one."""
    if spec.desired_state == Desired.DELETED or not status.node_id:
        return True
    if status.observed_revision != spec.revision_id:
        return True
    return status.actual == Actual.RUNNING if spec.desired_state == Desired.STOPPED else status.actual in _DEAD


def _not_ready_for(node: Node, now: datetime) -> timedelta:
    return now - node.status_updated_at if node.status_updated_at else _LONG_AGO


def _grace_ends(node: Node, now: datetime, policy: Policy) -> datetime:
    return (node.status_updated_at or now) + timedelta(seconds=policy.grace_seconds)


def _deletion(status: WorkloadStatus, node: Node | None, now: datetime, policy: Policy) -> Action:
    if not status.node_id:
        return Finalise(tombstone=False)
    if node is None or past_grace(node, now, policy):
        return Finalise(tombstone=True)
    if not node.is_ready:
        return Wait(_grace_ends(node, now, policy), f"node {node.node_id} is NotReady", "AwaitFailover")
    return Delete()


def _order_or_wait(spec: WorkloadSpec, status: WorkloadStatus, now: datetime, policy: Policy) -> Action:
    order = _order(spec, status, now, policy)
    if not isinstance(order, Apply | Stop | Ask):
        return order
    if isinstance(order, Apply) and (ended := _ended(spec, status)):
        return ended
    if status.retry.next_retry_at and now < status.retry.next_retry_at:
        return Wait(status.retry.next_retry_at, "its agent refused it", "BackoffWait")
    guard = None if isinstance(order, Ask) else guarded_until(status.reapply, spec.revision_id)
    if guard and now < guard:
        return Wait(guard, "it was started too often", "ReapplyBackoffWait")
    return order


def _ended(spec: WorkloadSpec, status: WorkloadStatus) -> Halt | Nothing | None:
    """Say that a workload which is wanted running is not started again; None: it is."""
    if status.terminal:
        return Nothing()
    if status.actual not in _DEAD or status.observed_revision != spec.revision_id:
        return None
    if status.observed_generation < spec.generation:
        return None
    code = terminal_code(status)
    return Halt(code, terminal_text(status, code)) if code else None


def _order(spec: WorkloadSpec, status: WorkloadStatus, now: datetime, policy: Policy) -> Action:
    send = Stop if spec.desired_state == Desired.STOPPED else Apply
    if status.observed_revision != spec.revision_id:
        return send("its node has another revision" if status.observed_revision else "its node does not have it")
    if _agrees(spec, status):
        return Nothing()
    if status.observed_generation < spec.generation:
        return send("its desired state changed")
    if spec.desired_state != Desired.STOPPED and status.actual in _DEAD:
        return Apply(f"it is {status.actual}")
    return _ask(status, now, policy)


def _agrees(spec: WorkloadSpec, status: WorkloadStatus) -> bool:
    """Whether the copy is as wanted: a stop that was carried out, or a state that the node took on the latest order."""
    told = status.observed_generation >= spec.generation
    if spec.desired_state == Desired.STOPPED:
        return status.actual == Actual.STOPPED or (told and status.actual in _DEAD)
    return told and status.actual == Actual.RUNNING


def _ask(status: WorkloadStatus, now: datetime, policy: Policy) -> Action:
    """Pending, Unknown or (told to stop) still Running: give it time, then ask."""
    heard = [at for at in (status.status_info.last_updated, status.reapply.last_at) if at]
    due = max(heard) + timedelta(seconds=policy.no_news_seconds) if heard else now
    if now < due:
        return Wait(due, f"it is {status.actual or 'not reported yet'}")
    return Ask(f"it is {status.actual or 'not reported'} without news since {due.isoformat()}")
