"""From records to messages, bounded."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict

from agent.actions import Action
from agent.records import Code, Desired, State
from agent.runtimes import Sample
from agent.workload import Workload
from scheduler.pb import agent_pb2, control_pb2

MAX_MESSAGE = 1024
MAX_FACT = 256
_ACTUAL = {
    State.PENDING: agent_pb2.ACTUAL_STATE_PENDING,
    State.RUNNING: agent_pb2.ACTUAL_STATE_RUNNING,
    State.STOPPED: agent_pb2.ACTUAL_STATE_STOPPED,
    State.FAILED: agent_pb2.ACTUAL_STATE_FAILED,
    State.UNKNOWN: agent_pb2.ACTUAL_STATE_UNKNOWN,
}
TYPES = {
    "container": agent_pb2.WORKLOAD_TYPE_CONTAINER,
    "compose": agent_pb2.WORKLOAD_TYPE_COMPOSE,
    "vm": agent_pb2.WORKLOAD_TYPE_VM,
    "microvm": agent_pb2.WORKLOAD_TYPE_MICROVM,
}
_REASONS = {
    Code.IMAGE_PULL_TIMEOUT: control_pb2.IMAGE_PULL_FAILED,
    Code.IMAGE_PULL_AUTH_FAILED: control_pb2.IMAGE_PULL_FAILED,
    Code.INVALID_IMAGE: control_pb2.IMAGE_NOT_FOUND,
    Code.NETWORK_TIMEOUT: control_pb2.NETWORK_ERROR,
    Code.NETWORK_UNREACHABLE: control_pb2.NETWORK_ERROR,
    Code.DNS_RESOLUTION_FAILED: control_pb2.NETWORK_ERROR,
    Code.INSUFFICIENT_RESOURCES: control_pb2.INSUFFICIENT_RESOURCES,
    Code.STORAGE_FULL: control_pb2.STORAGE_ERROR,
    Code.STORAGE_PROVISION_FAILED: control_pb2.STORAGE_ERROR,
    Code.INVALID_SPECIFICATION: control_pb2.INVALID_SPEC,
    Code.INVALID_CONFIGURATION: control_pb2.INVALID_SPEC,
}


def facts(workload: Workload) -> dict[str, str]:
    """Return the small facts that go with a status; the names of failures are the reference agent's."""
    record = workload.record
    found = {"runtime": ",".join(record.runtimes)}
    if workload.copy:
        found |= workload.copy.facts
    if record.restarts:
        found["restarts"] = str(record.restarts)
    if record.exit_code is not None:
        found["exit_code"] = str(record.exit_code)
    if record.failure:
        found["failure_reason"] = record.failure.code
        found["retryable"] = "true" if record.failure.retryable else "false"
    if record.deleting:
        found["deleting"] = "true"
    return {name: value[:MAX_FACT] for name, value in found.items() if value}


def agent_status(workload: Workload, sample: Sample | None = None) -> agent_pb2.WorkloadStatus:
    """Return the status as AgentService gives it."""
    record, order = workload.record, workload.record.order
    is_stopped = order.desired is Desired.STOPPED
    status = agent_pb2.WorkloadStatus(
        id=order.id,
        type=TYPES[order.type],
        revision_id=order.revision,
        desired_state=agent_pb2.DESIRED_STATE_STOPPED if is_stopped else agent_pb2.DESIRED_STATE_RUNNING,
        actual_state=_ACTUAL[record.state],
        message=record.message[:MAX_MESSAGE],
        created_at=record.created_at,
        updated_at=record.updated_at,
        metadata=facts(workload),
        assignment_epoch=order.epoch,
    )
    if sample:
        status.usage.CopyFrom(
            agent_pb2.WorkloadUsageSnapshot(type=TYPES[order.type], collected_at=int(time.time()), **asdict(sample))
        )
    return status


def control_status(workload: Workload) -> control_pb2.WorkloadStatus:
    """Return the status as heartbeats carry it."""
    record, order = workload.record, workload.record.order
    status = control_pb2.WorkloadStatus(
        workload_id=order.id,
        state=record.state,
        message=record.message[:MAX_MESSAGE],
        revision_id=order.revision,
        assignment_epoch=order.epoch,
        metadata=facts(workload),
    )
    status.last_transition.seconds = record.updated_at
    if record.failure:
        status.failure_reason = _REASONS.get(record.failure.code, control_pb2.RUNTIME_ERROR)
        status.reason.code = record.failure.code
        status.reason.message = record.failure.message[:MAX_MESSAGE]
        status.reason.retryable = record.failure.retryable
        status.reason.last_transition.seconds = record.updated_at
    return status


def usage_samples(samples: Iterable[Sample], types: dict[str, str]) -> list[control_pb2.WorkloadUsageSnapshot]:
    """Return the usage of workloads as heartbeats carry it."""
    found = [control_pb2.WorkloadUsageSnapshot(type=types.get(s.workload_id, ""), **asdict(s)) for s in samples]
    for snapshot in found:
        snapshot.collected_at.GetCurrentTime()
    return found


def action_message(action: Action) -> agent_pb2.AgentAction:
    """Return an action as ListActions gives it."""
    return agent_pb2.AgentAction(
        task_id=action.task_id,
        workload_id=action.workload_id,
        action_type=action.kind,
        status=action.status,
        error=action.error[:MAX_MESSAGE],
        created_at=action.created_at,
        started_at=action.started_at,
        ended_at=action.ended_at,
    )
