"""From records to what the wire shows of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from scheduler.convergence.failures import failure_text
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.domain.record import utc
from scheduler.domain.workload import Reason, WorkloadSpec, WorkloadStatus
from scheduler.front.vitals import Vital
from scheduler.pb import control_pb2 as pb
from scheduler.telemetry.pulses import Usage


def timestamp(when: datetime | None) -> Timestamp | None:
    """Return the wire's time; None, which leaves the field unset, for none and for one that the wire cannot hold.

    What another scheduler has stored may be such a one: the years of UTC begin with 1.
    """
    if when is None:
        return None
    found = Timestamp()
    try:
        found.FromDatetime(when)
    except (ValueError, OverflowError):
        return None
    return found


def node_view(node: Node, vital: Vital, ledger: Ledger | None, *, shard: int, workloads: int) -> pb.NodeView:
    """Show a node. Available is the total less the measured use, as in the reference system; allocated is committed."""
    use = vital.use
    told = _state_of(node)
    committed = ledger or Ledger(node_id=node.node_id)
    return pb.NodeView(
        node_id=node.node_id,
        status=told.status,
        status_reason=told.reason,
        status_updated_by=told.by,
        status_updated_at=timestamp(told.at),
        last_heartbeat=timestamp(vital.last_heartbeat),
        grpc_endpoint=node.agent_endpoint,
        total_cpu_cores=node.total_cpu,
        available_cpu_cores=max(0.0, node.total_cpu - use.cpu_used_millicores / 1000),
        total_memory_mb=node.total_memory,
        available_memory_mb=max(0, node.total_memory - use.memory_used_mb),
        supported_workload_types=node.supported_workload_types,
        labels=node.labels,
        taints=[pb.NodeTaint(key=t.key, value=t.value, effect=t.effect) for t in node.taints],
        total_disk_gb=node.total_disk,
        allocated_cpu_cores=committed.cpu_millicores / 1000,
        allocated_memory_mb=committed.memory_mb,
        allocated_disk_gb=committed.disk_gb,
        workload_count=workloads,
        shard=shard,
        schedulable=node.schedulable and not node.drain,
        agent_version=node.agent_version,
        health=node.status,
        drain=node.drain,
        cordoned=not node.schedulable,
    )


@dataclass(frozen=True, slots=True)
class _State:
    status: str
    reason: str
    by: str
    at: datetime | None


def _state_of(node: Node) -> _State:
    """Tell of a drain while the node is heard, as the reference system does; else of its health."""
    if node.state_shown == node.status or node.drain_job is None:
        return _State(node.state_shown, node.status_reason, node.status_updated_by, node.status_updated_at)
    job = node.drain_job
    return _State(node.state_shown, job.reason, "operator", job.finished_at or job.started_at)


def workload_view(
    spec: WorkloadSpec, status: WorkloadStatus, *, shown: str, since: datetime | None, usage: Usage | None
) -> pb.WorkloadView:
    """Show a workload. `shown` is its phase; a VM's address is not glued to it, as the reference system does."""
    return pb.WorkloadView(
        workload_id=spec.id,
        type=spec.type,
        desired_state=spec.desired_state,
        status=shown,
        assigned_node_id=status.node_id or status.assigned_node,
        revision_id=spec.revision_id,
        retry_attempts=status.retry.attempts,
        retry_max_attempts=status.retry.max_attempts,
        retry_next_at=timestamp(status.retry.next_retry_at),
        failure_reason=failure_text(status),
        last_updated=timestamp(since or spec.created_at),
        reason=_reason(status.status_info.reason),
        usage=_usage(usage),
        created_at=timestamp(spec.created_at),
        generation=spec.generation,
        assignment_epoch=status.epoch,
        pending_reason=status.pending_reason,
        replica_of=spec.replica_of,
        interruptions=status.interruptions,
    )


def _reason(reason: Reason | None) -> pb.ReasonDetail | None:
    if reason is None or reason == Reason():
        return None
    return pb.ReasonDetail(
        code=reason.code,
        message=reason.message,
        last_transition=timestamp(reason.last_transition),
        next_retry_at=timestamp(reason.next_retry_at),
        retryable=reason.retryable,
    )


def _usage(usage: Usage | None) -> pb.WorkloadUsageSnapshot | None:
    if usage is None:
        return None
    return pb.WorkloadUsageSnapshot(
        workload_id=usage.workload_id,
        type=usage.type,
        cpu_percent=usage.cpu_percent,
        memory_bytes=usage.memory_bytes,
        disk_read_bytes=usage.disk_read_bytes,
        disk_write_bytes=usage.disk_write_bytes,
        net_rx_bytes=usage.net_rx_bytes,
        net_tx_bytes=usage.net_tx_bytes,
        collected_at=timestamp(utc(usage.collected_at)),
        source=usage.source,
    )
