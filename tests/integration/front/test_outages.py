"""Outages that are longer than lease and grace: nobody is lost, nothing moves (F71, scenarios 9.2 and 9.7)."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from scheduler.domain.errors import StoreUnavailable
from scheduler.domain.node import Health
from scheduler.domain.shard import Cycle
from scheduler.front.parts import utc_now
from scheduler.leadership.fence import CycleFence
from scheduler.loops import monitor_nodes
from scheduler.settings import Settings
from scheduler.store.etcd import Etcd
from scheduler.store.keys import NODES
from scheduler.store.pulses import PulsePages
from scheduler.telemetry.redis import make_redis
from scheduler.telemetry.spare_pulses import SparedPulses
from tests.support import servers
from tests.support.fronts import Heartbeat, Rig, eventually, front_on
from tests.support.loop_world import World, world

TIMES: dict[str, Any] = {
    "heartbeat_interval_seconds": 0.2,
    "node_lease_seconds": 1.2,
    "node_grace_seconds": 0.5,
    "store_probe_interval_seconds": 0.1,
    "store_patience_seconds": 0.4,
    "etcd_timeout_seconds": 0.5,
}
LEASE, OUTAGE_SECONDS = 1.2, 3.0


@asynccontextmanager
async def beating(rig: Rig, *node_ids: str) -> AsyncIterator[set[str]]:
    """Have nodes heard for the length of a block, as long as they are in the set."""
    alive = set(node_ids)

    async def beat() -> None:
        while True:
            for node_id in sorted(alive):
                with contextlib.suppress(Exception):
                    await rig.control.Heartbeat(Heartbeat(node_id=node_id))
            await asyncio.sleep(0.15)

    task = asyncio.create_task(beat())
    try:
        yield alive
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def worker(etcd: Etcd, redis: Redis | None) -> AsyncIterator[World]:
    """Open a worker that judges by the real pulses and the real clock."""
    pages = PulsePages(etcd)
    await pages.start()
    async with world(etcd, **TIMES) as this:
        this.ctx.pulses = SparedPulses(redis, pages, gap_limit_seconds=LEASE / 3, lease_seconds=LEASE)
        this.ctx.now = utc_now
        yield this
    await pages.close()


async def monitor(this: World) -> dict[str, int]:
    """Run the node monitor's cycle once."""
    this.slot += 1
    cycle = Cycle(1, this.slot, "monitor_nodes", 0, 1)
    nodes = sorted(this.cache.all(NODES))
    return await monitor_nodes.run(this.ctx, cycle, nodes, unassigned=True, fence=CycleFence(this.store, cycle))


def lost(this: World) -> list[str]:
    """Return the nodes that count as lost."""
    return [i for i, node in this.cache.all(NODES).items() if node.record and node.record.status != Health.READY]


async def judged_for(this: World, seconds: float) -> None:
    """Judge again and again for so long: nobody may be lost at any time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(StoreUnavailable):  # as a worker does: it leaves it to the next cycle
            await monitor(this)
        assert lost(this) == []
        await asyncio.sleep(0.1)


async def test_scenario_9_2_an_etcd_outage_longer_than_lease_and_grace_loses_nobody(
    tmp_path: pathlib.Path, redis: Redis
) -> None:
    """With etcd killed for more than twice lease and grace, no node is declared lost from its first answer on."""
    server = servers.etcd(tmp_path).start()
    etcd = Etcd([server.address], timeout_seconds=0.5)
    nodes = ("n1", "n2", "n3")
    try:
        async with front_on(etcd, redis=redis, **TIMES) as rig, worker(etcd, redis) as this, beating(rig, *nodes):
            for node_id in nodes:
                await rig.register(node_id)
            await judged_for(this, 0.5)
            server.kill()
            await asyncio.sleep(OUTAGE_SECONDS)
            server.start()
            await eventually(lambda: rig.parts.modes.writable)
            await judged_for(this, 2 * LEASE)
    finally:
        await etcd.close()
        server.stop()


async def test_F71_switching_from_redis_to_etcd_and_back_loses_nobody_and_still_finds_the_dead(
    tmp_path: pathlib.Path, etcd_server: servers.Server, etcd_prefix: str
) -> None:
    """With Redis nothing goes to etcd; without it pulses do, and a node that falls silent is found; then they go."""
    server = servers.redis(tmp_path).start()
    redis = make_redis(Settings(redis_addr=server.address))
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    assert redis
    try:
        nodes = ("n1", "n2", "n3", "n4", "n5")
        async with (
            front_on(etcd, redis=redis, **TIMES) as rig,
            worker(etcd, redis) as this,
            beating(rig, *nodes) as alive,
        ):
            for node_id in nodes:
                await rig.register(node_id)
            await judged_for(this, LEASE)
            assert rig.parts.store.writes["/pulses/"] == 0
            server.kill()
            await judged_for(this, 2 * LEASE)
            assert rig.parts.store.writes["/pulses/"] >= 1
            alive.discard("n3")

            async def found() -> bool:
                await monitor(this)
                return lost(this) != []

            await eventually(found, 20)
            assert lost(this) == ["n3"]
            alive.add("n3")
            await eventually(lambda: lost(this) == [])
            server.start()
            await judged_for(this, 3 * LEASE)

            async def gone() -> bool:
                return (await etcd.scan("/pulses/"))[0] == []

            await eventually(gone)
            written = rig.parts.store.writes["/pulses/"]
            await judged_for(this, LEASE)
            assert rig.parts.store.writes["/pulses/"] == written
    finally:
        await redis.aclose()
        await etcd.close()
        server.stop()


async def test_F71_a_front_without_any_redis_shows_when_nodes_were_heard_at_another_front(
    etcd_server: servers.Server, etcd_prefix: str
) -> None:
    """The view of a node at the second front tells what the first one heard."""
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    async with front_on(etcd, **TIMES) as one, front_on(etcd, front_id="front-2", **TIMES) as two:
        pages = PulsePages(etcd)
        await pages.start()
        two.parts.pulses = two.front._vitals._pulses = SparedPulses(
            None, pages, gap_limit_seconds=LEASE / 3, lease_seconds=LEASE
        )
        await one.register("n1")

        async def seen() -> bool:
            return (await two.node("n1")).HasField("last_heartbeat")

        await eventually(seen)
        assert not two.front._vitals.redis_up
        await pages.close()
    await etcd.close()
