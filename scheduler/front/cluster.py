"""The state of the control plane: who leads, how far each shard's loops are, what an operator should look at."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from scheduler.domain.errors import FleetbeatError
from scheduler.domain.node import Node
from scheduler.domain.record import utc
from scheduler.domain.shard import LOOPS, ShardMap
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.views import timestamp
from scheduler.leadership.brakes import held_in, release_of
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.queues.admission import CycleState, read_cycles
from scheduler.queues.seldom import Seldom
from scheduler.store.keys import LEADER_PREFIX, LEGACY, NODES
from scheduler.telemetry.pulses import FrontPulse
from scheduler.telemetry.redis import TelemetryUnavailable, answers, configured

LATE_PERIODS = 3
"""A shard whose loop has not finished a cycle for so many periods is worth a notice."""
LATE_SECONDS_MIN = 10.0
"""… but no sooner than this: cycles of short periods may be held up by a restart."""
ANSWER_SECONDS = 2.0
"""For each of etcd, Redis and the broker; what does not answer in time is shown as unknown."""
MAX_NOTICES = 50
UNKNOWN_LENGTH = -1

_log = logging.getLogger(__name__)

Cycles = Mapping[tuple[str, int], CycleState]


class ClusterStatus:
    """Answers Fleet.GetClusterStatus. Whatever is away is shown as unknown; the rest is shown all the same."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and its reader."""
        self._parts = parts
        self._reader = reader
        self._started_at = time.time()
        self._unknown = {what: Seldom(_log) for what in ("leader", "cycles", "queues")}

    async def read(self) -> pb.GetClusterStatusResponse:
        """Put everything together."""
        shards, modes = self._parts.shards, self._parts.modes
        leader, cycles, lengths, fronts = await asyncio.gather(
            self.leader(), self.cycles(shards.count), self.lengths(shards.count), self._reader.vitals.fronts()
        )
        nodes = self.nodes_by_shard()
        workloads = self.workloads_by_shard()
        notices = [*self._general_notices(leader, cycles, fronts), *self._shard_notices(shards, cycles)]
        return pb.GetClusterStatusResponse(
            cluster_id=self._parts.cluster_id,
            shard_map_generation=shards.generation,
            shard_count=shards.count,
            leader=leader,
            shards=[
                pb.ShardStatus(
                    shard=shard,
                    nodes=len(nodes.get(shard, ())),
                    workloads=workloads[shard],
                    queue_length=lengths[shard] if shard < len(lengths) else UNKNOWN_LENGTH,
                    loops=[_loop(loop, (cycles or {}).get((loop, shard))) for loop in LOOPS],
                )
                for shard in range(shards.count)
            ],
            fronts=[pb.FrontStatus(front_id=f.front_id, listening_since=timestamp(utc(f.since))) for f in fronts],
            summary=self._reader.summary(),
            stale=self._reader.stale,
            flower_url=self._parts.flower_url,
            notices=notices[:MAX_NOTICES],
            mode=modes.mode,
            mode_reason=modes.reason,
            mode_changed_at=timestamp(modes.changed_at),
            writable=modes.writable,
        )

    async def leader(self) -> pb.Leader | None:
        """Read who leads; None when etcd does not say, a blank instance when nobody does."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                keys, _ = await self._parts.etcd.scan(LEADER_PREFIX)
        except (FleetbeatError, TimeoutError) as error:
            self._unknown["leader"].warning("the leader is not known: %s", error or type(error).__name__)
            return None
        first = min(keys, key=lambda kv: kv.create_revision, default=None)
        if first is None:
            return pb.Leader()
        return pb.Leader(instance_id=first.value.decode(errors="replace"), term=first.create_revision)

    async def cycles(self, count: int) -> Cycles | None:
        """Read how far the loops of so many shards are; None when Redis does not say."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                with answers():
                    return await read_cycles(configured(self._parts.redis), count)
        except (TelemetryUnavailable, TimeoutError) as error:
            self._unknown["cycles"].warning("the cycles are not known: %s", error or type(error).__name__)
            return None

    async def lengths(self, count: int) -> Sequence[int]:
        """Ask the broker how many messages wait for each of so many shards; nothing when it does not say."""
        if self._parts.backlog is None:
            return ()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asyncio.to_thread(self._parts.backlog, range(count))
        except Exception as error:  # noqa: BLE001 - whatever the broker's client raises means: not known
            self._unknown["queues"].warning("the queues' lengths are not known: %r", error)
            return ()

    def nodes_by_shard(self) -> dict[int, list[Node]]:
        """Return the nodes of each shard that has some."""
        found: dict[int, list[Node]] = {}
        for node_id, stored in self._parts.cache.all(NODES).items():
            if stored.record:
                found.setdefault(self._parts.shard_of(node_id), []).append(stored.record)
        return found

    def workloads_by_shard(self) -> Counter[int]:
        """Count the workloads that each shard drives."""
        index = self._reader.index
        found = Counter(self._parts.shard_of(workload_id) for workload_id in index.unplaced)
        for node_id in index.busy_nodes:
            found[self._parts.shard_of(node_id)] += len(index.on_node(node_id))
        return found

    def _general_notices(
        self, leader: pb.Leader | None, cycles: Cycles | None, fronts: Sequence[FrontPulse]
    ) -> list[str]:
        found = []
        if not self._parts.modes.writable:
            found.append(f"{self._parts.modes.mode} mode: {self._parts.modes.reason}")
        elif self._reader.stale:
            age = self._parts.cache.freshness().age_seconds
            found.append(f"etcd has not been heard for {age:.0f} s; what is shown may be old")
        if leader is None:
            found.append("etcd does not say who leads the beats")
        elif not leader.instance_id:
            found.append("no beat leads: no cycles are started; start `celery -A tasks beat`")
        if cycles is None:
            found.append("Redis does not answer: pulses, cycles and events are not known")
        elif not fronts:
            found.append("no front listens to agents: no node is declared lost meanwhile")
        if self._parts.cache.undecodable:
            found.append(f"{self._parts.cache.undecodable} values in etcd cannot be read; the log names their keys")
        if left := len(self._parts.cache.all(LEGACY)):
            found.append(
                f"{left} workloads are stored in the old form; those that stay so are named by `fleetbeat audit`"
            )
        return found

    def _shard_notices(self, shards: ShardMap, cycles: Cycles | None) -> list[str]:
        found = []
        settings = self._parts.settings
        for shard in range(shards.count):
            held = held_in(self._parts.cache, settings, shard, self._parts.now())
            if held.reason:
                found.append(f"shard {shard}: the brake holds: {held.reason}")
            if released := release_of(self._parts.cache, shard, self._parts.now()):
                until = released.until.isoformat(timespec="seconds")
                found.append(f"shard {shard}: the brake is released until {until}: {released.reason or 'no reason'}")
            if cycles is not None:
                found += [note for loop in LOOPS if (note := self._late(loop, shard, cycles.get((loop, shard))))]
        return found

    def _late(self, loop: str, shard: int, state: CycleState | None) -> str:
        """Say so when a loop has not finished a cycle for too long; a cycle that never was counts from our start."""
        limit = max(LATE_PERIODS * self._parts.settings.period_seconds[loop], LATE_SECONDS_MIN)
        age = time.time() - (state.finished_at if state and state.finished_at else self._started_at)
        if age <= limit:
            return ""
        return f"shard {shard}: no {loop} cycle finished for {age:.0f} s; is a worker with -Q shard-{shard} running?"


def _loop(loop: str, state: CycleState | None) -> pb.LoopStatus:
    if state is None or not state.finished_at:
        return pb.LoopStatus(loop=loop, slot=state.slot if state else 0, age_seconds=-1)
    return pb.LoopStatus(
        loop=loop,
        slot=state.slot,
        finished_at=timestamp(utc(state.finished_at)),
        age_seconds=max(0.0, time.time() - state.finished_at),
    )
