"""The front's gauges, computed at the moment of a scrape from what is in memory."""

from __future__ import annotations

from collections import Counter

from scheduler.front.control_plane import ControlPlane
from scheduler.front.health import Health
from scheduler.front.heartbeats import Heartbeats
from scheduler.front.index import FleetIndex
from scheduler.front.parts import FrontParts
from scheduler.front.vitals import Vitals
from scheduler.store.keys import DRIFTS, NODES
from scheduler.telemetry.metrics import FleetFigures
from scheduler.tls.files import FollowedFiles

MODES = ("normal", "degraded", "recovery")


class Figures:
    """Call it for the figures of now."""

    def __init__(
        self,
        parts: FrontParts,
        index: FleetIndex,
        vitals: Vitals,
        *,
        heartbeats: Heartbeats,
        health: Health,
        control_plane: ControlPlane,
    ) -> None:
        """Take whom to ask."""
        self._parts = parts
        self._index = index
        self._vitals = vitals
        self._heartbeats = heartbeats
        self._health = health
        self._control_plane = control_plane
        self.certificate: FollowedFiles | None = None
        """The front's own; None without TLS."""

    def __call__(self) -> FleetFigures:
        """Return the figures."""
        return FleetFigures(
            self._index.nodes(), self._index.workloads(), self._index.desired(), self._gauges(), self._labelled()
        )

    def _gauges(self) -> dict[str, float]:
        freshness = self._parts.cache.freshness()
        oldest = self._index.oldest_pending()
        gauges = {
            "cache_synced": float(freshness.synced),
            "redis_up": float(self._vitals.redis_up),
            "listening": float(self._health.ready),
            "heartbeat_changes_waiting": float(len(self._heartbeats.reports.pump)),
            "pulses_waiting": float(len(self._heartbeats.pulses)),
            "agent_channels": float(self._parts.agents.open_channels),
            **self._control_plane.gauges(),
            "workloads_retrying": float(self._index.retrying),
            "pending_age_seconds_max": (self._parts.now() - oldest).total_seconds() if oldest else 0.0,
        }
        if (age := self._heartbeat_age()) is not None:
            gauges["heartbeat_age_seconds_max"] = age
        if self.certificate:
            gauges["certificate_expires_timestamp_seconds"] = self.certificate.current().not_after
        if freshness.synced:
            gauges["cache_age_seconds"] = freshness.age_seconds
        return gauges

    def _labelled(self) -> dict[str, dict[tuple[str, ...], float]]:
        mode = self._health.report()["mode"]
        return {
            **self._control_plane.labelled(),
            "workloads_pending": {(why,): float(count) for why, count in self._index.pending().items()},
            "drifts_open": {(kind,): float(count) for kind, count in self._open_drifts().items()},
            "mode": {(name,): float(name == mode) for name in dict.fromkeys((*MODES, mode))},
        }

    def _open_drifts(self) -> Counter[str]:
        found = (stored.record for stored in self._parts.cache.all(DRIFTS).values())
        return Counter(record.drift_type for record in found if record)

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
