"""From an agent's words to a Report."""

from __future__ import annotations

from scheduler.domain.report import Report, has_vanished, is_terminal
from scheduler.domain.workload import Actual
from scheduler.pb import agent_pb2

_STATES = {
    agent_pb2.ACTUAL_STATE_PENDING: Actual.PENDING,
    agent_pb2.ACTUAL_STATE_RUNNING: Actual.RUNNING,
    agent_pb2.ACTUAL_STATE_STOPPED: Actual.STOPPED,
    agent_pb2.ACTUAL_STATE_FAILED: Actual.FAILED,
}
_TYPES = {
    agent_pb2.WORKLOAD_TYPE_CONTAINER: "container",
    agent_pb2.WORKLOAD_TYPE_COMPOSE: "compose",
    agent_pb2.WORKLOAD_TYPE_VM: "vm",
    agent_pb2.WORKLOAD_TYPE_MICROVM: "microvm",
}


def report_of(status: agent_pb2.WorkloadStatus) -> Report:
    """Return what the agent says about one workload."""
    metadata = dict(status.metadata)
    return Report(
        workload_id=status.id,
        state=_state(status),
        message=status.message,
        revision_id=status.revision_id,
        epoch=status.assignment_epoch,
        failure_code=metadata.get("failure_reason", ""),
        retryable=not is_terminal(metadata),
        metadata=metadata,
        usage=_usage(status.usage) if status.HasField("usage") else None,
    )


def _state(status: agent_pb2.WorkloadStatus) -> Actual:
    state = _STATES.get(status.actual_state, Actual.UNKNOWN)
    if state is Actual.UNKNOWN and has_vanished(status.message):
        return Actual.MISSING
    return state


def _usage(sample: agent_pb2.WorkloadUsageSnapshot) -> dict[str, object]:
    return {
        "workload_id": sample.workload_id,
        "type": _TYPES.get(sample.type, ""),
        "cpu_percent": sample.cpu_percent,
        "memory_bytes": sample.memory_bytes,
        "disk_read_bytes": sample.disk_read_bytes,
        "disk_write_bytes": sample.disk_write_bytes,
        "net_rx_bytes": sample.net_rx_bytes,
        "net_tx_bytes": sample.net_tx_bytes,
        "collected_at": sample.collected_at,
        "source": sample.source,
    }
