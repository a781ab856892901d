"""Tolerations: the taints that a workload accepts on its node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.domain.node import Taint
from scheduler.domain.workload import WorkloadSpec

TOLERATIONS_KEY = "fleetbeat.tolerations"
"""Metadata of a spec: "key", "key=value", "key=value:effect", comma-separated; "*" tolerates every taint."""

NO_SCHEDULE = "NoSchedule"
"""Keeps new work away; what a blank effect means."""
PREFER_NO_SCHEDULE = "PreferNoSchedule"
"""Keeps new work away while there is another node that fits."""
NO_EXECUTE = "NoExecute"
"""Keeps new work away, and makes the work that is there leave."""
EFFECTS = (NO_SCHEDULE, PREFER_NO_SCHEDULE, NO_EXECUTE)


@dataclass(frozen=True, slots=True)
class Toleration:
    """Taints that a workload accepts; a blank part matches anything."""

    key: str
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the workload may run in spite of this taint; a taint with a blank effect means NoSchedule."""
        return (
            self.key in ("*", taint.key)
            and self.value in ("", taint.value)
            and self.effect in ("", taint.effect or NO_SCHEDULE)
        )


def parse_tolerations(text: str) -> tuple[Toleration, ...]:
    """Parse the value of `fleetbeat.tolerations`; empty items are skipped."""
    return tuple(_toleration(item.strip()) for item in text.split(",") if item.strip())


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether any of the tolerations covers the taint."""
    return any(toleration.covers(taint) for toleration in tolerations)


def tolerations_of(spec: WorkloadSpec) -> tuple[Toleration, ...]:
    """Return what a spec tolerates."""
    return parse_tolerations(spec.metadata.get(TOLERATIONS_KEY, ""))


def taint_text(taint: Taint) -> str:
    """Write a taint as people do: key=value:effect."""
    return f"{taint.key}{'=' if taint.value else ''}{taint.value}:{taint.effect or NO_SCHEDULE}"


def _toleration(item: str) -> Toleration:
    selector, _, effect = item.partition(":")
    key, _, value = selector.partition("=")
    return Toleration(key.strip(), value.strip(), effect.strip())
