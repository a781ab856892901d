"""Which workloads have copies, as the cache tells."""

from __future__ import annotations

from datetime import UTC, datetime

from scheduler.convergence.replicas import Change, What
from scheduler.store.cache import Cache
from scheduler.store.keys import SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.replica_index import ReplicaIndex
from scheduler.store.replicas import scale, write_copies
from scheduler.store.store import Store
from scheduler.store.workloads import apply_spec, finalize_delete, mark_deleted
from tests.support.placement import spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_F87_the_index_follows_workloads_and_copies() -> None:
    """From the first one wanted to the last one gone; others are not among them."""
    etcd = MemoryEtcd()
    cache = Cache(etcd, [SPECS, STATUSES])
    store = Store(etcd, cache=cache)
    await cache.start()
    await cache.ready(5)
    index = ReplicaIndex(cache)

    async def shown() -> tuple[list[str], list[str]]:
        await cache.wait_revision(store.last_revision, 5)
        return index.replicated(), index.copies_of("web")

    await apply_spec(store, spec("api"), now=NOW)
    web = (await apply_spec(store, spec("web", replicas=3), now=NOW)).spec
    assert await shown() == (["web"], [])
    assert index.due("web", web) == [Change(What.CREATE, "web.2"), Change(What.CREATE, "web.3")]
    await write_copies(store, "web", ["web.2", "web.3"], now=NOW)
    assert await shown() == (["web"], ["web.2", "web.3"])
    assert index.due("web", web) == []
    web = (await scale(store, "web", 1, now=NOW)).spec
    assert await shown() == (["web"], ["web.2", "web.3"])
    assert [change.what for change in index.due("web", web)] == [What.REMOVE] * 2
    await mark_deleted(store, "web", now=NOW)
    await finalize_delete(store, "web", tombstone=False, now=NOW)
    assert await shown() == (["web"], ["web.2", "web.3"])
    await write_copies(store, "web", ["web.2", "web.3"], now=NOW)
    for copy in ("web.2", "web.3"):
        await finalize_delete(store, copy, tombstone=False, now=NOW)
    assert await shown() == ([], [])
    assert ReplicaIndex(cache).replicated() == []
    await cache.close()
    await etcd.close()
