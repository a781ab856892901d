"""Who is where, kept current by the cache's changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler.domain.node import Node
from scheduler.domain.workload import Tombstone, WorkloadStatus
from scheduler.loops.index import FleetIndex
from scheduler.store.cache import Cache
from scheduler.store.keys import NODES, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write
from tests.support.placement import TABLES, put, spec


class Followed:
    """A store, a cache, and an index that was there from the start."""

    def __init__(self) -> None:
        """Build them."""
        self.etcd = MemoryEtcd()
        self.cache = Cache(self.etcd, TABLES)
        self.store = Store(self.etcd, cache=self.cache)
        self.index = FleetIndex(self.cache)

    async def remove(self, table: Table[Node], identifier: str) -> None:
        """Remove a record."""

        def decide(_view: View) -> Write[None]:
            write: Write[None] = Write(None)
            write.delete(table, identifier)
            return write

        await self.store.transact([Ref(table, identifier)], decide)

    async def settle(self) -> None:
        """Let the cache show all that was written; an index that is built now must say the same."""
        await self.cache.wait_revision(self.store.last_revision, 5)
        late = FleetIndex(self.cache)
        for node_id in ("n-1", "n-2"):
            assert late.on_node(node_id) == self.index.on_node(node_id)
            assert late.owed_by(node_id) == self.index.owed_by(node_id)
        assert late.homeless(everywhere) == self.index.homeless(everywhere)


def everywhere(_identifier: str) -> bool:
    """Take every shard's."""
    return True


@pytest.fixture
async def followed() -> AsyncIterator[Followed]:
    """An index over a cache that follows."""
    this = Followed()
    await this.cache.start()
    await this.cache.ready(5)
    yield this
    await this.cache.close()


async def test_F44_workloads_are_found_by_their_node(followed: Followed) -> None:
    """Placed, moved, deleted: always where they are now."""
    await put(followed.store, NODES, "n-1", Node(node_id="n-1"))
    await put(followed.store, NODES, "n-2", Node(node_id="n-2"))
    for name in ("b", "a"):
        await put(followed.store, SPECS, name, spec(name))
        await put(followed.store, STATUSES, name, WorkloadStatus(id=name, node_id="n-1"))
    await followed.settle()
    assert followed.index.on_node("n-1") == ["a", "b"]
    await put(followed.store, STATUSES, "a", WorkloadStatus(id="a", node_id="n-2"))
    await followed.settle()
    assert (followed.index.on_node("n-1"), followed.index.on_node("n-2")) == (["b"], ["a"])
    await followed.remove(SPECS, "a")  # type: ignore[arg-type]
    await followed.settle()
    assert followed.index.on_node("n-2") == []
    assert followed.index.homeless(everywhere) == []


async def test_9_20_whoever_no_node_covers_is_homeless(followed: Followed) -> None:
    """Without a status, without a node, or on a node whose record is gone; each by the id that decides its shard."""
    await put(followed.store, SPECS, "new", spec("new"))
    await put(followed.store, SPECS, "pending", spec("pending"))
    await put(followed.store, STATUSES, "pending", WorkloadStatus(id="pending"))
    await put(followed.store, SPECS, "stranded", spec("stranded"))
    await put(followed.store, STATUSES, "stranded", WorkloadStatus(id="stranded", node_id="n-9"))
    await put(followed.store, STATUSES, "no-spec", WorkloadStatus(id="no-spec"))
    await followed.settle()
    assert followed.index.homeless(everywhere) == ["new", "pending", "stranded"]
    assert followed.index.homeless(lambda i: i == "n-9") == ["stranded"]
    await put(followed.store, NODES, "n-9", Node(node_id="n-9"))
    await followed.settle()
    assert followed.index.homeless(everywhere) == ["new", "pending"]


async def test_F16_what_is_owed_is_found_by_node_and_by_workload(followed: Followed) -> None:
    """Until it is done."""
    for node_id in ("n-1", "n-2"):
        owed = Tombstone(node_id=node_id, workload_id="web", epoch=3)
        await put(followed.store, TOMBSTONES, f"{node_id}/web", owed)
    await followed.settle()
    assert (followed.index.owed_by("n-1"), followed.index.owed_for("web")) == (["web"], ["n-1", "n-2"])
    await followed.remove(TOMBSTONES, "n-1/web")  # type: ignore[arg-type]
    await followed.settle()
    assert (followed.index.owed_by("n-1"), followed.index.owed_for("web")) == ([], ["n-2"])
