"""What a scrape tells of the control plane itself: who leads, how old each shard's last cycle is, what waits.

Read from etcd, Redis and the broker every few seconds, not at the scrape: a scrape must not wait for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from scheduler.front.cluster import ClusterStatus, Cycles
from scheduler.front.parts import FrontParts
from scheduler.leadership.brakes import held_by_shard
from scheduler.pb import fleetbeat_pb2 as pb

REFRESH_SECONDS = 5.0

Labelled = dict[str, dict[tuple[str, ...], float]]


class ControlPlane:
    """The latest known state."""

    def __init__(self, parts: FrontParts, status: ClusterStatus) -> None:
        """Take whom to ask."""
        self._parts = parts
        self._status = status
        self._leader: pb.Leader | None = None
        self._cycles: Cycles | None = None
        self._lengths: Sequence[int] = ()

    async def run(self) -> None:
        """Keep it current, for ever."""
        while True:
            await self.refresh()
            await asyncio.sleep(REFRESH_SECONDS)

    async def refresh(self) -> None:
        """Read once; what does not answer is not known any more."""
        count = self._parts.shards.count
        self._leader, self._cycles, self._lengths = await asyncio.gather(
            self._status.leader(), self._status.cycles(count), self._status.lengths(count)
        )

    def gauges(self) -> dict[str, float]:
        """Return the gauges about the leader; nothing while etcd does not tell."""
        if self._leader is None:
            return {}
        return {"leader_present": float(bool(self._leader.instance_id)), "leader_term": float(self._leader.term)}

    def labelled(self) -> Labelled:
        """Return the gauges of each shard and loop."""
        shards = range(self._parts.shards.count)
        nodes, workloads = self._status.nodes_by_shard(), self._status.workloads_by_shard()
        held = held_by_shard(self._parts.cache, self._parts.settings, nodes, self._parts.now())
        periods = self._parts.settings.period_seconds
        return {
            "shard_nodes": {(str(shard),): float(len(nodes.get(shard, ()))) for shard in shards},
            "shard_workloads": {(str(shard),): float(workloads[shard]) for shard in shards},
            "shard_queue_messages": {
                (str(shard),): float(length) for shard, length in zip(shards, self._lengths, strict=False)
            },
            "brake_held_nodes": {(str(shard),): float(len(held.get(shard, ()))) for shard in shards},
            "cycle_age_seconds": self._cycle_ages(shards),
            "cycle_period_seconds": {(loop,): period for loop, period in periods.items()},
        }

    def _cycle_ages(self, shards: range) -> dict[tuple[str, ...], float]:
        now = time.time()
        return {
            (loop, str(shard)): max(0.0, now - state.finished_at)
            for (loop, shard), state in (self._cycles or {}).items()
            if state.finished_at and shard in shards
        }
