"""The health of a node has one home: what the monitor, the front and the store say of it can't differ."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from scheduler.domain.node import Health, Node
from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from tests.support.fronts import front_on
from tests.support.loop_world import world
from tests.support.placement import records


@pytest.mark.parametrize("seed", range(8))
async def test_scenario_L13_monitor_list_and_store_agree_on_a_node(seed: int) -> None:
    """The monitor marks a silent node while it is heard again, in any order: one key tells, and all read it there."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    etcd = MemoryEtcd()

    async def pause() -> None:
        for _ in range(dice.randrange(6)):
            await asyncio.sleep(0)

    async with world(etcd) as this, front_on(etcd) as rig:
        await register(this.store, Node(node_id="n-1", agent_endpoint="127.0.0.1:1"), now=this.clock())
        first = etcd.revision
        etcd.pause = pause

        async def hear() -> None:
            await pause()
            await set_health(
                rig.parts.store, "n-1", Health.READY, "heard", "heartbeat", now=this.clock(),
                expect_status=Health.NOT_READY,
            )  # fmt: skip

        for _ in range(6):
            this.clock.forward(4)
            await asyncio.gather(this.cycle("monitor_nodes"), hear(), hear())
        await this.settle()
        await rig.parts.cache.wait_revision(etcd.revision, 5)
        keys, _ = await etcd.scan("/nodes/")
        assert [kv.key for kv in keys] == ["/nodes/n-1"]
        stored = (await this.store.get(NODES, "n-1")).record
        listed = (await rig.control.ListNodes(pb.ListNodesRequest())).nodes
        assert stored
        assert [(n.node_id, n.status) for n in listed] == [("n-1", stored.status)]
        assert this.cache.get(NODES, "n-1").record == stored
        told = [(await records(etcd, NODES, r))["n-1"].status for r in range(first, etcd.revision + 1)]
        changes = [status for before, status in itertools.pairwise(told) if before != status]
        assert changes
        assert changes[::2] == [Health.NOT_READY] * len(changes[::2])
        assert changes[1::2] == [Health.READY] * len(changes[1::2])
