"""A front as a process of its own: `python -m tests.support.front_process WORKERS`, configured by the environment."""

from __future__ import annotations

import sys

from scheduler.front.parts import TABLES, FrontParts
from scheduler.front.server import main
from scheduler.placement.capacity import Overcommit
from scheduler.settings import Settings, load
from scheduler.store.cache import Cache
from scheduler.store.cluster import ensure_shard_map
from scheduler.store.etcd import Etcd
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from scheduler.telemetry.events import Events
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.pulses import Pulses
from scheduler.telemetry.redis import make_redis
from tests.support.fronts import FakeAgents


async def open_front(settings: Settings) -> FrontParts:
    """Build a front's parts, without a broker and without agents."""
    etcd = Etcd(settings.etcd_endpoints, prefix=settings.etcd_prefix, timeout_seconds=settings.etcd_timeout_seconds)
    cache = Cache(etcd, TABLES)
    store = Store(etcd, cache=cache)
    await cache.start()
    await ensure_shard_map(store, settings.shard_count, settings.shard_hash)
    redis = make_redis(settings)

    async def close() -> None:
        await cache.close()
        await etcd.close()
        if redis:
            await redis.aclose()

    return FrontParts(
        settings=settings,
        front_id=settings.front_id or "front",
        cluster_id="test",
        etcd=etcd,
        store=store,
        cache=cache,
        placer=Placer(store, cache, Overcommit(1.0, 1.0, 1.0)),
        agents=FakeAgents(),
        pulses=Pulses(redis, gap_limit_seconds=5),
        events=Events(redis, max_entries=100, ttl_seconds=60),
        metrics=Metrics(),
        wake=lambda _workload_id, _node_id: None,
        redis=redis,
        close=close,
    )


if __name__ == "__main__":
    sys.exit(main(load(), int(sys.argv[1]), open_front))
