"""What a suggestion of automation asks for, and whether it is fresh: pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scheduler.domain.errors import InvalidInput, Refused
from scheduler.domain.policy import MAX_REPLICAS
from scheduler.domain.workload import Desired

_STATES = {
    "": Desired.RUNNING,
    "running": Desired.RUNNING,
    "run": Desired.RUNNING,
    "start": Desired.RUNNING,
    "started": Desired.RUNNING,
    "stop": Desired.STOPPED,
    "stopped": Desired.STOPPED,
    "delete": Desired.DELETED,
    "deleted": Desired.DELETED,
}
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Freshness:
    """Which suggestions are too old, or from the future."""

    max_age_seconds: float
    tolerance_seconds: float
    """So far ahead the clock of whoever suggests may be."""
    undated: bool
    """Whether a suggestion that does not say when it was made is fresh."""


def check_fresh(suggested_at: datetime | None, now: datetime, rule: Freshness) -> None:
    """Refuse a suggestion that rests on how things were long ago. Raises Refused."""
    if suggested_at is None:
        if not rule.undated:
            raise Refused("suggested_at is missing, and suggestions without a time are not taken here")
        return
    age = (now - suggested_at).total_seconds()
    if age > rule.max_age_seconds:
        raise Refused(f"it was suggested {age:.0f} s ago, and counts for {rule.max_age_seconds:g} s")
    if age < -rule.tolerance_seconds:
        raise Refused(
            f"it was suggested {-age:.0f} s in the future, and clocks may differ by {rule.tolerance_seconds:g} s"
        )


def state_asked(text: str) -> Desired:
    """Return the desired state that is asked for, in the reference system's words for it; blank means Running."""
    found = _STATES.get(text.strip().lower())
    if found is None:
        raise InvalidInput("desired_state", f"{text[:_SHOWN]!r} is not allowed; it must be Running, Stopped or Deleted")
    return found


def replicas_asked(desired: int, delta: int, present: int) -> int:
    """Return how many copies are asked for: so many, or so many more or fewer than there are to be now."""
    if not desired and not delta:
        raise InvalidInput("desired_replicas", "must be given, or replica_delta")
    if desired and delta and present + delta != desired:
        raise InvalidInput(
            "replica_delta", f"{delta:+d} to {present} copies is not the desired_replicas {desired}; give one of them"
        )
    field, wanted = ("desired_replicas", desired) if desired else ("replica_delta", present + delta)
    if not 1 <= wanted <= MAX_REPLICAS:
        raise InvalidInput(field, f"{wanted} copies are not allowed; there must be 1 to {MAX_REPLICAS}")
    return wanted
