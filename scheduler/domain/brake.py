"""The release of a brake: an operator lets work move although many nodes are lost."""

from __future__ import annotations

from datetime import datetime

from scheduler.domain.record import Record

ZONE_LABELS = ("topology.kubernetes.io/zone", "zone")
"""Labels that say in which zone a node is; the first one that it carries counts."""
MAX_RELEASE_SECONDS = 86_400
MAX_REASON = 256


class BrakeRelease(Record):
    """`/brakes/{shard}`: nothing holds moves in this shard until then."""

    shard: int
    until: datetime
    released_at: datetime | None = None
    reason: str = ""

    def is_valid(self, now: datetime) -> bool:
        """Whether it still counts."""
        return now < self.until
