"""The front's gauges, computed at the moment of a scrape from what is in memory."""

from __future__ import annotations

from scheduler.front.health import Health
from scheduler.front.heartbeats import Heartbeats
from scheduler.front.index import FleetIndex
from scheduler.front.parts import FrontParts
from scheduler.front.vitals import Vitals
from scheduler.store.keys import NODES
from scheduler.telemetry.metrics import FleetFigures


class Figures:
    """Call it for the figures of now."""

    def __init__(
        self, parts: FrontParts, index: FleetIndex, vitals: Vitals, heartbeats: Heartbeats, health: Health
    ) -> None:
        """Take whom to ask."""
        self._parts = parts
        self._index = index
        self._vitals = vitals
        self._heartbeats = heartbeats
        self._health = health

    def __call__(self) -> FleetFigures:
        """Return the figures."""
        freshness = self._parts.cache.freshness()
        oldest = self._index.oldest_pending()
        gauges = {
            "cache_synced": float(freshness.synced),
            "redis_up": float(self._vitals.redis_up),
            "listening": float(self._health.ready),
            "heartbeat_changes_waiting": float(len(self._heartbeats.reports.pump)),
            "pulses_waiting": float(len(self._heartbeats.pulses)),
            "pending_age_seconds_max": (self._parts.now() - oldest).total_seconds() if oldest else 0.0,
        }
        if (age := self._heartbeat_age()) is not None:
            gauges["heartbeat_age_seconds_max"] = age
        if freshness.synced:
            gauges["cache_age_seconds"] = freshness.age_seconds
        return FleetFigures(self._index.nodes(), self._index.workloads(), self._index.desired(), gauges)

    def _heartbeat_age(self) -> float | None:
        """Return the greatest age among Ready nodes of which a heartbeat is known, here or in Redis.

        As of the last read of all of them, some seconds ago: what was heard since is not an age yet.
        None: nothing is known, as without Redis on a front that agents do not talk to.
        """
        known, read_at = self._vitals.latest, self._vitals.latest_at
        ages = [
            max(0.0, read_at - known[node_id].at)
            for node_id, stored in self._parts.cache.all(NODES).items()
            if stored.record and stored.record.is_ready and node_id in known
        ]
        if ages or not self._index.nodes()["Ready"]:
            return max(ages, default=0.0)
        return None
