"""The real Celery app, with loops that do what the test tells them through Redis.

Started as `celery -A tests.support.cycle_app worker …`; the pool's children import it, too.
What runs is written to the list `runs`, what ends to `ends`, both in the telemetry database;
the hash `do` tells a loop how to behave: {"sleep": seconds, "write": true, "fail": true}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from redis.asyncio import Redis

from scheduler.domain.shard import Cycle, SlotRecord
from scheduler.loops import cycle as cycles
from scheduler.loops.context import Fence
from scheduler.queues.admission import Admission
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.cluster import ensure_shard_map
from scheduler.store.etcd import Etcd
from scheduler.store.keys import NODES, SHARD_MAP, SLOTS
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write
from tasks import app, runtime

__all__ = ["app"]


class ObedientLoop:
    """Runs as it is told."""

    async def run(
        self, ctx: Any, cycle: Cycle, nodes: Sequence[str], *, unassigned: bool, fence: Fence
    ) -> dict[str, int]:
        """Note the run, behave, note the end."""
        note = {**vars(cycle), "nodes": list(nodes), "unassigned": unassigned, "pid": os.getpid()}
        await ctx.redis.rpush("runs", json.dumps(note))
        await behave(ctx, cycle.loop, fence.guards)
        await ctx.redis.rpush("ends", json.dumps(note))
        return {"looked": len(nodes), "nothing": 0}

    async def reconcile_workload(self, ctx: Any, workload_id: str, guards: Any) -> str:
        """Note it, behave."""
        await ctx.redis.rpush("runs", json.dumps({"workload_id": workload_id, "pid": os.getpid()}))
        await behave(ctx, "workload", guards)
        return "applied"


async def behave(ctx: Any, key: str, guards: Any) -> None:
    """Do what the hash says."""
    orders = json.loads(await ctx.redis.hget("do", key) or "{}")
    await asyncio.sleep(orders.get("sleep", 0))
    time.sleep(orders.get("block", 0))
    if orders.get("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if orders.get("fail"):
        raise RuntimeError("told to fail")
    if orders.get("write"):
        await write(ctx.store, await guards())


async def write(store: Store, guards: Sequence[Guard]) -> None:
    """Change a record under these guards."""

    def decide(view: View) -> Write[None]:
        before = view.get(SLOTS, "test").record
        wrote: Write[None] = Write(None)
        wrote.put(SLOTS, "test", SlotRecord(loop="test", slot=before.slot + 1 if before else 1, term=0))
        return wrote

    await store.transact([Ref(SLOTS, "test")], decide, guards=guards)


async def open_parts(settings: Settings) -> Any:
    """Open etcd and Redis, and nothing that talks to agents."""
    stack = AsyncExitStack()
    etcd = Etcd(settings.etcd_endpoints, prefix=settings.etcd_prefix)
    stack.push_async_callback(etcd.close)
    cache = Cache(etcd, [NODES, SHARD_MAP])
    store = Store(etcd, cache=cache)
    await ensure_shard_map(store, settings.shard_count, settings.shard_hash)
    await cache.start()
    stack.push_async_callback(cache.close)
    await cache.ready(10)
    redis: Redis = Redis.from_url(settings.redis_url, socket_timeout=3, socket_connect_timeout=1)
    stack.push_async_callback(redis.aclose)
    await redis.rpush("opened", os.getpid())

    async def close() -> None:
        await redis.rpush("closed", os.getpid())
        await stack.aclose()

    context = SimpleNamespace(
        settings=settings,
        now=lambda: datetime.now(UTC),
        redis=redis,
        store=store,
        on_cycle=lambda _loop, _success, _seconds: None,
    )
    return SimpleNamespace(
        loop_context=context, admission=Admission(redis), store=store, cache=cache, etcd=etcd, close=close
    )


runtime.open_parts = open_parts
cycles.LOOPS = dict.fromkeys(cycles.LOOPS, ObedientLoop())  # type: ignore[misc]
cycles.reconcile = ObedientLoop()  # type: ignore[assignment]
app.conf.include = ("tests.support.cycle_app",)
