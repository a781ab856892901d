"""What a failure means: whose it is, and whether trying again is of any use. Pure."""

from __future__ import annotations

from datetime import datetime

from scheduler.domain.report import is_terminal
from scheduler.domain.workload import StatusInfo, WorkloadStatus

RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
"""Its agent has refused it for too long."""
RETRY_TERMINAL = "RETRY_TERMINAL"
"""Its agent says that trying again is of no use, and gives no other code."""
TERMINAL_CODES = frozenset({
    "INVALID_IMAGE", "INVALID_SPECIFICATION", "INVALID_CONFIGURATION", "PORT_BIND_CONFLICT",
    "DISK_PRESSURE", "DOMAIN_PAUSED_IO", "RESOURCE_QUOTA", "RESOURCE_QUOTA_EXCEEDED",
})  # fmt: skip
"""Codes of agents after which the reference system starts a workload no more."""
RUNTIME_UNAVAILABLE = "RUNTIME_UNAVAILABLE"
_NO_RUNTIME = "runtime not available"
_RUNTIME_TEXTS = ("container.stderr", "last_runtime_error", "container.runtime_error")
_TERMINAL_TEXTS = ("retry_terminal_reason", *_RUNTIME_TEXTS)
_INFRASTRUCTURE = (
    "no failover target",
    "heartbeat expired",
    "connection refused",
    "deadline exceeded",
    "transport: error while dialing",
)


def is_infrastructure(text: str) -> bool:
    """Tell whether a text speaks of the way to the node rather than of the workload (persys.md 4.4)."""
    lowered = text.lower()
    return ("node" in lowered and "unavailable" in lowered) or any(phrase in lowered for phrase in _INFRASTRUCTURE)


def failure_text(status: WorkloadStatus) -> str:
    """Join what the control plane and what the runtime says about a failure: the more telling one first."""
    facts = status.metadata
    stored = status.status_info.failure_reason or str(facts.get("last_error") or "")
    runtime = next((str(facts[key]) for key in _RUNTIME_TEXTS if facts.get(key)), "")
    both = [runtime, stored] if is_infrastructure(stored) else [stored, runtime]
    return "\n".join(dict.fromkeys(text for text in both if text))


def terminal_code(status: WorkloadStatus) -> str:
    """Return the code after which a copy that has failed is not started again; blank: it is."""
    reason = status.status_info.reason
    codes = (reason.code if reason else "", str(status.metadata.get("failure_reason") or ""))
    if found := next((code for code in codes if code in TERMINAL_CODES), ""):
        return found
    if is_terminal({key: str(value) for key, value in status.metadata.items()}):
        return next(filter(None, codes), RETRY_TERMINAL)
    return RETRIES_EXHAUSTED if status.retry.is_used_up else ""


def terminal_text(status: WorkloadStatus, code: str) -> str:
    """Say why a workload is not started again: the first of what its agent, its runtime and we have said."""
    said = (str(status.metadata.get(key) or "") for key in _TERMINAL_TEXTS)
    return next(filter(None, (*said, status.status_info.failure_reason)), f"it failed with {code}")


def lacks_runtime(code: str, text: str) -> bool:
    """Whether an agent refuses an order because the node cannot run workloads of this type at all."""
    return code == RUNTIME_UNAVAILABLE or _NO_RUNTIME in text.lower()


def without_copy(status: WorkloadStatus, actual: str, now: datetime) -> StatusInfo:
    """Return what is known of a workload whose copy is left behind: of one that has failed for good still why."""
    fresh = StatusInfo(actual_state=actual, last_updated=now)
    if not status.terminal:
        return fresh
    return fresh.replace(failure_reason=status.status_info.failure_reason, reason=status.status_info.reason)
