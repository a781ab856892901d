"""Workers and beats have no port of their own: what they write and place is in the sums that every front shows."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from scheduler.bootstrap import open_beat, open_worker
from scheduler.domain.shard import SlotRecord
from scheduler.settings import Settings
from scheduler.store.keys import SLOTS
from scheduler.store.write import Ref, View, Write
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.shared import SharedMetrics
from tests.support.servers import Server


@pytest.fixture
def settings(etcd_server: Server, redis_server: Server, etcd_prefix: str) -> Settings:
    """Settings of a process of the cluster."""
    return Settings(etcd_endpoints=(etcd_server.address,), etcd_prefix=etcd_prefix, redis_addr=redis_server.address)


async def sums(redis: Redis) -> str:
    """Return what a front shows of all processes."""
    shared = SharedMetrics(redis, Metrics(process=False))
    await shared.read()
    return shared.exposition().decode()


async def test_F89_the_slots_that_a_beat_records_are_counted(settings: Settings, redis: Redis) -> None:
    """They are the steady traffic of an idle cluster, and must be seen."""
    parts = await open_beat(settings)

    def decide(_view: View) -> Write[None]:
        write: Write[None] = Write(None)
        write.put(SLOTS, "reconcile", SlotRecord(loop="reconcile", slot=7, term=1))
        return write

    await parts.store.transact([Ref(SLOTS, "reconcile")], decide)
    await parts.close()
    shown = await sums(redis)
    assert 'persys_scheduler_state_store_writes_total{category="slot"} 1.0' in shown
    assert "persys_scheduler_state_store_request_duration_seconds_count" in shown


async def test_F89_placements_of_workers_are_counted(settings: Settings, redis: Redis) -> None:
    """Those of cycles as well as those of applies."""
    parts = await open_worker(settings)
    await parts.loop_context.placer.place("ghost")
    await parts.close()
    assert 'persys_scheduler_placements_total{result="vanished"} 1.0' in await sums(redis)
