"""When each node was last heard and what it uses: what this front heard itself, and what others told Redis."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from scheduler.domain.record import utc
from scheduler.telemetry.pulses import FrontPulse, Pulses, PulseView, Use
from scheduler.telemetry.redis import TelemetryUnavailable

FRESH_SECONDS = 0.5
"""Lists share one read of all pulses for so long."""


@dataclass(frozen=True, slots=True)
class Vital:
    """One node: last heard at these unix seconds (0: never, as far as we know), and its use then."""

    at: float = 0.0
    use: Use = Use()  # noqa: RUF009 - frozen

    @property
    def last_heartbeat(self) -> datetime | None:
        """When, as a time; None: never."""
        return utc(self.at) if self.at else None


NOBODY = Vital()


class Ears(Protocol):
    """What this front itself has heard; `scheduler.front.heartbeats.Heartbeats` has it."""

    def heard_ids(self) -> Iterable[str]:
        """Return the nodes that were heard here."""
        ...

    def heard(self, node_id: str) -> Vital | None:
        """Return what was heard of a node here last."""
        ...


class Vitals:
    """Reads pulses for views. Without Redis it tells what this front heard itself."""

    def __init__(self, pulses: Pulses, ears: Ears) -> None:
        """Take where to read, and who knows what this front heard itself."""
        self._pulses = pulses
        self._ears = ears
        self._view = PulseView(now=0.0)
        self._read_at = float("-inf")
        self.redis_up = False
        """Whether Redis answered the last read."""
        self.latest: Mapping[str, Vital] = {}
        """What the last read of all nodes found."""
        self.latest_at = 0.0
        """Unix seconds of that read."""

    async def of(self, node_ids: Sequence[str] | None = None) -> Mapping[str, Vital]:
        """Return what is known of these nodes (None: of all); a node that was never heard is absent."""
        view = await (self._everything() if node_ids is None else self._read(node_ids))
        found = self._with_ours(view, node_ids)
        if node_ids is None:
            self.latest, self.latest_at = found, time.time()
        return found

    def _with_ours(self, view: PulseView, node_ids: Sequence[str] | None) -> dict[str, Vital]:
        found = {
            p.node_id: Vital(p.at, Use(p.cpu_used_millicores, p.memory_used_mb, p.disk_used_gb))
            for p in view.pulses.values()
        }
        for node_id in list(self._ears.heard_ids()) if node_ids is None else node_ids:
            here = self._ears.heard(node_id)
            if here and here.at > found.get(node_id, NOBODY).at:
                found[node_id] = here
        return found

    async def fronts(self) -> Sequence[FrontPulse]:
        """Return the fronts that have been listening lately."""
        return (await self._everything()).fronts

    async def _everything(self) -> PulseView:
        if time.monotonic() - self._read_at >= FRESH_SECONDS:
            self._view = await self._read(None)
            self._read_at = time.monotonic()
        return self._view

    async def _read(self, node_ids: Sequence[str] | None) -> PulseView:
        try:
            view = await self._pulses.read(node_ids)
        except TelemetryUnavailable:
            self.redis_up = False
            return PulseView(now=0.0)
        self.redis_up = view.from_redis
        return view
