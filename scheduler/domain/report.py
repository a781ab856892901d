"""What an agent says about a workload on its node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Report:
    """One workload as its node sees it."""

    workload_id: str
    state: str
    """One of domain.workload.Actual."""
    message: str = ""
    revision_id: str = ""
    """Blank when the agent does not say."""
    epoch: int = 0
    """0 when the agent does not say."""
    failure_code: str = ""
    retryable: bool = True
    metadata: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    """The latest usage sample, names as on the wire."""
