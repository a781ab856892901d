"""Workers without Redis (F71): cycles run, admitted by nobody; the fence in etcd keeps them apart."""

from __future__ import annotations

import time

from scheduler.bootstrap import open_worker
from scheduler.domain.node import Node
from scheduler.loops import cycle
from scheduler.queues.messages import CycleMessage
from scheduler.settings import Settings
from scheduler.store.keys import RECONCILIATIONS
from scheduler.store.nodes import register
from scheduler.store.workloads import apply_spec
from tests.support.fake_agent import FakeAgent
from tests.support.fronts import eventually
from tests.support.placement import spec
from tests.support.servers import Server


async def test_F70_F71_a_worker_without_redis_runs_its_cycles(etcd_server: Server, etcd_prefix: str) -> None:
    """The broker is another one; a workload is placed and applied, which etcd tells of; nobody admits."""
    settings = Settings(etcd_endpoints=(etcd_server.address,), etcd_prefix=etcd_prefix, broker_url="memory://")
    parts = await open_worker(settings)
    agent = await FakeAgent("n-1").start()
    try:
        ctx = parts.loop_context
        await register(parts.store, agent.node(), now=ctx.now())
        await apply_spec(parts.store, spec(image="nginx"), now=ctx.now())
        await parts.cache.wait_revision(parts.store.last_revision, 5)

        async def publish(messages: object) -> None:
            raise AssertionError(messages)

        def message(slot: int) -> CycleMessage:
            return CycleMessage(term=1, slot=slot, loop="reconcile", shard=0, generation=1, expires=time.time() + 60)

        assert (await cycle.open_cycle(parts, message(5), publish)).startswith("ok")
        await cycle.open_cycle(parts, message(6), publish)
        assert agent.running() == ["web"]

        async def is_told() -> bool:
            told = (await parts.store.get(RECONCILIATIONS, "web")).record
            return told is not None and (told.action, told.success) == ("ReapplyRunning", True)

        await eventually(is_told)
        assert parts.admission.verdicts.total() == 0
        assert isinstance(agent.node(), Node)
    finally:
        await agent.stop()
        await parts.close()
