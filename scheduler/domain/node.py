"""Nodes: what they are, what operators want of them, and whether they are alive.

Operator intent and health are separate fields, so neither can overwrite the other.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

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


class Drain(StrEnum):
    """How far an operator's wish to empty a node has come."""

    NONE = ""
    DRAINING = "Draining"
    DRAINED = "Drained"


_DRAIN_STATUSES = frozenset({Drain.DRAINING, Drain.DRAINED})


class DrainJob(Record):
    """The drain of a node: why, how fast, and since when. It is carried on by whoever looks at the node next."""

    reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    total: int = 0
    """Workloads that were on the node when it began."""
    max_parallel: int = 2
    """So many of the node's workloads may be on their way at once."""
    min_healthy_seconds: float = 0.0
    """A new copy must have run for so long before it counts as arrived."""
    deadline: datetime | None = None
    """From then on nothing waits for the health of what has moved."""
    ignore_pinned: bool = False
    """Workloads that must not leave the node do not keep it from being drained."""


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
    enforces_stop_after: bool = False
    """The node itself stops exclusive workloads when it has not been heard for their stop_after."""
    agent_id: str = ""
    """Names the agent's data folder, and so its copies, over all its starts; blank for agents that send none."""
    total_cpu: float = 0.0
    total_memory: int = 0
    total_disk: int = 0
    labels: dict[str, str] = Field(default_factory=dict)
    """What placement goes by: the operator's labels under the agent's own."""
    agent_labels: dict[str, str] = Field(default_factory=dict)
    """What the agent said when it registered last."""
    operator_labels: dict[str, str] = Field(default_factory=dict)
    """What operators set; the agent's label wins on the same key."""
    taints: tuple[Taint, ...] = ()
    supported_workload_types: tuple[str, ...] = ()
    """Empty means everything except vm, as in the reference system."""
    supported_storage_drivers: tuple[str, ...] = ("local",)
    # Health: written by registration, the heartbeat's recovery and the monitor.
    status: str = Health.READY
    status_reason: str = ""
    status_updated_by: str = ""
    status_updated_at: datetime | None = None
    fenced_at: datetime | None = None
    """When an operator vouched that this node, which is not heard, is off; gone as soon as it is heard again."""
    fenced_by: str = ""
    """What the operator said."""
    # Operator intent: written by operators only.
    schedulable: bool = True
    drain: str = Drain.NONE
    """Blank, Draining or Drained."""
    drain_job: DrainJob | None = None
    registered_at: datetime | None = None
    domain_name: str = ""
    """Its name in DNS, by which its record is found again; blank: it has none."""

    @model_validator(mode="before")
    @classmethod
    def _from_reference(cls, stored: Any) -> Any:
        """Read a status of the reference layout that tells of a drain: in it, health and drain are one field."""
        if isinstance(stored, dict) and not stored.get("drain") and stored.get("status") in _DRAIN_STATUSES:
            return {**stored, "drain": stored["status"], "status": Health.READY}
        return stored

    @property
    def is_ready(self) -> bool:
        """Heard recently enough to be given work; `Active` is the reference system's synonym."""
        return self.status.lower() in ("ready", "active")

    @property
    def is_fenced(self) -> bool:
        """An operator has vouched that nothing runs there any more, and it has not been heard since."""
        if self.is_ready or self.fenced_at is None:
            return False
        return self.status_updated_at is None or self.fenced_at >= self.status_updated_at

    @property
    def state_shown(self) -> str:
        """The one word for people: how the drain stands while the node is heard, else its health."""
        return self.drain if self.drain and self.is_ready else self.status
