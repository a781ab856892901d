"""Drift: where what a node has differs from what its records say."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from scheduler.domain.record import Record


class DriftType(StrEnum):
    """The reference system's kinds."""

    ORPHAN = "orphan_on_agent"
    STATE = "state_mismatch"
    REVISION = "revision_mismatch"
    MISSING = "missing_on_agent"


class DriftAction(StrEnum):
    """What is done about a finding, by the reference system's names."""

    DELETE_UNKNOWN = "delete_orphan_on_agent"
    DELETE_RESIDUAL = "delete_deleted_residual_on_agent"
    DELETE_DUPLICATE = "delete_duplicate_on_reporting_node"
    ADOPT = "adopt_orphan_to_reporting_node"
    INVESTIGATE = "operator_investigation"
    ALIGN = "align_scheduler_status"
    REAPPLY = "reapply_scheduler_revision"
    RETRY = "retry_and_reconcile"


class OrphanPolicy(StrEnum):
    """What becomes of a copy that no record speaks of."""

    KEEP = "keep"
    ADOPT = "adopt"
    DELETE = "delete"


class DriftRecord(Record):
    """`/drifts/{node}/{workload}/{type}`: a finding that is open. It goes when it is resolved."""

    node_id: str
    workload_id: str
    drift_type: str
    detected_at: datetime
    """When it was first seen."""
    scheduler_status: str = ""
    agent_status: str = ""
    action: str = ""
    resolved: bool = False
    last_error: str = ""
    sightings: int = 1
    """In how many cycles it was seen; not counted beyond what a deletion needs."""
    epoch: int = 0
    """Of the copy, as its agent says."""
    attempts: int = 0
    """How often its removal was ordered."""


def drift_id(node_id: str, workload_id: str, drift_type: str) -> str:
    """Return the id of a finding in its table."""
    return f"{node_id}/{workload_id}/{drift_type}"


def event_details(found: DriftRecord, *, resolved: bool) -> dict[str, str]:
    """Return what an event tells of a finding."""
    details = {
        "drift_type": str(found.drift_type),
        "scheduler_status": found.scheduler_status,
        "agent_status": found.agent_status,
        "action": str(found.action),
        "resolved": str(resolved).lower(),
    }
    return {**details, "last_error": found.last_error} if found.last_error and not resolved else details
