"""What a front is made of. scheduler/bootstrap.py builds it from the settings; tests build it from what they like."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from redis.asyncio import Redis

from scheduler.domain.node import Node
from scheduler.domain.shard import ShardMap, shard_of
from scheduler.domain.workload import WorkloadSpec
from scheduler.front.modes import Modes
from scheduler.placement.choose import Choice
from scheduler.placement.explain import Explanation
from scheduler.placement.fleet import Measured
from scheduler.settings import Settings
from scheduler.store.assign import Placed, Vanished
from scheduler.store.cache import Cache
from scheduler.store.keys import (
    ASSIGNMENTS,
    BRAKES,
    CLUSTER,
    DRIFTS,
    EVENTS,
    LEDGERS,
    LEGACY,
    NODES,
    SHARD_MAP,
    SHARD_MAP_ID,
    SPECS,
    STATUSES,
    TOMBSTONES,
    VOLUMES,
)
from scheduler.store.kv import EtcdApi
from scheduler.store.store import Store
from scheduler.telemetry.events import Events
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.pulses import Pulses

TABLES = (NODES, LEDGERS, SPECS, STATUSES, LEGACY, ASSIGNMENTS, TOMBSTONES, VOLUMES, SHARD_MAP, BRAKES, DRIFTS,
          EVENTS, CLUSTER)  # fmt: skip
"""What the front's cache must mirror."""


class AgentCalls(Protocol):
    """What a front asks of agents; `scheduler.agents` has the real one."""

    @property
    def open_channels(self) -> int:
        """How many channels to agents this process has open."""
        ...

    def logs(self, node: Node, workload_id: str, *, tail_bytes: int, follow: bool) -> AsyncIterator[bytes]:
        """Yield the end of the output, then what is added if `follow`. Raises AgentUnreachable, AgentRejected."""
        ...

    async def delete(self, node: Node, workload_id: str, *, epoch: int) -> bool:
        """Remove every copy up to this epoch; return whether it is gone. Raises AgentUnreachable, AgentRejected."""
        ...


class Places(Protocol):
    """Places workloads; `scheduler.store.placements.Placer` is the real one."""

    async def place(self, workload_id: str) -> Placed | Explanation | Vanished:
        """Give a workload without a node one, or say why there is none."""
        ...

    def explain(self, workload_id: str) -> Placed | Explanation:
        """Say where a workload is, where it would go (epoch 0), or why nowhere. Raises NotFound."""
        ...

    def elsewhere(self, spec: WorkloadSpec, node_id: str) -> Choice | Explanation:
        """Say which node other than this one would take the workload, or why none would."""
        ...

    def measure(self, measured: Mapping[str, Measured]) -> None:
        """Take the measured use of some nodes."""
        ...


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


async def _nothing_to_close() -> None:
    pass


@dataclass
class FrontParts:
    """The parts, started and ready: the cache has begun to follow etcd, the wake-ups to be sent."""

    settings: Settings
    front_id: str
    """Never blank: settings.front_id, or a name made up for this process."""
    cluster_id: str
    etcd: EtcdApi
    store: Store
    cache: Cache
    """Mirrors TABLES."""
    placer: Places
    agents: AgentCalls
    pulses: Pulses
    events: Events
    metrics: Metrics
    wake: Callable[[str, str], None]
    """Asks the shard of (workload, node) for an early look; never blocks, never raises."""
    redis: Redis | None = None
    """The telemetry Redis, for what admission knows of cycles."""
    backlog: Callable[[Sequence[int]], Sequence[int]] | None = None
    """Returns how many messages wait in each shard's queue. Blocks: it is called in a thread."""
    flower_url: str = ""
    now: Callable[[], datetime] = utc_now
    close: Callable[[], Awaitable[None]] = field(default=_nothing_to_close)
    """Ends all parts; called once, after the last call was answered."""
    modes: Modes = field(init=False)
    """Knows whether writes are taken."""

    def __post_init__(self) -> None:
        """Begin to judge the mode by what the cache shows."""
        self.modes = Modes(
            self.store,
            self.cache,
            self.settings,
            cluster_id=self.cluster_id,
            front_id=self.front_id,
            now=self.now,
            emit=self.events.emit,
        )

    @property
    def shards(self) -> ShardMap:
        """The shard map as the cache has it; one shard before there is a map."""
        return self.cache.get(SHARD_MAP, SHARD_MAP_ID).record or ShardMap(generation=0, count=1)

    def shard_of(self, identifier: str) -> int:
        """Return the shard of a node, or of a workload without one; remembered, for lists ask it of every node."""
        shards = self.shards
        return _shard_of(identifier, shards.generation, shards.count, shards.hash)


@functools.lru_cache(maxsize=65_536)
def _shard_of(identifier: str, generation: int, count: int, hash_name: str) -> int:
    return shard_of(identifier, ShardMap(generation=generation, count=count, hash=hash_name))
