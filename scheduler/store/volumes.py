"""Volumes inside the transactions that decide about workloads: one call for each thing that happens to one.

| what happens | the call |
|---|---|
| a spec is stored | `name` |
| a node is assigned | `attach` |
| the node holds another revision by now | `keep_up`, then `report` once that runs |
| the copy is gone, by the word of its node | `release`, or `settle` for one that was left behind |
| the records of a workload go | `forget` |

Which records these are is known only inside the transaction, from the workload's own records: each
call asks for them by `View.require`. A claim that a later step does not confirm cannot be left
over, for it is written together with what it is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from scheduler.domain.errors import Refused
from scheduler.domain.policy import allows_move
from scheduler.domain.volume import (
    READ_WRITE_ONCE,
    AttachmentPhase,
    ManagedVolumeRecord,
    VolumeAttachmentRecord,
    driver_name,
    named_by,
    nodes_allowed,
    objection_to,
    split_holder,
    volume_id,
    volume_ids,
)
from scheduler.domain.workload import Actual, Desired, ManagedVolume, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.placement.request import Binding, Request
from scheduler.store.cache import Cache
from scheduler.store.keys import ATTACHMENTS, NODES, SPECS, STATUSES, TOMBSTONES, VOLUMES
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

STORAGE_FAILURES = frozenset({"STORAGE_PROVISION_FAILED", "STORAGE_ATTACH_FAILED"})
"""The node says that it has not attached the volumes: nothing is claimed by such a copy."""

Known = Mapping[str, ManagedVolumeRecord | None]


def volume_refs(spec: WorkloadSpec) -> list[Ref[Any]]:
    """Return the records of the volumes that a spec names."""
    return [Ref(VOLUMES, identifier) for identifier in volume_ids(spec.managed_volumes)]


def attachment_refs(spec: WorkloadSpec, node_id: str) -> list[Ref[Any]]:
    """Return the records of the attachments that the spec needs on a node."""
    ids = volume_ids(spec.managed_volumes)
    return [Ref(ATTACHMENTS, attachment_id(node_id, spec.id, identifier)) for identifier in ids]


def attachment_id(node_id: str, workload_id: str, volume: str) -> str:
    """Return the id of an attachment in its table; a "/" in a part becomes "_", as in the reference layout."""
    parts = (part.strip().replace("/", "_") or "_" for part in (node_id, workload_id, volume))
    return "/".join(parts)


def located(request: Request, spec: WorkloadSpec, known: Known, *, frees: bool) -> Request:
    """Return the request with the only nodes that its volumes allow.

    frees: copies of the workload that were left elsewhere are known not to use the volumes any more.
    """
    movable, bound = allows_move(spec), []
    for volume in spec.managed_volumes:
        record = known.get(volume_id(volume))
        nodes: tuple[str, ...] | None = () if volume.disk_id else None
        if record:
            nodes = nodes_allowed(record, spec.id, movable=movable, frees=frees)
        if nodes is not None:
            bound.append(Binding(volume_id(volume), nodes))
    return replace(request, bound=tuple(bound)) if bound else request


def located_in(view: View, request: Request, spec: WorkloadSpec, *, frees: bool) -> Request:
    """Return the request as the volumes' records in a view have it."""
    return located(request, spec, known_in(view, spec), frees=frees)


def known_in(view: View, spec: WorkloadSpec) -> dict[str, ManagedVolumeRecord | None]:
    """Return the records of a spec's volumes."""
    view.require(volume_refs(spec))
    return {i: view.get(VOLUMES, i).record for i in volume_ids(spec.managed_volumes)}


# What happens to a workload


def name(write: Write[Any], view: View, spec: WorkloadSpec, old: WorkloadSpec | None, now: datetime) -> None:
    """Note that a spec is stored over an old one: its volumes are there, and the old one's are named no more.

    Raises Refused for a disk that does not exist, and for a volume that others use in another way.
    """
    name_all(write, view, [(spec, old)], now)


def name_all(
    write: Write[Any], view: View, stored: Sequence[tuple[WorkloadSpec, WorkloadSpec | None]], now: datetime
) -> None:
    """Note that several specs are stored, each over its old one; they may name the same volumes. Raises Refused."""
    ids = [volume_ids(each.managed_volumes) for pair in stored for each in pair if each]
    if not any(ids):
        return
    touched = _Touched(view, now, dict.fromkeys(i for some in ids for i in some))
    for spec, old in stored:
        touched.name(spec, old)
    touched.store(write)


def attach(
    write: Write[Any],
    view: View,
    spec: WorkloadSpec,
    status: WorkloadStatus,
    node_id: str,
    *,
    now: datetime,
    frees: bool,
    leaves: bool = False,
) -> tuple[str, ...]:
    """Attach the volumes on the node that is assigned. Return the ids of all that is attached, for the new status.

    The transaction must name the tombstone of the workload on the node: what an older copy there has
    attached stays so until it is taken over.

    status: before the assignment.
    frees: as for `located`: what the workload has attached elsewhere of volumes that only one node may
        use is released.
    leaves: the node that the workload had holds nothing any more, whatever the access mode.
    """
    touched = _Touched(view, now, volume_ids(spec.managed_volumes))
    if leaves:
        touched.detach(status.attached, status.node_id, spec.id)
    touched.attach(spec, node_id, frees=frees)
    touched.store(write)
    owed = view.get(TOMBSTONES, f"{node_id}/{spec.id}").record
    return tuple(dict.fromkeys((*volume_ids(spec.managed_volumes), *(owed.volumes if owed else ()))))


def keep_up(write: Write[Any], view: View, spec: WorkloadSpec, status: WorkloadStatus, now: datetime) -> WorkloadStatus:
    """Attach what a revision needs of which the node is about to be told; what it does not need stays so."""
    ids = volume_ids(spec.managed_volumes)
    if not set(ids) - set(status.attached):
        return status
    touched = _Touched(view, now, ids)
    touched.attach(spec, status.node_id, frees=False)
    touched.store(write)
    return status.replace(attached=tuple(dict.fromkeys((*status.attached, *ids))))


def needs_keeping_up(spec: WorkloadSpec, status: WorkloadStatus) -> bool:
    """Whether the node lacks a volume that the spec names."""
    return not set(volume_ids(spec.managed_volumes)) <= set(status.attached)


def report(write: Write[Any], view: View, spec: WorkloadSpec, status: WorkloadStatus, now: datetime) -> None:
    """Detach, after a report, the volumes of an earlier revision once another one is there.

    When the node says that it could not attach them, nothing stays claimed; the next order claims anew.
    status: as the write has it, which is replaced when anything was detached.
    """
    if not status.attached or not status.node_id:
        return
    failed = storage_failure(status)
    if not failed and (status.observed_revision != spec.revision_id or status.actual == Actual.PENDING):
        return
    kept = () if failed else tuple(i for i in status.attached if i in volume_ids(spec.managed_volumes))
    gone = [i for i in status.attached if i not in kept]
    if not gone:
        return
    touched = _Touched(view, now, gone)
    touched.detach(gone, status.node_id, spec.id, failed)
    touched.store(write)
    write.put(STATUSES, spec.id, status.replace(attached=kept))


def storage_failure(status: WorkloadStatus) -> str:
    """Say why the node could not attach the volumes; blank when it could, or does not say."""
    reason = status.status_info.reason
    if status.actual != Actual.FAILED or reason is None or reason.code not in STORAGE_FAILURES:
        return ""
    return reason.message or reason.code


def release(write: Write[Any], view: View, status: WorkloadStatus, now: datetime) -> None:
    """Detach what the copy of the present assignment had, which is gone by the word of its node."""
    if status.attached and status.node_id:
        touched = _Touched(view, now, status.attached)
        touched.detach(status.attached, status.node_id, status.id)
        touched.store(write)


def settle(write: Write[Any], view: View, owed: Tombstone) -> None:
    """Detach what a copy had that was left behind on a node and is gone; a newer one there keeps what it has."""
    if not owed.volumes:
        return
    view.require([Ref(STATUSES, owed.workload_id)])
    status = view.get(STATUSES, owed.workload_id).record
    kept = status.attached if status and status.node_id == owed.node_id else ()
    gone = [i for i in owed.volumes if i not in kept]
    touched = _Touched(view, None, gone)
    touched.detach(gone, owed.node_id, owed.workload_id)
    touched.store(write)


def forget(
    write: Write[Any], view: View, spec: WorkloadSpec, status: WorkloadStatus | None, now: datetime, *, owed: bool
) -> None:
    """Note that the records of a workload go.

    owed: its node still has to remove the copy, so what is attached stays so.
    """
    ids = tuple(dict.fromkeys((*volume_ids(spec.managed_volumes), *(status.attached if status else ()))))
    if not ids:
        return
    touched = _Touched(view, now, ids)
    if status and status.node_id and not owed:
        touched.detach(status.attached, status.node_id, spec.id)
    for identifier in ids:
        touched.unname(identifier, spec.id)
    touched.store(write)


class _Touched:
    """The volumes and attachments that one transaction changes."""

    def __init__(self, view: View, now: datetime | None, ids: Iterable[str]) -> None:
        """Have these volumes read. now: None where nobody can tell the time; only removals need none."""
        view.require(Ref(VOLUMES, identifier) for identifier in ids)
        self._view = view
        self._now = now
        self._volumes: dict[str, ManagedVolumeRecord] = {}
        self._attachments: dict[str, VolumeAttachmentRecord | None] = {}

    def volume(self, identifier: str) -> ManagedVolumeRecord | None:
        """Return a volume as it will be."""
        if identifier in self._volumes:
            return self._volumes[identifier]
        self._view.require([Ref(VOLUMES, identifier)])
        return self._view.get(VOLUMES, identifier).record

    def put_volume(self, volume: ManagedVolumeRecord) -> None:
        """Change a volume."""
        self._volumes[volume.id] = volume

    def name(self, spec: WorkloadSpec, old: WorkloadSpec | None) -> None:
        """Note that a spec names its volumes, and no more those that only the old one named."""
        for volume in spec.managed_volumes:
            known = self.volume(volume_id(volume))
            if why := objection_to(known, volume, spec.id):
                raise Refused(f'workload "{spec.id}": {why}')
            self.put_volume(named_by(known, volume, spec.id, self._now))
        kept = volume_ids(spec.managed_volumes)
        for identifier in volume_ids(old.managed_volumes if old else ()):
            if identifier not in kept:
                self.unname(identifier, spec.id)

    def unname(self, identifier: str, workload_id: str) -> None:
        """Note that a workload names the volume no more."""
        if known := self.volume(identifier):
            self.put_volume(known.unreferenced(workload_id))

    def attach(self, spec: WorkloadSpec, node_id: str, *, frees: bool) -> None:
        """Attach all volumes of a spec on a node; with `frees`, those of one node only there."""
        elsewhere = self._elsewhere(spec, node_id) if frees else {}
        self._view.require(
            [
                Ref(ATTACHMENTS, attachment_id(node, spec.id, identifier))
                for identifier in volume_ids(spec.managed_volumes)
                for node in (node_id, *elsewhere.get(identifier, ()))
            ]
        )
        for volume in spec.managed_volumes:
            identifier = volume_id(volume)
            self.detach([identifier], elsewhere.get(identifier, ()), spec.id)
            # A spec of another system's making may have no records of its volumes yet.
            known = self.volume(identifier) or named_by(None, volume, spec.id, self._now)
            self.put_volume(known.referenced(spec.id).attached(node_id, spec.id))
            self._attach_one(volume, node_id, spec.id)

    def _elsewhere(self, spec: WorkloadSpec, node_id: str) -> dict[str, tuple[str, ...]]:
        """Return, of each volume that one node only may use, the other nodes where the workload has it attached."""
        found = {}
        for identifier in volume_ids(spec.managed_volumes):
            known = self.volume(identifier)
            if known and known.access_mode == READ_WRITE_ONCE:
                found[identifier] = tuple(n for n in known.nodes_of(spec.id) if n != node_id)
        return found

    def _attach_one(self, volume: ManagedVolume, node_id: str, workload_id: str) -> None:
        identifier = attachment_id(node_id, workload_id, volume_id(volume))
        known = self._view.get(ATTACHMENTS, identifier).record
        base = known or VolumeAttachmentRecord(
            id=ATTACHMENTS.key(identifier),
            volume_id=volume_id(volume),
            workload_id=workload_id,
            node_id=node_id,
            driver=driver_name(volume.driver),
            created_at=self._now,
            last_transition=self._now,
        )
        wanted = base.replace(mount_path=volume.mount_path, read_only=volume.read_only, phase=AttachmentPhase.ATTACHING)
        self._attachments[identifier] = wanted

    def detach(self, ids: Sequence[str], nodes: str | Sequence[str], workload_id: str, error: str = "") -> None:
        """Detach volumes of a workload on these nodes. error: why they were never attached."""
        nodes = (nodes,) if isinstance(nodes, str) else nodes
        named = [(i, node, attachment_id(node, workload_id, i)) for i in ids for node in nodes]
        self._view.require([Ref(VOLUMES, i) for i in ids] + [Ref(ATTACHMENTS, key) for _, _, key in named])
        for identifier, node, key in named:
            self._attachments[key] = None
            if known := self.volume(identifier):
                after = known.detached(node, workload_id)
                self.put_volume(after.replace(last_error=error) if error else after)

    def store(self, write: Write[Any]) -> None:
        """Write what has changed; a volume that nobody wants or uses any more goes."""
        for identifier, volume in self._volumes.items():
            stored = self._view.get(VOLUMES, identifier).record
            if volume.is_over:
                write.delete(VOLUMES, identifier)
            elif volume != stored:
                write.put(VOLUMES, identifier, volume.replace(updated_at=self._now or volume.updated_at))
        for key, attachment in self._attachments.items():
            if attachment is None:
                write.delete(ATTACHMENTS, key)
            elif attachment != self._view.get(ATTACHMENTS, key).record:
                write.put(ATTACHMENTS, key, attachment.replace(updated_at=self._now or attachment.updated_at))


async def free_claims(store: Store, cache: Cache, node_id: str) -> int:
    """Detach what a node has to remove anyway, once an operator has fenced or removed it; return how many volumes.

    Claims of workloads that are still assigned to the node go with their moves.
    """
    known = (volume.record for volume in cache.all(VOLUMES).values())
    holders = {split_holder(holder) for volume in known if volume for holder in volume.attachments}
    freed = 0
    for workload_id in sorted(workload for node, workload in holders if node == node_id):
        refs: list[Ref[Any]] = [Ref(NODES, node_id), Ref(TOMBSTONES, f"{node_id}/{workload_id}")]
        freed += await store.transact(refs, partial(_freeing, node_id, workload_id))
    return freed


def _freeing(node_id: str, workload_id: str, view: View) -> Write[int]:
    identifier = f"{node_id}/{workload_id}"
    owed, node = view.get(TOMBSTONES, identifier).record, view.get(NODES, node_id).record
    if owed is None or not owed.volumes or (node and not node.is_fenced):
        return Write(0)
    write = Write(len(owed.volumes))
    settle(write, view, owed)
    write.put(TOMBSTONES, identifier, owed.replace(volumes=()))
    return write


# For the agents


def kept_volumes(cache: Cache, node_id: str, workload_id: str) -> list[str]:
    """Return the volumes whose data a node must keep when it removes a copy, whatever their retain policy.

    Those are the ones that another workload names, and, as long as the workload is wanted, all that
    have their data on this very node: it may only be leaving for a while. What is known here may be
    a little old; that a workload is wanted no more is then learned late, and data stays that could go.
    """
    spec = cache.get(SPECS, workload_id).record
    if spec is None or not spec.managed_volumes:
        return []
    wanted = spec.desired_state != Desired.DELETED
    found = []
    for identifier in volume_ids(spec.managed_volumes):
        known = cache.get(VOLUMES, identifier).record
        if known and ((wanted and known.node_id == node_id) or set(known.workload_refs) - {workload_id}):
            found.append(identifier)
    return found


# For audits


@dataclass(frozen=True, slots=True)
class Dangling:
    """An attachment, or a claim in the record of a volume, that nothing stands behind."""

    volume_id: str
    node_id: str
    workload_id: str
    why: str


def dangling(
    volumes: Mapping[str, ManagedVolumeRecord],
    attachments: Mapping[str, VolumeAttachmentRecord],
    statuses: Mapping[str, WorkloadStatus],
    tombstones: Mapping[str, Tombstone],
) -> list[Dangling]:
    """Return the attachments of no copy, and those on which record and claim differ; all maps are by id."""
    found = []
    claimed = {
        attachment_id(node, holder, volume.id): (volume.id, node, holder)
        for volume in volumes.values()
        for node, holder in map(split_holder, volume.attachments)
    }
    recorded = {key: (a.volume_id, a.node_id, a.workload_id) for key, a in attachments.items()}
    for key, (volume, node, holder) in sorted({**recorded, **claimed}.items()):
        if why := _why_dangling(volume, node, holder, statuses, tombstones):
            found.append(Dangling(volume, node, holder, why))
        elif key not in claimed:
            found.append(Dangling(volume, node, holder, "the volume's record does not know of it"))
        elif key not in recorded:
            found.append(Dangling(volume, node, holder, "it has no record of its own"))
    return found


def _why_dangling(
    volume: str, node: str, holder: str, statuses: Mapping[str, WorkloadStatus], tombstones: Mapping[str, Tombstone]
) -> str:
    status, owed = statuses.get(holder), tombstones.get(f"{node}/{holder}")
    if status and status.node_id == node and volume in status.attached:
        return ""
    if owed and volume in owed.volumes:
        return ""
    return "no copy on that node uses it" if status else "there is no such workload"


async def find_dangling(store: Store) -> list[Dangling]:
    """Read all that concerns attachments, and return those that nothing stands behind. Costs a scan of four tables."""
    found: list[Any] = []
    revision = 0
    for table in (VOLUMES, ATTACHMENTS, STATUSES, TOMBSTONES):
        values, revision = await store.etcd.scan(table.prefix, revision=revision)
        found.append({table.id_of(v.key): table.model.from_json(v.value) for v in values if table.owns(v.key)})
    return dangling(*found)
