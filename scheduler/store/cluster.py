"""What every process does first: make sure that this etcd is the cluster it belongs to."""

from __future__ import annotations

import uuid

from scheduler.domain.errors import WrongCluster
from scheduler.domain.shard import ClusterRecord, ShardMap
from scheduler.store.keys import CLUSTER, CLUSTER_ID, SHARD_MAP, SHARD_MAP_ID
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

LAYOUT_VERSION = 1
"""Of the keys and values in etcd that this code reads and writes."""


async def join_cluster(store: Store, expected_id: str = "") -> ClusterRecord:
    """Return the cluster record; create it on the very first start.

    expected_id: the cluster that the caller has known before; an etcd without a cluster is
    then the wrong one, too. Raises WrongCluster, StoreUnavailable.
    """
    new = ClusterRecord(cluster_id=uuid.uuid4().hex, layout_version=LAYOUT_VERSION)

    def decide(view: View) -> Write[ClusterRecord]:
        stored = view.get(CLUSTER, CLUSTER_ID).record
        if stored is not None:
            return Write(stored)
        if expected_id:
            raise WrongCluster(f"etcd holds no cluster, expected {expected_id}; check ETCD_ENDPOINTS and the prefix")
        write = Write(new)
        write.put(CLUSTER, CLUSTER_ID, new)
        return write

    cluster = await store.transact([Ref(CLUSTER, CLUSTER_ID)], decide)
    if expected_id and cluster.cluster_id != expected_id:
        raise WrongCluster(
            f"etcd holds cluster {cluster.cluster_id}, expected {expected_id}; check ETCD_ENDPOINTS and the prefix"
        )
    if cluster.layout_version != LAYOUT_VERSION:
        raise WrongCluster(
            f"etcd has layout version {cluster.layout_version}, this version of fleetbeat reads {LAYOUT_VERSION}"
        )
    return cluster


async def ensure_shard_map(store: Store, count: int, hash_name: str) -> ShardMap:
    """Return the shard map; create it with this count and hash when there is none yet."""
    first = ShardMap(generation=1, count=count, hash=hash_name)

    def decide(view: View) -> Write[ShardMap]:
        stored = view.get(SHARD_MAP, SHARD_MAP_ID).record
        if stored is not None:
            return Write(stored)
        write = Write(first)
        write.put(SHARD_MAP, SHARD_MAP_ID, first)
        return write

    return await store.transact([Ref(SHARD_MAP, SHARD_MAP_ID)], decide)
