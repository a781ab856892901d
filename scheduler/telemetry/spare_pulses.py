"""Pulses from wherever they are: Redis as long as it answers, and what fronts that do not reach it write to etcd."""

from __future__ import annotations

import time
from collections.abc import Sequence

from redis.asyncio import Redis

from scheduler.store.pulses import HeardThere, PulsePages
from scheduler.telemetry.pulses import FrontPulse, Pulse, Pulses, PulseView
from scheduler.telemetry.redis import TelemetryUnavailable

WRITES_PER_LEASE = 3
"""A front without Redis writes to etcd so often in the lease of a node."""


class SparedPulses(Pulses):
    """Reads etcd as well. A node that only a front without Redis hears is heard all the same."""

    def __init__(
        self, redis: Redis | None, pages: PulsePages, *, gap_limit_seconds: float, lease_seconds: float
    ) -> None:
        """Take the connection, what follows etcd, and the lease of a node."""
        super().__init__(redis, gap_limit_seconds=gap_limit_seconds)
        self._pages = pages
        self._period = lease_seconds / WRITES_PER_LEASE

    async def read(self, node_ids: Sequence[str] | None = None) -> PulseView:
        """Return what was heard of these nodes (None: of all), and who listened.

        Raises TelemetryUnavailable when neither Redis nor etcd tells.
        """
        try:
            view = await super().read(node_ids)
        except TelemetryUnavailable:
            if not self._pages.is_current:
                raise
            return self._without_redis(node_ids)
        return _merged(view, self._pages.read(), node_ids)

    def _without_redis(self, node_ids: Sequence[str] | None) -> PulseView:
        there, now = self._pages.read(), time.time()
        ahead = now - time.monotonic()
        wanted = there.nodes if node_ids is None else [n for n in node_ids if n in there.nodes]
        return PulseView(
            now=now,
            pulses={n: Pulse(n, there.nodes[n] + ahead) for n in wanted},
            fronts=[FrontPulse(f, since + ahead, at + ahead) for f, (since, at) in there.fronts.items()],
            period_seconds=self._period,
            from_redis=False,
        )


def _merged(view: PulseView, there: HeardThere, node_ids: Sequence[str] | None) -> PulseView:
    """Let a node count as heard where it was heard last; who listened without a gap only Redis proves."""
    ahead = view.now - time.monotonic()
    for node_id in there.nodes if node_ids is None else [n for n in node_ids if n in there.nodes]:
        at, known = min(view.now, there.nodes[node_id] + ahead), view.pulses.get(node_id)
        if known is None:
            view.pulses[node_id] = Pulse(node_id, at)
        elif known.at < at:
            use = (known.cpu_used_millicores, known.memory_used_mb, known.disk_used_gb)
            view.pulses[node_id] = Pulse(node_id, at, *use)
    return view
