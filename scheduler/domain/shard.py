"""Shards, cycles and fences: who drives which node, and which cycle may still write."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import datetime

from scheduler.domain.record import Record

LOOPS = ("reconcile", "detect_drift", "monitor_nodes", "monitor_workloads")
MAX_SHARDS = 1024


class ShardMap(Record):
    """`/shards/map`: the generation grows with each change of the count or the hash."""

    generation: int
    count: int
    hash: str = "jump"
    """jump, or crc32 (the reference system's modulo)."""


class FenceRecord(Record):
    """`/shards/{k}/{loop}`: the last cycle of this loop and shard that wrote."""

    term: int
    slot: int


class SlotRecord(Record):
    """The last slot of a loop that the elected beat published."""

    loop: str
    slot: int
    term: int


class ClusterRecord(Record):
    """`/cluster`: which cluster this etcd belongs to."""

    cluster_id: str
    layout_version: int = 1
    epoch_base: int = 0
    """Added to etcd's revisions where epochs are made of them: above every epoch given out before a restore."""
    restored_at: datetime | None = None
    """When its records came here from a backup; None: never."""
    accepted_at: datetime | None = None
    """When an operator vouched last that an empty store is to be used as it is."""


class RestoreRecord(Record):
    """`/restore`: records are being brought back from a backup; while it is there nothing else is written."""

    backup: str
    """The checksum of the backup."""
    cluster_id: str
    epoch_base: int
    shift: int
    """Added to each epoch of the backup."""
    generation: int
    """Of the shard map that ends the restore."""
    started_at: datetime
    clearing: bool = False
    """What was there before has yet to be cleared away."""


@dataclass(frozen=True, order=True)
class Cycle:
    """One run of a loop over a shard."""

    term: int
    """The elected beat's fencing number: grows with each election."""
    slot: int
    """floor(unix seconds / period)."""
    loop: str
    shard: int
    generation: int
    """Of the shard map that the cycle was cut for."""


_JUMP_MULTIPLIER = 2862933555777941757
_MASK = (1 << 64) - 1


def _fnv1a_64(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    return value


def jump_hash(key: int, buckets: int) -> int:
    """Map a 64-bit key to a bucket so that growing n to n+1 moves 1/(n+1) of the keys.

    Lamping and Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm" (2014).
    """
    bucket, candidate = -1, 0
    while candidate < buckets:
        bucket = candidate
        key = (key * _JUMP_MULTIPLIER + 1) & _MASK
        candidate = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


def shard_of(identifier: str, shards: ShardMap) -> int:
    """Return the shard, 0 to count-1, that drives this node or this unassigned workload."""
    if shards.hash == "crc32":
        return zlib.crc32(identifier.strip().encode()) % shards.count
    return jump_hash(_fnv1a_64(identifier), shards.count)


def shard_of_workload(workload_id: str, node_id: str, shards: ShardMap) -> int:
    """Return the shard that drives a workload: its node's, or its own id's while it has none."""
    return shard_of(node_id or workload_id, shards)


def queue_name(shard: int) -> str:
    """Name the Celery queue of a shard."""
    return f"shard-{shard}"
