"""Pulses: when each node was last heard, what it uses, and which fronts have been listening.

Times are Redis's own, taken inside the script that writes or the transaction that reads, so
the clocks of fronts and workers do not matter. A front hands over how long ago it heard a
node (measured on its monotonic clock): pulses that had to wait for Redis keep their age, and
never overwrite what another front heard later.

A front's `since` says from when it has listened without a gap. It starts again when the
front's pulse before was older than the gap limit, or when Redis lost it: silence counts only
while somebody provably listened.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeVar

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from scheduler.telemetry.redis import ANSWER_SECONDS, TelemetryUnavailable, answers, configured

PULSES_KEY = "fleetbeat:pulses"
FRONTS_KEY = "fleetbeat:fronts"
USAGE_PREFIX = "fleetbeat:usage:"
USAGE_TTL_SECONDS = 3600
PRUNE_FRONTS_SECONDS = 3600
DOWN_SECONDS = 1.0
CHUNK = 500
"""Items of one call: a script of this size holds Redis for about a millisecond."""

T = TypeVar("T")

_TIME_WIDTH = 17
_SCRIPT = (pathlib.Path(__file__).with_name("pulses.lua")).read_text(encoding="utf-8")
_USAGE_SCRIPT = "for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[i + 1], 'EX', ARGV[1]) end"


class Use(msgspec.Struct, array_like=True, frozen=True):
    """What a node says it uses."""

    cpu_used_millicores: int = 0
    memory_used_mb: int = 0
    disk_used_gb: int = 0


class Usage(msgspec.Struct, array_like=True, frozen=True):
    """The latest usage sample of a workload; names as on the wire, `collected_at` in unix seconds."""

    workload_id: str
    node_id: str = ""
    type: str = ""
    cpu_percent: float = 0.0
    memory_bytes: int = 0
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0
    net_rx_bytes: int = 0
    net_tx_bytes: int = 0
    collected_at: float = 0.0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a front hands over: it heard this node so long ago. No `use` keeps what is known."""

    age_seconds: float
    use: Use | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """When a node was last heard (Redis's unix seconds) and what it used then."""

    node_id: str
    at: float
    cpu_used_millicores: int = 0
    memory_used_mb: int = 0
    disk_used_gb: int = 0


@dataclass(frozen=True, slots=True)
class FrontPulse:
    """A front: it has listened without a gap from `since` until `at` (Redis's unix seconds)."""

    front_id: str
    since: float
    at: float


@dataclass(frozen=True, slots=True)
class PulseView:
    """Everything at one moment; `now` is Redis's clock at that moment."""

    now: float
    pulses: dict[str, Pulse] = field(default_factory=dict)
    fronts: list[FrontPulse] = field(default_factory=list)
    period_seconds: float = 0.0
    """How far apart the proofs that somebody listens may be: little in Redis, a third of a lease in etcd."""
    from_redis: bool = True
    """False: Redis is away, and etcd told; `now` is this process's clock then."""


class Pulses:
    """Writes and reads pulses and usage. Every method raises TelemetryUnavailable when Redis does not answer."""

    def __init__(self, redis: Redis | None, *, gap_limit_seconds: float) -> None:
        """Take the connection and how far apart a front's pulses may be and still count as listening."""
        self._optional = redis
        self._gap = gap_limit_seconds
        self._down_until = float("-inf")

    @property
    def _redis(self) -> Redis:
        return configured(self._optional)

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Ask Redis inside the block. When it did not answer just now, fail at once: a list must not wait per page."""
        if time.monotonic() < self._down_until:
            raise TelemetryUnavailable("Redis did not answer a moment ago")
        try:
            with answers():
                async with asyncio.timeout(ANSWER_SECONDS):  # redis-py's own time-outs add up over a handshake
                    yield
        except TelemetryUnavailable:
            self._down_until = time.monotonic() + DOWN_SECONDS
            raise

    @cached_property
    def _script(self) -> AsyncScript:
        return self._redis.register_script(_SCRIPT)

    @cached_property
    def _usage_script(self) -> AsyncScript:
        return self._redis.register_script(_USAGE_SCRIPT)

    async def flush(self, front_id: str, heard: Mapping[str, Heard], *, listening: bool = True) -> None:
        """Write the pulses of the nodes heard, and the front's own unless it is not listening."""
        chunks = list(_chunks(heard.items())) or [[]]
        for chunk in chunks:
            arguments: list[str | bytes | int | float] = [
                front_id, self._gap, PRUNE_FRONTS_SECONDS, "1" if listening else "0",
            ]  # fmt: skip
            for node_id, one in chunk:
                packed = msgspec.msgpack.encode(one.use) if one.use else b""
                arguments += [node_id, max(0, round(one.age_seconds * 1000)), packed]
            async with self._asking():
                await self._script(keys=[PULSES_KEY, FRONTS_KEY], args=arguments)

    async def leave(self, front_id: str) -> None:
        """Say that this front no longer listens."""
        async with self._asking():
            await self._redis.hdel(FRONTS_KEY, front_id)

    async def forget(self, node_id: str) -> None:
        """Drop the pulse of a node that is gone for good."""
        async with self._asking():
            await self._redis.hdel(PULSES_KEY, node_id)

    async def read(self, node_ids: Sequence[str] | None = None) -> PulseView:
        """Return the pulses of these nodes (None: of all) and of all fronts, all from one moment."""
        if node_ids is not None and not node_ids:
            node_ids = ("",)  # HMGET wants a field; no node has a blank id
        async with self._asking(), self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            if node_ids is None:
                pipe.hgetall(PULSES_KEY)
            else:
                pipe.hmget(PULSES_KEY, list(node_ids))
            pipe.hgetall(FRONTS_KEY)
            (seconds, micros), found, fronts = await pipe.execute()
        if node_ids is None:
            values = [(key.decode(), value) for key, value in found.items()]
        else:
            values = [(key, value) for key, value in zip(node_ids, found, strict=True) if value]
        pulses = {key: pulse for key, value in values if (pulse := _parse(key, value))}
        return PulseView(seconds + micros / 1e6, pulses, [f for k, v in fronts.items() if (f := _front(k, v))])

    async def flush_usage(self, samples: Sequence[Usage]) -> None:
        """Keep the latest sample of each workload for an hour."""
        for chunk in _chunks(samples):
            keys = [USAGE_PREFIX + one.workload_id for one in chunk]
            packed = [msgspec.msgpack.encode(one) for one in chunk]
            async with self._asking():
                await self._usage_script(keys=keys, args=[USAGE_TTL_SECONDS, *packed])

    async def read_usage(self, workload_ids: Sequence[str]) -> dict[str, Usage]:
        """Return the latest sample of each of these workloads that has one."""
        found: dict[str, Usage] = {}
        for chunk in _chunks(workload_ids):
            async with self._asking():
                values = await self._redis.mget([USAGE_PREFIX + one for one in chunk])
            found.update({key: usage for key, value in zip(chunk, values, strict=True) if (usage := _usage(value))})
        return found


def _chunks(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk


def _parse(node_id: str, value: bytes) -> Pulse | None:
    try:
        at = float(value[:_TIME_WIDTH])
        use = msgspec.msgpack.decode(value[_TIME_WIDTH:], type=Use) if len(value) > _TIME_WIDTH else Use()
    except (ValueError, msgspec.DecodeError):
        return None  # written by something else: as good as never heard
    return Pulse(node_id, at, use.cpu_used_millicores, use.memory_used_mb, use.disk_used_gb)


def _front(front_id: bytes, value: bytes) -> FrontPulse | None:
    try:
        since, at = value.split()
        return FrontPulse(front_id.decode(), float(since), float(at))
    except ValueError:
        return None


def _usage(value: bytes | str | None) -> Usage | None:
    if not isinstance(value, bytes):
        return None
    try:
        return msgspec.msgpack.decode(value, type=Usage)
    except msgspec.DecodeError:
        return None
