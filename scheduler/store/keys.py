"""The layout of etcd: one table a kind of record. Keys here are without the operator's prefix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from scheduler.domain.brake import BrakeRelease
from scheduler.domain.dns import DnsRecord
from scheduler.domain.drift import DriftRecord
from scheduler.domain.event import Event
from scheduler.domain.heard import HeardPage
from scheduler.domain.ledger import Ledger
from scheduler.domain.legacy import LegacyWorkload
from scheduler.domain.node import Node
from scheduler.domain.reconciliation import Reconciliation
from scheduler.domain.record import Record
from scheduler.domain.shard import ClusterRecord, FenceRecord, RestoreRecord, ShardMap, SlotRecord
from scheduler.domain.suggestion import Decision
from scheduler.domain.volume import ManagedVolumeRecord, VolumeAttachmentRecord
from scheduler.domain.workload import Assignment, Tombstone, WorkloadSpec, WorkloadStatus

T = TypeVar("T", bound=Record)


@dataclass(frozen=True)
class Table(Generic[T]):
    """Records of one type under one prefix; a record's key is the prefix and its id."""

    prefix: str
    model: type[T]
    levels: int = 1
    """Parts of an id, with "/" between them; other keys under the prefix are not of this table. 0: any number."""
    only: str = ""
    """The one id of a table that holds a single record."""

    def key(self, identifier: str) -> str:
        """Return the key of a record."""
        return self.prefix + identifier

    def id_of(self, key: str) -> str:
        """Return the id behind the prefix of a key."""
        return key[len(self.prefix) :]

    @property
    def scope(self) -> str:
        """The shortest prefix that covers all keys of the table."""
        return self.prefix + self.only

    def owns(self, key: str) -> bool:
        """Tell whether the key is one of a record of this table (the reference's /nodes/{id}/status is not)."""
        if not key.startswith(self.scope):
            return False
        identifier = self.id_of(key)
        if self.only:
            return identifier == self.only
        return bool(identifier) and (not self.levels or identifier.count("/") == self.levels - 1)


NODES = Table("/nodes/", Node)
LEDGERS = Table("/allocations/", Ledger)
SPECS = Table("/workloads-spec/", WorkloadSpec)
STATUSES = Table("/workloads-status/", WorkloadStatus)
LEGACY = Table("/workloads/", LegacyWorkload)
"""Whole records that the reference scheduler wrote long ago; store/takeover.py turns them into ours."""
ASSIGNMENTS = Table("/assignments/", Assignment)
TOMBSTONES = Table("/tombstones/", Tombstone, levels=2)
"""Ids are "{node}/{workload}"."""
VOLUMES = Table("/volumes/", ManagedVolumeRecord)
"""Ids are "{driver}:{name}", of standalone disks "disk-{uuid}"."""
ATTACHMENTS = Table("/attachments/", VolumeAttachmentRecord, levels=3)
"""Ids are "{node}/{workload}/{volume}"."""
FENCES = Table("/shards/", FenceRecord, levels=2)
"""Ids are "{shard}/{loop}". The key /shards/map lies under the same prefix and is not one of them."""
BRAKES = Table("/brakes/", BrakeRelease)
"""Ids are shard numbers: brakes that an operator has released for a while."""
SUGGESTIONS = Table("/suggestions/", Decision)
"""Decisions on suggestions of automation, each under a lease; no cache mirrors them."""
SHARD_MAP_ID = "map"
SHARD_MAP = Table("/shards/", ShardMap, only=SHARD_MAP_ID)
CLUSTER_ID = "cluster"
CLUSTER = Table("/", ClusterRecord, only=CLUSTER_ID)
RESTORE_ID = "restore"
RESTORE = Table("/", RestoreRecord, only=RESTORE_ID)
PULSES = Table("/pulses/", HeardPage, levels=2)
"""Ids are "{front}/{page}"; bound to a lease, written only while Redis is away."""
SLOTS = Table("/persys/scheduler/slots/", SlotRecord)
LEADER_PREFIX = "/persys/scheduler/leader/"
"""Election keys of the beat: {prefix}{lease id in hex} = instance id; the least create revision leads."""
EVENTS = Table("/events/", Event, levels=2)
"""Events of times without Redis, under leases; ids are "{day}/{id}". The reference's /events/{uuid} are left alone."""
RECONCILIATIONS = Table("/reconciliation/", Reconciliation)
"""The last outcome of each workload, of times without Redis, under leases; no cache mirrors them."""
DNS = Table("/skydns/", DnsRecord, levels=0)
"""Ids are names read backwards. Those of fronts are bound to leases; no cache mirrors them."""
DRIFTS = Table("/drifts/", DriftRecord, levels=3)
"""Ids are "{node}/{workload}/{type}"."""
