"""What every process does first: make sure that this etcd is the cluster it belongs to."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.domain.errors import StoreUnavailable, WrongCluster
from scheduler.domain.shard import ClusterRecord, RestoreRecord, ShardMap
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import CLUSTER, CLUSTER_ID, RESTORE, RESTORE_ID, SHARD_MAP, SHARD_MAP_ID
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
        if restoring := view.get(RESTORE, RESTORE_ID).record:
            raise StoreUnavailable(restoring_text(restoring))
        if stored is not None:
            return Write(stored)
        if expected_id:
            raise WrongCluster(f"etcd holds no cluster, expected {expected_id}; check ETCD_ENDPOINTS and the prefix")
        write = Write(new)
        write.put(CLUSTER, CLUSTER_ID, new)
        return write

    cluster = await store.transact([Ref(CLUSTER, CLUSTER_ID), Ref(RESTORE, RESTORE_ID)], decide)
    if expected_id and cluster.cluster_id != expected_id:
        raise WrongCluster(
            f"etcd holds cluster {cluster.cluster_id}, expected {expected_id}; check ETCD_ENDPOINTS and the prefix"
        )
    if cluster.layout_version != LAYOUT_VERSION:
        raise WrongCluster(
            f"etcd has layout version {cluster.layout_version}, this version of fleetbeat reads {LAYOUT_VERSION}"
        )
    store.epoch_base = cluster.epoch_base
    return cluster


def refuse_another(store: Store, cache: Cache, cluster_id: str) -> None:
    """Have the store refuse everything once its etcd turns out to hold another cluster than this one."""

    def take(changes: Sequence[Change]) -> None:
        for change in changes:
            found = change.after.record if change.table is CLUSTER else None
            if found is not None and found.cluster_id != cluster_id:
                store.refuse(
                    WrongCluster(
                        f"etcd holds cluster {found.cluster_id} now, this process was started for {cluster_id}; "
                        "it ends, to be started anew"
                    )
                )

    cache.subscribe(take)


def restoring_text(restoring: RestoreRecord) -> str:
    """Say that a restore is under way."""
    begun = restoring.started_at.isoformat(timespec="seconds")
    return (
        f"a restore of cluster {restoring.cluster_id}, begun at {begun}, is not complete; "
        "run `fleetbeat restore` with the same file to go on"
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose etcd this is at one moment."""

    cluster: ClusterRecord | None
    cluster_revision: int
    restoring: RestoreRecord | None


async def read_identity(store: Store) -> Identity:
    """Ask etcd, linearizably, whose it is. Raises StoreUnavailable, CorruptRecord."""
    view = await store.read([Ref(CLUSTER, CLUSTER_ID), Ref(RESTORE, RESTORE_ID)])
    cluster = view.get(CLUSTER, CLUSTER_ID)
    return Identity(cluster.record, cluster.mod_revision, view.get(RESTORE, RESTORE_ID).record)


async def accept_store(
    store: Store, cluster_id: str, *, epoch_base: int, shard_count: int, hash_name: str, now: datetime
) -> ClusterRecord:
    """Take an emptied etcd for this cluster as it is, on the word of an operator.

    epoch_base: above every epoch that the agents may know. Raises WrongCluster when etcd holds
    another cluster, StoreUnavailable, also while a restore is under way.
    """

    def decide(view: View) -> Write[ClusterRecord]:
        stored, shards = view.get(CLUSTER, CLUSTER_ID).record, view.get(SHARD_MAP, SHARD_MAP_ID).record
        if restoring := view.get(RESTORE, RESTORE_ID).record:
            raise StoreUnavailable(restoring_text(restoring))
        if stored is not None and stored.cluster_id != cluster_id:
            raise WrongCluster(f"etcd holds cluster {stored.cluster_id}, not {cluster_id}; check ETCD_ENDPOINTS")
        known = stored or ClusterRecord(cluster_id=cluster_id, layout_version=LAYOUT_VERSION)
        accepted = known.replace(accepted_at=now, epoch_base=max(known.epoch_base, epoch_base))
        write = Write(accepted)
        write.put(CLUSTER, CLUSTER_ID, accepted)
        if shards is None:
            write.put(SHARD_MAP, SHARD_MAP_ID, ShardMap(generation=_later(now), count=shard_count, hash=hash_name))
        return write

    refs: list[Ref[Any]] = [Ref(CLUSTER, CLUSTER_ID), Ref(RESTORE, RESTORE_ID), Ref(SHARD_MAP, SHARD_MAP_ID)]
    accepted: ClusterRecord = await store.transact(refs, decide)
    store.epoch_base = accepted.epoch_base
    return accepted


def _later(now: datetime) -> int:
    """Return a generation above that of any shard map before: nobody reshards every second."""
    return int(now.timestamp())


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
