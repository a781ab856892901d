"""What becomes of a workload whose node is lost. Pure.

Four questions, in this order. Is the node lost for certain, or only not heard for a moment? May
this workload leave it at all: is it to be replaced, or must it stay with the data on the node?
Has its own delay passed? And is it safe now: nothing holds moves, and no second copy of an
exclusive workload can come of it? The last one is answered outside (`hold`), by `hold_reason`
for a decision and for an explanation alike.

Whoever stays is written once an episode, so that people see why; a reader that looks later sees
it from the stored reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from scheduler.convergence.liveness import Brake, PulseLog, silence_seconds, slack_of
from scheduler.domain import policy as policies
from scheduler.domain.node import Node
from scheduler.domain.workload import Phase, Tombstone, WorkloadSpec, WorkloadStatus

if TYPE_CHECKING:
    from scheduler.convergence.actions import Policy

NO_FAILOVER_TARGET = "NO_FAILOVER_TARGET"
PINNED_AWAIT_NODE = "PINNED_AWAIT_NODE"
NODE_LOST = "NODE_LOST"
ORPHANED = "ORPHANED"
LOSS_CODES = frozenset({NO_FAILOVER_TARGET, PINNED_AWAIT_NODE, NODE_LOST, ORPHANED})
"""Reasons that the loss of a node leaves in a status; they are over when the node is heard again."""

LEAST_MARGIN_SECONDS = 2.0
_LONG_AGO = timedelta.max
_OVER = frozenset({Phase.FAILED, Phase.STOPPED})
"""What was over before its node was lost is over: it never changes its state by that."""


@dataclass(frozen=True, slots=True)
class Move:
    """Its node is lost: give it another one, and let the old one owe a stop."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """It is not time yet."""

    until: datetime
    why: str
    name: str = "NoAction"
    """How the reference system calls it."""


@dataclass(frozen=True, slots=True)
class Stay:
    """It stays with its lost node: record why, once an episode."""

    code: str
    why: str
    phase: Phase
    pinned: bool = False
    releases: bool = False
    """What is committed for it on the node is released."""


def away(  # noqa: PLR0917 - as next_action
    spec: WorkloadSpec, status: WorkloadStatus, node: Node | None, now: datetime, policy: Policy, hold: str
) -> Move | Wait | Stay:
    """Decide about a workload whose node is not Ready, or has no record any more.

    hold: why nothing may move away from the node now; blank when work may move.
    """
    if node is None:
        return Move(f"node {status.node_id} has no record any more")
    since = node.status_updated_at
    fenced_exclusive = node.is_fenced and policies.is_exclusive(spec)
    grace = 0.0 if fenced_exclusive else policy.grace_seconds
    if silent_for(node, now) < timedelta(seconds=grace):
        return _wait(_after(since, grace, now), f"node {node.node_id} is NotReady")
    kept = _kept(spec, status, node, now)
    decided = kept or _leave(spec, node, now, policy, hold, grace=grace)
    if isinstance(decided, Wait | Stay) and _is_orphan(status, node, now, policy):
        return Stay(ORPHANED, _orphan_text(node, policy, decided.why), Phase.ORPHANED, releases=True)
    if isinstance(decided, Stay) and (status.status in _OVER or _is_told(status, decided)):
        return _wait(now + timedelta(seconds=policy.grace_seconds), decided.why)
    return decided


def silent_for(node: Node, now: datetime) -> timedelta:
    """Return for how long a node has been NotReady; one that does not say since when has for ever."""
    return now - node.status_updated_at if node.status_updated_at else _LONG_AGO


def exclusive_silence_seconds(spec: WorkloadSpec, status: WorkloadStatus, policy: Policy) -> float | None:
    """Return after how much proven silence no copy of an exclusive workload can run on its node any more.

    By then its own stop_after has passed there, and a lease and a margin for whatever took longer.
    None: the node was told that the workload is not exclusive, so no time proves anything.
    """
    wanted = policies.stop_after_seconds(spec, policy.stop_after_seconds, policy.lease_seconds)
    told = status.told_stop_after_ms
    if told == 0:
        return None
    longest = max(wanted, (told or 0) / 1000)
    if (told is None or status.observed_generation < spec.generation) and spec.past_stop_after_ms is not None:
        # It may have taken an order of before whose answer was lost.
        if spec.past_stop_after_ms == 0:
            return None
        longest = max(longest, spec.past_stop_after_ms / 1000, policy.stop_after_seconds)
    return longest + policy.lease_seconds + max(LEAST_MARGIN_SECONDS, policy.lease_seconds / 4)


def as_told(status: WorkloadStatus, owed: Tombstone, policy: Policy) -> WorkloadStatus:
    """Return the status with what the node of a deleted namesake may still act on."""
    if owed.stop_after_ms is None:
        return status
    longest = max(owed.stop_after_ms, round(policy.stop_after_seconds * 1000)) if owed.stop_after_ms else 0
    return status.replace(told_stop_after_ms=longest)


def hold_reason(
    spec: WorkloadSpec,
    status: WorkloadStatus,
    node: Node,
    policy: Policy,
    *,
    brake: Brake,
    pulses: PulseLog | None,
) -> str:
    """Say why the workload must stay on its lost node; blank when it may move.

    An operator's word counts more than silence and the brake. Otherwise the brake must be off, and
    the node must have been silent for lease and grace while somebody listened all the time: what
    was recorded before an outage of ours proves nothing. An exclusive workload needs more.

    pulses: what was heard of this node; None when that could not be looked up.
    """
    if node.is_fenced:
        return ""
    if node.node_id in brake.held:
        return brake.reason
    needed, exclusive = policy.lease_seconds + policy.grace_seconds, policies.is_exclusive(spec)
    if exclusive:
        proof = exclusive_silence_seconds(spec, status, policy)
        if why := _no_proof(node, proof):
            return why
        needed = max(needed, proof or 0.0)
    if pulses is None:
        return "the node's silence could not be looked up"
    silent = silence_seconds(node, pulses, slack_of(policy.lease_seconds))
    if silent >= needed:
        return ""
    what = "it is exclusive, " if exclusive else ""
    return f"{what}silence confirmed for {silent:.0f} s of {needed:g} s"


def loss_over(status: WorkloadStatus) -> WorkloadStatus:
    """Return the status without what the loss of a node has left in it."""
    if policies.PINNED_REASON_KEY in status.metadata:
        kept = {key: value for key, value in status.metadata.items() if key != policies.PINNED_REASON_KEY}
        status = status.replace(metadata=kept)
    reason = status.status_info.reason
    if reason and reason.code in LOSS_CODES:
        status = status.replace(status_info=status.status_info.replace(reason=None))
    return status


def _no_proof(node: Node, proof: float | None) -> str:
    """Say why no length of silence proves that an exclusive copy has ended."""
    if not node.enforces_stop_after:
        why = f"the agent of node {node.node_id} does not stop exclusive work by itself"
    elif proof is None:
        why = f"node {node.node_id} has not been told that it is exclusive"
    else:
        return ""
    return (
        f"it is exclusive and {why}: make sure that the node is off, "
        f"then confirm it with `fleetbeat node fence {node.node_id}`"
    )


def _kept(spec: WorkloadSpec, status: WorkloadStatus, node: Node, now: datetime) -> Stay | Wait | None:
    """Decide about a workload that does not leave its node at all."""
    if policies.is_pinned(spec):
        why = (
            f"its data is on node {node.node_id}, which is not heard; it waits there "
            "(metadata persys.scheduling.allow_move=true lets it go)"
        )
        return Stay(PINNED_AWAIT_NODE, why, Phase.PENDING, pinned=True)
    if policies.may_replace(spec):
        return None
    limit = policies.lost_after_seconds(spec)
    why = f"node {node.node_id} is not heard, and {policies.REPLACE_KEY}=false: it is not replaced"
    if limit is None:
        return _wait(now + timedelta(seconds=60), why)
    due = _after(node.status_updated_at, limit, now)
    if silent_for(node, now) < timedelta(seconds=limit):
        return _wait(due, f"{why}; it counts as lost from {due.isoformat(timespec='seconds')}")
    if status.status == Phase.ORPHANED:
        return _wait(now + timedelta(seconds=60), why)
    return Stay(NODE_LOST, why, Phase.LOST)


def _leave(spec: WorkloadSpec, node: Node, now: datetime, policy: Policy, hold: str, *, grace: float) -> Move | Wait:
    delay = policies.replace_delay_seconds(spec)
    if silent_for(node, now) < timedelta(seconds=grace + delay):
        due = _after(node.status_updated_at, grace + delay, now)
        return _wait(due, f"{policies.REPLACE_DELAY_KEY}={delay:g}s has not passed")
    if hold:
        return _wait(now + timedelta(seconds=policy.grace_seconds), hold)
    return Move(f"node {node.node_id} is lost: {node.fenced_by or node.status_reason}")


def _is_orphan(status: WorkloadStatus, node: Node, now: datetime, policy: Policy) -> bool:
    """Whether a workload that may still run has been away so long that its share of the node is given up."""
    if status.status in _OVER or status.status == Phase.ORPHANED:
        return False
    return silent_for(node, now) >= timedelta(seconds=policy.orphan_after_seconds)


def _orphan_text(node: Node, policy: Policy, why: str) -> str:
    return f"node {node.node_id} has not been heard for {policy.orphan_after_seconds:g} s: {why}"


def _is_told(status: WorkloadStatus, decided: Stay) -> bool:
    """Whether the status says already what is to be recorded; an orphan stays one, whatever else is true of it."""
    reason = status.status_info.reason
    if reason and reason.code == ORPHANED:
        return True
    return reason is not None and reason.code == decided.code and status.status == decided.phase


def _after(since: datetime | None, seconds: float, now: datetime) -> datetime:
    return (since or now) + timedelta(seconds=seconds)


def _wait(until: datetime, why: str) -> Wait:
    return Wait(until, why, "AwaitFailover")
