"""A worker's parts for tests of the loops: real store, cache, placer and agent calls; time and pulses set by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from scheduler.agents.client import Agents
from scheduler.domain.node import Health
from scheduler.domain.report import Report
from scheduler.domain.shard import Cycle
from scheduler.domain.workload import Assignment, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.leadership.fence import CycleFence
from scheduler.leadership.shards import current_map, map_guard, members_of
from scheduler.loops import detect_drift, monitor_nodes, monitor_workloads, reconcile
from scheduler.loops.context import LoopContext, RecordOutcome
from scheduler.placement.capacity import Overcommit
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.cluster import ensure_shard_map
from scheduler.store.keys import (
    ASSIGNMENTS,
    BRAKES,
    CLUSTER,
    DRIFTS,
    LEDGERS,
    LEGACY,
    NODES,
    SHARD_MAP,
    SPECS,
    STATUSES,
    TOMBSTONES,
    VOLUMES,
    Table,
)
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from scheduler.store.workloads import apply_spec, mark_deleted, record_missing, record_report
from scheduler.store.write import Guard
from scheduler.telemetry.pulses import FrontPulse, Pulse, PulseView
from scheduler.telemetry.redis import TelemetryUnavailable
from tests.support.fake_agent import FakeAgent

LOOPS = {
    "reconcile": reconcile,
    "monitor_nodes": monitor_nodes,
    "monitor_workloads": monitor_workloads,
    "detect_drift": detect_drift,
}
WORKER_TABLES = (NODES, LEDGERS, SPECS, STATUSES, LEGACY, ASSIGNMENTS, TOMBSTONES, VOLUMES, SHARD_MAP, BRAKES, DRIFTS,
                 CLUSTER)  # fmt: skip
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakePulses:
    """Pulses as the test sets them; one front has listened for ever."""

    def __init__(self, clock: Clock) -> None:
        """Take the clock that stands for Redis's."""
        self._clock = clock
        self.heard: dict[str, float] = {}
        self.front_since = 0.0
        self.away = False
        self.reads = 0

    def beat(self, *node_ids: str) -> None:
        """Hear these nodes now."""
        self.heard.update(dict.fromkeys(node_ids, self._clock().timestamp()))

    async def read(self, node_ids: Sequence[str] | None = None) -> PulseView:
        """Return what was heard."""
        self.reads += 1
        if self.away:
            raise TelemetryUnavailable
        now = self._clock().timestamp()
        wanted = self.heard if node_ids is None else node_ids
        pulses = {n: Pulse(n, self.heard[n]) for n in wanted if n in self.heard}
        return PulseView(now, pulses, [FrontPulse("f", self.front_since, now)])


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        """Start at noon."""
        self.now = START

    def __call__(self) -> datetime:
        """Return the time."""
        return self.now

    def forward(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)


@dataclass
class World:
    """Everything that one worker has, and the agents it calls."""

    etcd: EtcdApi
    cache: Cache
    store: Store
    agents: Agents
    clock: Clock
    pulses: FakePulses
    ctx: LoopContext
    fakes: dict[str, FakeAgent] = field(default_factory=dict)
    woken: list[tuple[str, str]] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    results: list[tuple[str, bool]] = field(default_factory=list)
    outcomes: list[tuple[str, str, bool, str]] = field(default_factory=list)
    """What steps had recorded, news or not: workload, action, success, reason."""
    slot: int = 0

    async def add_node(self, node_id: str, *, knows_epochs: bool = True, **fields: Any) -> FakeAgent:
        """Start an agent and register its node."""
        fake = self.fakes[node_id] = await FakeAgent(node_id, knows_epochs=knows_epochs).start()
        await register(self.store, fake.node(**fields), now=self.clock())
        self.pulses.beat(node_id)
        return fake

    async def lose(self, node_id: str) -> None:
        """Have a node fall silent for as long as its work may move: marked, past its grace, confirmed."""
        settings = self.ctx.settings
        self.clock.forward(settings.node_lease_seconds)
        self.pulses.beat(*(n for n in self.fakes if n != node_id))
        await set_health(self.store, node_id, Health.NOT_READY, "heartbeat expired: x", "monitor", now=self.clock())
        self.clock.forward(settings.node_grace_seconds)
        self.pulses.beat(*(n for n in self.fakes if n != node_id))

    async def come_back(self, node_id: str) -> None:
        """Have a node heard again."""
        self.pulses.beat(node_id)
        await set_health(self.store, node_id, Health.READY, "heard again", "heartbeat", now=self.clock())

    async def apply(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Ask for a workload, as a user does."""
        return (await apply_spec(self.store, spec, now=self.clock())).spec

    async def delete(self, workload_id: str) -> None:
        """Ask for its removal."""
        await mark_deleted(self.store, workload_id, now=self.clock())

    async def settle(self) -> None:
        """Let the cache show all that was written."""
        await self.cache.wait_revision(self.store.last_revision, 5)

    async def cycle(self, loop: str = "reconcile", *, shard: int = 0, unassigned: bool = True) -> dict[str, int]:
        """Run one whole cycle."""
        await self.settle()
        shards = current_map(self.cache)
        assert shards
        self.slot += 1
        cycle = Cycle(1, self.slot, loop, shard, shards.generation)
        nodes = members_of(shard, self.cache.all(NODES), shards)
        fence = CycleFence(self.store, cycle)
        done: dict[str, int] = await LOOPS[loop].run(self.ctx, cycle, nodes, unassigned=unassigned, fence=fence)
        await self.settle()
        return done

    async def wake(self, workload_id: str) -> str:
        """Look at one workload, as a wake-up does."""
        return await reconcile.reconcile_workload(self.ctx, workload_id, self.guards)

    async def guards(self) -> Sequence[Guard]:
        """Return the guards of event-driven work."""
        shards = current_map(self.cache)
        assert shards
        return (map_guard(self.cache, shards.generation),)

    async def report(self, node_id: str) -> None:
        """Have an agent's whole roster recorded, as a front does."""
        fake = self.fakes[node_id]
        reported = {r.workload_id: r for r in await self.agents.list(fake.node())}
        fake.calls["ListWorkloads"] -= 1
        for report in reported.values():
            await self.hear(node_id, report)
        await self.settle()
        for workload_id in self.ctx.index.on_node(node_id):
            status = self.cache.get(STATUSES, workload_id).record
            if workload_id not in reported and status:
                await record_missing(self.store, node_id, workload_id, status.epoch, now=self.clock())
        await self.settle()

    async def hear(self, node_id: str, report: Report) -> None:
        """Record one report."""
        await record_report(self.store, node_id, report, now=self.clock())

    async def status(self, workload_id: str = "web") -> WorkloadStatus:
        """Read a status that is there."""
        record = (await self.store.get(STATUSES, workload_id)).record
        assert record, workload_id
        return record

    async def exists(self, table: Table[Any], identifier: str) -> bool:
        """Say whether a record is there."""
        return (await self.store.get(table, identifier)).record is not None

    async def tombstone(self, node_id: str, workload_id: str = "web") -> Tombstone | None:
        """Read a tombstone."""
        return (await self.store.get(TOMBSTONES, f"{node_id}/{workload_id}")).record

    async def assignment(self, workload_id: str = "web") -> Assignment | None:
        """Read an assignment."""
        return (await self.store.get(ASSIGNMENTS, workload_id)).record

    def copies(self, workload_id: str = "web") -> list[str]:
        """Return the nodes on which a copy runs."""
        return sorted(n for n, fake in self.fakes.items() if workload_id in fake.running())

    @property
    def agent_calls(self) -> int:
        """How many calls all agents have had."""
        return sum(sum(fake.calls.values()) for fake in self.fakes.values())


@asynccontextmanager
async def world(
    etcd: EtcdApi | None = None,
    *,
    shards: int = 1,
    timeout_seconds: float = 5.0,
    agents: Any = None,
    clock: Clock | None = None,
    pulses: FakePulses | None = None,
    record: RecordOutcome | None = None,
    **settings: Any,
) -> AsyncIterator[World]:
    """Open a worker's parts over an etcd; 3 s lease, 5 s grace. Several may share etcd, agents, clock and pulses."""
    defaults = {"heartbeat_interval_seconds": 1.0, "node_lease_seconds": 3.0, "node_grace_seconds": 5.0}
    store_etcd = etcd or MemoryEtcd()
    cache = Cache(store_etcd, WORKER_TABLES)
    store = Store(store_etcd, cache=cache)
    await ensure_shard_map(store, shards, "jump")
    await cache.start()
    await cache.ready(5)
    clock = clock or Clock()
    agents_given = agents
    agents = agents or Agents(timeout_seconds=timeout_seconds)
    pulses = pulses or FakePulses(clock)
    woken: list[tuple[str, str]] = []
    events: list[tuple[str, str, str]] = []
    results: list[tuple[str, bool]] = []
    outcomes: list[tuple[str, str, bool, str]] = []

    def emit(
        kind: str,
        *,
        workload_id: str = "",
        node_id: str = "",
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        assert reason is not None
        assert details is None or all(isinstance(v, str) for v in details.values())
        events.append((str(kind), workload_id, node_id))

    def note(workload_id: str, action: str, *, success: bool, reason: str = "", anew: bool = False) -> None:
        outcomes.append((workload_id, action, success, reason))
        assert not (anew and action == "NoAction")

    ctx = LoopContext(
        settings=Settings(**{**defaults, **settings}),
        cache=cache,
        store=store,
        placer=Placer(store, cache, Overcommit(), now=clock),
        agents=agents,
        pulses=pulses,
        wake=lambda workload_id, node_id: woken.append((workload_id, node_id)),
        now=clock,
        emit=emit,
        on_result=lambda action, success: results.append((action, success)),
        record=record or note,
    )
    this = World(
        store_etcd,
        cache,
        store,
        agents,
        clock,
        pulses,
        ctx,
        woken=woken,
        events=events,
        results=results,
        outcomes=outcomes,
    )
    try:
        yield this
    finally:
        if agents_given is None:
            await agents.close()
        for fake in this.fakes.values():
            await fake.stop()
        await cache.close()
        if etcd is None:
            await store_etcd.close()
