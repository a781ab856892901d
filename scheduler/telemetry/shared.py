"""Counters of the whole cluster: every process adds what it counted to sums in Redis, every front shows them.

Workers come and go, and have no port to be scraped at. So each sends, every few seconds, by how
much its counters (and the buckets of its histograms) have grown. The sums never jump when a
process ends or another front is scraped. Losing Redis starts them at 0 again, as any counter may;
an answer of Redis that was lost may count a few seconds twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from redis.asyncio import Redis

from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.redis import TelemetryUnavailable, answers, configured, end_task

KEY = "fleetbeat:metrics"
PERIOD_SECONDS = 5.0
LAST_SECONDS = 1.0
"""How long the end of a process waits for its last counts to be taken."""
KEEP_SECONDS = 86_400
MAX_SERIES = 10_000
"""Series that are shown: labels are bounded, but what is in Redis may be anybody's."""

_CREATED = "_created"
_SUFFIXES = ("_total", "_bucket", "_count", "_sum")
_log = structlog.get_logger("scheduler.telemetry.shared")

Series = tuple[str, tuple[tuple[str, str], ...]]
"""The name of a sample and its labels."""


class SharedMetrics:
    """Sends what one process counts, and reads the sums. For one event loop."""

    def __init__(self, redis: Redis | None, metrics: Metrics) -> None:
        """Take the connection (None: the process counts for itself) and the process's metrics."""
        self._redis = redis
        self._metrics = metrics
        self._sent: dict[Series, float] = {}
        self._sums: dict[Series, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self, *, show: bool) -> None:
        """Begin to send; `show`: also read the sums, and have the process's exposition show them."""
        if self._redis is None:
            return
        if show:
            self._metrics.sums = self.exposition
        self._task = asyncio.create_task(self._run(show=show), name="shared metrics")

    async def close(self) -> None:
        """Send what is left, if Redis takes it, and stop."""
        task, self._task = self._task, None
        if task is None:
            return
        await end_task(task)
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self.push()
        except (TelemetryUnavailable, TimeoutError) as error:
            _log.info("the last counts are lost", error=str(error) or "Redis takes too long")

    async def push(self) -> None:
        """Add what was counted since the last time. Raises TelemetryUnavailable; then it goes with the next."""
        now = dict(_series(self._metrics.work))
        grown = {series: value - self._sent.get(series, 0.0) for series, value in now.items()}
        # What is new is sent even when it is 0: a histogram needs its empty buckets, too.
        grown = {series: by for series, by in grown.items() if by > 0 or series not in self._sent}
        if not grown:
            return
        with answers():
            async with configured(self._redis).pipeline(transaction=True) as pipe:
                for series, by in grown.items():
                    pipe.hincrbyfloat(KEY, _pack(series), by)
                pipe.expire(KEY, KEEP_SECONDS)
                await pipe.execute()
        self._sent = now

    async def read(self) -> None:
        """Read the sums. Raises TelemetryUnavailable; then those read last stay."""
        with answers():
            found = await configured(self._redis).hgetall(KEY)
        sums: dict[Series, float] = {}
        for packed, value in list(found.items())[:MAX_SERIES]:
            if (series := _unpack(packed)) is not None:
                sums[series] = float(value)
        self._sums = sums

    def exposition(self) -> bytes:
        """Return the sums in Prometheus's text format, as read last."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Sums(self._metrics.work, self._sums))
        return generate_latest(registry)

    async def _run(self, *, show: bool) -> None:
        fails = False
        while True:
            try:
                await self.push()
                if show:
                    await self.read()
                fails = False
            except TelemetryUnavailable as error:
                if not fails:
                    _log.warning("counters wait for Redis", error=str(error))
                fails = True
            await asyncio.sleep(PERIOD_SECONDS)


class _Sums(Collector):
    """The families of a registry with the values of all processes."""

    def __init__(self, like: CollectorRegistry, sums: dict[Series, float]) -> None:
        self._like = like
        self._sums = sums

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return each family with its sums; what this process would count and nobody has counted yet is 0."""
        values = dict.fromkeys((series for series, _ in _series(self._like)), 0.0) | self._sums
        by_name: dict[str, list[Series]] = {}
        for series in values:
            by_name.setdefault(series[0], []).append(series)
        for family in self._like.collect():
            found = Metric(family.name, family.documentation, family.type)
            for series in sorted(
                (s for suffix in _SUFFIXES for s in by_name.get(family.name + suffix, [])), key=_order
            ):
                found.samples.append(Sample(series[0], dict(series[1]), values[series]))
            yield found


def _order(series: Series) -> tuple[object, ...]:
    """Keep the buckets of one histogram together and in order, as readers of the format expect."""
    labels = dict(series[1])
    bound = labels.pop("le", "")
    return sorted(labels.items()), series[0], float(bound) if bound else 0.0


def _series(registry: CollectorRegistry) -> Iterable[tuple[Series, float]]:
    for family in registry.collect():
        for sample in family.samples:
            if not sample.name.endswith(_CREATED):
                yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value


def _pack(series: Series) -> bytes:
    return msgspec.json.encode(series)


def _unpack(packed: bytes | str) -> Series | None:
    try:
        return msgspec.json.decode(packed, type=Series)
    except msgspec.DecodeError:
        return None
