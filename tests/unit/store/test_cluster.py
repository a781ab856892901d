"""Joining the cluster that etcd holds, and no other."""

from __future__ import annotations

import pytest

from scheduler.domain.errors import WrongCluster
from scheduler.domain.shard import ClusterRecord
from scheduler.store.cluster import LAYOUT_VERSION, ensure_shard_map, join_cluster
from scheduler.store.keys import CLUSTER
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


async def test_a_cluster_is_made_once_and_found_again(etcd: MemoryEtcd) -> None:
    """The id stays, with and without expecting it; nothing is written the second time."""
    first = await join_cluster(Store(etcd))
    revision = etcd.revision
    assert await join_cluster(Store(etcd)) == first
    assert await join_cluster(Store(etcd), first.cluster_id) == first
    assert first.layout_version == LAYOUT_VERSION
    assert etcd.revision == revision


async def test_another_cluster_is_refused(etcd: MemoryEtcd) -> None:
    """The error names both ids, so that the operator sees the mix-up."""
    cluster = await join_cluster(Store(etcd))
    with pytest.raises(WrongCluster, match=f"{cluster.cluster_id}, expected other"):
        await join_cluster(Store(etcd), "other")


async def test_persys_9_8_an_empty_etcd_is_refused_by_who_has_known_a_cluster(etcd: MemoryEtcd) -> None:
    """A wiped etcd, or a wrong endpoint, must not become a new cluster under a running fleet."""
    with pytest.raises(WrongCluster, match="holds no cluster"):
        await join_cluster(Store(etcd), "known")
    assert (await etcd.scan("/"))[0] == []


async def test_another_layout_is_refused(etcd: MemoryEtcd) -> None:
    """Data that a newer version has migrated is left alone."""
    record = ClusterRecord(cluster_id="c", layout_version=LAYOUT_VERSION + 1)
    await etcd.txn((), [Put(CLUSTER.scope, record.to_json())])
    with pytest.raises(WrongCluster, match="layout version 2"):
        await join_cluster(Store(etcd))


async def test_the_first_shard_map_stays(etcd: MemoryEtcd) -> None:
    """Later settings do not change it: the map is changed by resharding only."""
    first = await ensure_shard_map(Store(etcd), 4, "jump")
    assert (first.generation, first.count, first.hash) == (1, 4, "jump")
    assert await ensure_shard_map(Store(etcd), 8, "crc32") == first
