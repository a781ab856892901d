"""Events: what happened, for people. Types are the reference system's, used honestly."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from scheduler.domain.record import Record


class EventType(StrEnum):
    """Known event types."""

    WORKLOAD_CREATED = "WorkloadCreated"
    WORKLOAD_UPDATED = "WorkloadUpdated"
    WORKLOAD_SCHEDULED = "WorkloadScheduled"
    WORKLOAD_FAILED = "WorkloadFailed"
    WORKLOAD_DELETED = "WorkloadDeleted"
    RETRY_TRIGGERED = "RetryTriggered"
    RESCHEDULED = "Rescheduled"
    RESCHEDULE_SKIPPED = "RescheduleSkipped"
    RELOCATED = "Relocated"
    NODE_JOINED = "NodeJoined"
    NODE_LEFT = "NodeLeft"
    NODE_LOST = "NodeLost"
    NODE_READY = "NodeReady"
    NODE_DRAINING = "NodeDraining"
    NODE_DRAINED = "NodeDrained"
    NODE_TAINTED = "NodeTainted"
    NODE_UNTAINTED = "NodeUntainted"
    NODE_LABEL_SET = "NodeLabelSet"
    NODE_LABEL_DELETED = "NodeLabelDeleted"
    NODE_FENCED = "NodeFenced"
    DRIFT_DETECTED = "DriftDetected"
    BRAKE_HELD = "BrakeHeld"
    BRAKE_RELEASED = "BrakeReleased"
    SCHEDULER_MODE_CHANGED = "SchedulerModeChanged"
    LEADER_ELECTED = "LeaderElected"
    LEADER_LOST = "LeaderLost"


class Event(Record):
    """One thing that happened."""

    id: str
    type: str
    workload_id: str = ""
    node_id: str = ""
    reason: str = ""
    timestamp: datetime
    details: dict[str, str] = Field(default_factory=dict)
