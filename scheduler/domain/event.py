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
    WORKLOAD_DELETED = "WorkloadDeleted"
    RETRY_TRIGGERED = "RetryTriggered"
    RESCHEDULED = "Rescheduled"
    NODE_JOINED = "NodeJoined"
    NODE_LOST = "NodeLost"
    NODE_READY = "NodeReady"
    BRAKE_HELD = "BrakeHeld"


class Event(Record):
    """One thing that happened."""

    id: str
    type: str
    workload_id: str = ""
    node_id: str = ""
    reason: str = ""
    timestamp: datetime
    details: dict[str, str] = Field(default_factory=dict)
