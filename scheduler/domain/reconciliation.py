"""What came of looks at workloads, for people: the last outcome of each, and a history of all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import AwareDatetime, field_serializer

from scheduler.domain.record import Record

MAX_REASON: Final = 512
"""Characters of a reason that are kept; agents may write more."""
FINALIZED: Final = "FinalizeDelete"
"""The action that ends a workload."""


class Reconciliation(Record):
    """What one look at a workload did, under the reference system's names."""

    workload_id: str
    action: str
    success: bool
    reason: str = ""
    attempted_at: AwareDatetime

    @field_serializer("attempted_at")
    def _fixed_width(self, moment: datetime) -> str:
        """Write RFC 3339 of one width, so that the order of the texts is the order of time."""
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def says_the_same(self, other: Reconciliation) -> bool:
        """Whether both tell of the same outcome, whenever that was."""
        mine, others = ((one.workload_id, one.action, one.success, one.reason) for one in (self, other))
        return mine == others


@dataclass(frozen=True, slots=True)
class Outcome:
    """An outcome on its way to where it is kept."""

    record: Reconciliation
    anew: bool
    """Something was done, such as an order given: it counts even if the outcome before says the same."""

    @property
    def is_end(self) -> bool:
        """Whether the workload is gone with it."""
        return self.record.action == FINALIZED and self.record.success

    def is_news_after(self, before: Reconciliation | None) -> bool:
        """Whether it is worth keeping after the outcome before it; None: there is none."""
        return self.anew or before is None or not self.record.says_the_same(before)
