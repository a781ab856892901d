"""What an agent says about a workload on its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_VANISHED = "container not found"
"""What the Persys compute-agent says, in state Unknown, when somebody removed the container behind its back."""
_TRUE = frozenset({"true", "1", "yes"})


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


def is_terminal(metadata: Mapping[str, str]) -> bool:
    """Whether the agent says that trying again is of no use."""
    return metadata.get("retry_terminal", "").lower() in _TRUE


def has_vanished(message: str) -> bool:
    """Whether a copy in state Unknown is gone, by the agent's own words."""
    return _VANISHED in message.lower()
