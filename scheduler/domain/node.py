"""Nodes: what they are, what operators want of them, and whether they are alive.

Operator intent and health are separate fields, so neither can overwrite the other.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from scheduler.domain.record import Record


class Health(StrEnum):
    """Whether a node is heard: the system's view, never an operator's."""

    READY = "Ready"
    NOT_READY = "NotReady"


class Taint(Record):
    """Keeps workloads away from a node unless they tolerate it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Node(Record):
    """`/nodes/{id}`: identity, endpoint, capacity, operator intent and health.

    Names as in the reference layout: `total_cpu` in cores, `total_memory` in MB, and
    `total_disk` (ours) in GB; 0 GB means the agent did not say, and disk is not checked.
    """

    node_id: str
    agent_endpoint: str = ""
    """host:port of the agent's gRPC server."""
    ip_address: str = ""
    agent_grpc_port: int = 0
    hostname: str = ""
    agent_version: str = ""
    cluster_id: str = ""
    instance_id: str = ""
    """New at each start of the agent; blank for agents that send none."""
    reports_epochs: bool = False
    """Reports carry revision and epoch, so an idle cycle need not ask this agent."""
    total_cpu: float = 0.0
    total_memory: int = 0
    total_disk: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    supported_workload_types: tuple[str, ...] = ()
    """Empty means everything except vm, as in the reference system."""
    supported_storage_drivers: tuple[str, ...] = ("local",)
    # Health: written by registration, the heartbeat's recovery and the monitor.
    status: str = Health.READY
    status_reason: str = ""
    status_updated_by: str = ""
    status_updated_at: datetime | None = None
    # Operator intent: written by operators only.
    schedulable: bool = True
    drain: str = ""
    """Blank, Draining or Drained."""
    registered_at: datetime | None = None

    @property
    def is_ready(self) -> bool:
        """Heard recently enough to be given work; `Active` is the reference system's synonym."""
        return self.status.lower() in ("ready", "active")
