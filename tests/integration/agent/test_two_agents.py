"""Two real agents, one node id, a real front: the one that comes back late keeps nothing beside its replacement."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from scheduler.store.keys import NODES
from tests.support.agent_process import AgentProcess, Client, marked, order
from tests.support.fronts import Rig, front_on
from tests.support.servers import Server
from tests.support.waiting import eventually


@pytest.fixture
async def redis(redis_server: Server) -> AsyncIterator[Redis]:
    """An empty Redis, which tells who is alive."""
    client: Redis = Redis.from_url(f"redis://{redis_server.address}/0")
    await client.flushdb()
    yield client
    await client.aclose()


def endpoint(rig: Rig) -> str:
    """Return where the node's agent is, as the front knows it."""
    record = rig.parts.cache.get(NODES, "n-1").record
    return record.agent_endpoint if record else ""


def agent_id(agent: AgentProcess) -> str:
    """Return the mark of an agent's processes."""
    return str(msgspec.json.decode((agent.folder / "data" / "agent.json").read_bytes())["agent_id"])


async def test_an_agent_that_lost_its_id_while_it_was_dead_stops_its_old_copies(
    redis: Redis, tmp_path: pathlib.Path
) -> None:
    """Dead beyond its lease, replaced by another agent, back: refused, and after stop_after nothing of it runs."""
    settings = {
        "heartbeat_interval_seconds": 0.2,
        "node_lease_seconds": 1.0,
        "node_grace_seconds": 1.0,
        "exclusive_stop_after_seconds": 1.5,
    }
    async with front_on(redis=redis, **settings) as rig:  # type: ignore[arg-type]
        address = f"127.0.0.1:{rig.front.grpc_port}"
        first, second = (AgentProcess(tmp_path / name, [address]) for name in ("first", "second"))
        client = Client(first.port)
        try:
            await asyncio.to_thread(first.start)
            await eventually(lambda: endpoint(rig).endswith(str(first.port)), 20, "the first one registers")
            await client.apply(order("w", restart="always"))
            await eventually(lambda: bool(marked(agent_id(first), "w")), 10, "its copy runs")
            await asyncio.to_thread(first.signal, signal.SIGKILL)
            await asyncio.to_thread(second.start)
            await eventually(lambda: endpoint(rig).endswith(str(second.port)), 40, "the second one has the id")
            assert marked(agent_id(first), "w"), "the copy outlives its agent"
            await asyncio.to_thread(first.start)
            await eventually(lambda: not marked(agent_id(first), "w"), 40, "the old copy is stopped")
            assert "superseded_stopping" in first.log
            assert endpoint(rig).endswith(str(second.port))
        finally:
            await client.channel.close()
            for agent in (first, second):
                await asyncio.to_thread(agent.kill)
            for pid in marked(agent_id(first), "w"):
                os.kill(pid, signal.SIGKILL)
