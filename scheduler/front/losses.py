"""Why a workload of a lost node moves or does not: the loop's own decision, made once more for people."""

from __future__ import annotations

from scheduler.convergence.actions import next_action
from scheduler.convergence.liveness import PulseLog
from scheduler.convergence.loss import Move, Stay, Wait, as_told, hold_reason
from scheduler.domain.node import Node
from scheduler.domain.policy import is_exclusive
from scheduler.domain.workload import Desired, WorkloadSpec, WorkloadStatus
from scheduler.front.parts import FrontParts
from scheduler.leadership.brakes import brake_of
from scheduler.leadership.policy import policy_of
from scheduler.placement.explain import Explanation
from scheduler.store.keys import NODES, TOMBSTONES
from scheduler.telemetry.redis import TelemetryUnavailable


async def explain_loss(parts: FrontParts, spec: WorkloadSpec, status: WorkloadStatus) -> str:
    """Say in a sentence what holds a workload whose node is lost; blank when no lost node is the matter."""
    if spec.desired_state == Desired.DELETED:
        return ""
    if not status.node_id:
        return await _blocked(parts, spec, status)
    node = parts.cache.get(NODES, status.node_id).record
    if node is None or node.is_ready:
        return ""
    action = next_action(spec, status, node, parts.now(), policy_of(parts.settings))
    if isinstance(action, Move):
        hold = await _hold(parts, spec, status, node)
        action = next_action(spec, status, node, parts.now(), policy_of(parts.settings), hold=hold)
    since = node.status_updated_at.isoformat(timespec="seconds") if node.status_updated_at else "an unknown time"
    where = f"was on {node.node_id}, which has not been heard since {since}"
    if isinstance(action, Wait | Stay):
        return f"{where}; it stays: {action.why}"
    target = parts.placer.elsewhere(spec, node.node_id)
    if isinstance(target, Explanation):
        return f"{where}; no failover target: {target.summary}"
    return f"{where}; it is about to move to {target.node_id}"


async def _hold(parts: FrontParts, spec: WorkloadSpec, status: WorkloadStatus, node: Node) -> str:
    pulses: PulseLog | None = None
    try:
        pulses = await parts.pulses.read([node.node_id])
    except TelemetryUnavailable:
        pulses = None
    held = brake_of(parts.cache, parts.settings, node, parts.now())
    return hold_reason(spec, status, node, policy_of(parts.settings), brake=held, pulses=pulses)


async def _blocked(parts: FrontParts, spec: WorkloadSpec, status: WorkloadStatus) -> str:
    """Say which node may still run an exclusive workload that is nowhere now."""
    if not is_exclusive(spec):
        return ""
    policy = policy_of(parts.settings)
    stops = (one.record for one in parts.cache.all(TOMBSTONES).values())
    for owed in [one for one in stops if one and one.workload_id == spec.id]:
        node = parts.cache.get(NODES, owed.node_id).record
        if node is None or owed.confirmed:
            continue
        told = as_told(status, owed, policy)
        why = "the node has not stopped it yet" if node.is_ready else await _hold(parts, spec, told, node)
        if why:
            return f"it is exclusive and may still run on {owed.node_id}: {why}"
    return ""
