"""Sends to Redis, five times a second, which nodes were heard since the last time, and that this front listens.

Without Redis pulses are kept, with their age, and sent when it is back; meanwhile
scheduler.front.spare_pulses writes them to etcd, far less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from scheduler.pb import control_pb2 as pb
from scheduler.telemetry.pulses import Heard, Pulses, Usage, Use
from scheduler.telemetry.redis import TelemetryUnavailable, end_task

PERIOD_SECONDS = 0.2
USAGE_EVERY = 5
"""Usage goes with every fifth flush: samples come every few seconds, and nothing waits for them."""
MAX_USAGE = 20_000
"""Samples that wait for Redis; more are dropped, the next ones replace them anyway."""
_LONGEST_PAUSE_SECONDS = 2.0
_REMEMBER_SECONDS = 3600.0
"""Nodes that have not been heard for so long need not be remembered: longer than any lease."""

_log = structlog.get_logger("scheduler.front.pulses")


async def _no_meter(_samples: Sequence[Usage]) -> None:
    pass


class PulsePump:
    """The pump of one front."""

    def __init__(
        self,
        pulses: Pulses,
        front_id: str,
        *,
        listening: Callable[[], bool],
        on_drop: Callable[[str], None] = lambda _what: None,
        meter: Callable[[Sequence[Usage]], Awaitable[None]] = _no_meter,
    ) -> None:
        """Take where to write, this front's name, and what says whether agents can reach it right now.

        meter: takes all samples as well; raises TelemetryUnavailable.
        """
        self._meter = meter
        self._pulses = pulses
        self._front_id = front_id
        self._listening = listening
        self._on_drop = on_drop
        self._heard: dict[str, tuple[float, Use | None]] = {}
        self._usage: dict[str, tuple[str, pb.WorkloadUsageSnapshot]] = {}
        self._task: asyncio.Task[None] | None = None
        self._rounds = 0
        self._failures = 0
        self._recorded_at = self._flushed_at = time.monotonic()
        self._sending: Mapping[str, tuple[float, Use | None]] = {}

    @property
    def unflushed_seconds(self) -> float:
        """How long ago Redis last took what was heard here."""
        return time.monotonic() - self._flushed_at

    def recorded(self) -> None:
        """Note that others have been told by another way what was heard here."""
        self._recorded_at = time.monotonic()

    def ages_seconds(self) -> dict[str, float]:
        """Return how long ago each node was heard that Redis has not been told of."""
        now = time.monotonic()
        old = [node_id for node_id, (at, _) in self._heard.items() if now - at > _REMEMBER_SECONDS]
        for node_id in old:
            del self._heard[node_id]
        heard = {**self._sending, **self._heard}
        return {node_id: now - at for node_id, (at, _) in heard.items()}

    @property
    def unrecorded_seconds(self) -> float:
        """How long ago others could last be told what was heard here."""
        return time.monotonic() - self._recorded_at

    def __len__(self) -> int:
        """Return how many pulses wait."""
        return len(self._heard)

    def heard(self, node_id: str, use: Use | None) -> None:
        """Note that a node was heard now; `use` None: it did not say what it uses."""
        if use is None and (waiting := self._heard.get(node_id)):
            use = waiting[1]
        self._heard[node_id] = (time.monotonic(), use)

    def used(self, node_id: str, sample: pb.WorkloadUsageSnapshot) -> None:
        """Note the latest usage of a workload."""
        if len(self._usage) >= MAX_USAGE and sample.workload_id not in self._usage:
            self._on_drop("usage")
            return
        self._usage[sample.workload_id] = (node_id, sample)

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._run(), name="pulses")

    async def close(self) -> None:
        """Send what waits, once, say that this front listens no more, and stop."""
        if self._task:
            await end_task(self._task)
            self._task = None
        await self.flush()
        try:
            await self._pulses.leave(self._front_id)
        except TelemetryUnavailable as error:
            _log.info("could not sign off", error=str(error))

    async def flush(self) -> bool:
        """Send what waits now; return whether Redis took it. What it did not take waits on."""
        self._rounds += 1
        heard, self._heard = self._heard, {}
        self._sending = heard
        usage: dict[str, tuple[str, pb.WorkloadUsageSnapshot]] = {}
        if self._rounds % USAGE_EVERY == 0:
            usage, self._usage = self._usage, {}
        now = time.monotonic()
        try:
            await self._pulses.flush(
                self._front_id,
                {node_id: Heard(now - at, use) for node_id, (at, use) in heard.items()},
                listening=self._listening(),
            )
            if usage:
                samples = [_sample(*one) for one in usage.values()]
                await self._pulses.flush_usage(samples)
                await self._meter(samples)
        except TelemetryUnavailable as error:
            self._put_back(heard, usage)
            self._complain(error)
            return False
        finally:
            self._sending = {}
        self._failures = 0
        self._recorded_at = self._flushed_at = time.monotonic()
        return True

    def _put_back(
        self,
        heard: dict[str, tuple[float, Use | None]],
        usage: dict[str, tuple[str, pb.WorkloadUsageSnapshot]],
    ) -> None:
        for node_id, (at, use) in heard.items():
            newer = self._heard.get(node_id)
            self._heard[node_id] = (newer[0], newer[1] or use) if newer else (at, use)
        for workload_id, one in usage.items():
            if len(self._usage) < MAX_USAGE:
                self._usage.setdefault(workload_id, one)

    def _complain(self, error: TelemetryUnavailable) -> None:
        if self._failures == 0:
            _log.warning("pulses wait for Redis", error=str(error))
        self._failures += 1

    async def _run(self) -> None:
        while True:
            taken = await self.flush()
            grown = PERIOD_SECONDS * 2 ** min(self._failures, 10)
            pause = PERIOD_SECONDS if taken else min(_LONGEST_PAUSE_SECONDS, grown)
            await asyncio.sleep(pause)


def _sample(node_id: str, wire: pb.WorkloadUsageSnapshot) -> Usage:
    at = wire.collected_at.seconds + wire.collected_at.nanos / 1e9 if wire.HasField("collected_at") else time.time()
    return Usage(
        workload_id=wire.workload_id,
        node_id=node_id,
        type=wire.type[:32],
        cpu_percent=wire.cpu_percent,
        memory_bytes=wire.memory_bytes,
        disk_read_bytes=wire.disk_read_bytes,
        disk_write_bytes=wire.disk_write_bytes,
        net_rx_bytes=wire.net_rx_bytes,
        net_tx_bytes=wire.net_tx_bytes,
        collected_at=at,
        source=wire.source[:32],
    )
