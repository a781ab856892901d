"""The node monitor."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis

from scheduler.domain.node import Node
from scheduler.store.keys import NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register
from scheduler.telemetry.pulses import Heard, Pulses
from tests.support.loop_world import World, world
from tests.support.servers import Server


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Five nodes, all just heard."""
    async with world() as this:
        for index in range(5):
            await add(this, f"n-{index}")
        yield this


async def add(fleet: World, node_id: str) -> None:
    """Register a node that has no agent to call."""
    await register(fleet.store, Node(node_id=node_id, agent_endpoint="127.0.0.1:1"), now=fleet.clock())
    fleet.pulses.beat(node_id)


async def node_of(fleet: World, node_id: str) -> Node:
    """Read a node."""
    record = (await fleet.store.get(NODES, node_id)).record
    assert record
    return record


def beat_all_but(fleet: World, *silent: str) -> None:
    """Hear the others."""
    fleet.pulses.beat(*(f"n-{i}" for i in range(5) if f"n-{i}" not in silent))


async def test_F7_a_silent_node_is_marked_once_with_one_event(fleet: World) -> None:
    """After the lease, not before; the record says why, by whom and since when."""
    fleet.clock.forward(2.9)
    beat_all_but(fleet, "n-1")
    assert await fleet.cycle("monitor_nodes") == {"ready": 5, "lost": 0}
    fleet.clock.forward(0.2)
    beat_all_but(fleet, "n-1")
    assert await fleet.cycle("monitor_nodes") == {"ready": 4, "lost": 1}
    node = await node_of(fleet, "n-1")
    assert (node.status, node.status_updated_by, node.status_updated_at) == ("NotReady", "monitor", fleet.clock())
    assert node.status_reason.startswith("heartbeat expired: last heartbeat 2026-01-01T12:00:00")
    assert fleet.events == [("NodeLost", "", "n-1")]
    assert isinstance(fleet.etcd, MemoryEtcd)
    before = (fleet.etcd.revision, len(fleet.events))
    assert await fleet.cycle("monitor_nodes") == {"ready": 4, "lost": 0}
    assert (fleet.etcd.revision, len(fleet.events)) == before


async def test_F44_a_cycle_that_finds_all_nodes_alive_touches_etcd_not_at_all(fleet: World) -> None:
    """One read of Redis, nothing else."""
    assert isinstance(fleet.etcd, MemoryEtcd)
    before = (fleet.etcd.revision, fleet.etcd.calls)
    await fleet.cycle("monitor_nodes")
    assert (fleet.etcd.revision, fleet.etcd.calls, fleet.pulses.reads) == (*before, 1)


async def test_scenario_L8_nobody_is_marked_before_a_front_listened_for_the_lease(fleet: World) -> None:
    """After an outage of all fronts everybody has the time to speak."""
    fleet.clock.forward(3600)
    fleet.pulses.front_since = fleet.clock().timestamp() - 2.9
    assert (await fleet.cycle("monitor_nodes"))["lost"] == 0
    fleet.clock.forward(0.2)
    beat_all_but(fleet, "n-4")
    assert (await fleet.cycle("monitor_nodes"))["lost"] == 1


async def test_scenario_L8_without_telemetry_nobody_is_judged(fleet: World) -> None:
    """Redis away: no node is marked."""
    fleet.clock.forward(3600)
    fleet.pulses.away = True
    assert await fleet.cycle("monitor_nodes") == {"telemetry_away": 1}
    assert (await node_of(fleet, "n-0")).is_ready


async def test_scenario_L14_the_brake_is_told_when_many_fall_silent(fleet: World) -> None:
    """All are marked, so nothing new is placed on them; an event says that nothing moves."""
    fleet.clock.forward(4)
    beat_all_but(fleet, "n-1", "n-2", "n-3")
    assert (await fleet.cycle("monitor_nodes"))["lost"] == 3
    assert [kind for kind, _, _ in fleet.events] == ["NodeLost"] * 3 + ["BrakeHeld"]


async def test_F7_a_node_that_registers_while_it_is_judged_stays_ready(fleet: World) -> None:
    """The mark rests on the record that was judged."""
    fleet.clock.forward(4)
    beat_all_but(fleet, "n-1")
    read = fleet.pulses.read

    async def slow(node_ids: object = None) -> object:
        view = await read(node_ids)  # type: ignore[arg-type]
        await register(
            fleet.store, Node(node_id="n-1", agent_endpoint="127.0.0.1:1", instance_id="new"), now=fleet.clock()
        )
        return view

    fleet.ctx.pulses.read = slow  # type: ignore[method-assign, assignment]
    assert (await fleet.cycle("monitor_nodes"))["lost"] == 0
    assert (await node_of(fleet, "n-1")).is_ready


async def test_F7_over_a_real_redis_only_the_silent_node_is_lost(redis_server: Server) -> None:
    """A front flushes what it hears; the node that it does not hear is marked, the other never is."""
    redis = Redis.from_url(f"redis://{redis_server.address}/9")
    await redis.flushdb()
    pulses = Pulses(redis, gap_limit_seconds=2.0)
    settings = {"heartbeat_interval_seconds": 0.2, "node_lease_seconds": 0.8, "node_grace_seconds": 0.2}
    async with world(clock=lambda: datetime.now(UTC), pulses=pulses, **settings) as fleet:  # type: ignore[arg-type]
        for node_id in ("n-1", "n-2"):
            await register(fleet.store, Node(node_id=node_id, agent_endpoint="127.0.0.1:1"), now=datetime.now(UTC))
        await pulses.flush("front", {"n-1": Heard(0.0), "n-2": Heard(0.0)})
        deadline = time.monotonic() + 15
        while (await node_of(fleet, "n-1")).is_ready:
            assert time.monotonic() < deadline
            await pulses.flush("front", {"n-2": Heard(0.0)})
            await fleet.cycle("monitor_nodes")
        assert (await node_of(fleet, "n-2")).is_ready
        assert fleet.events == [("NodeLost", "", "n-1")]
    await redis.aclose()
