"""Volumes that the platform keeps: what is stored of them, who uses them, and where they may be used. Pure.

A volume is named by its driver and name, so two workloads that name the same one share it. A
standalone disk has an id of its own and lives until somebody deletes it. *References* say which
workloads name a volume, *attachments* on which nodes a copy may use it: an access mode counts
attachments, and a volume is only forgotten when it has neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from scheduler.domain.record import Record
from scheduler.domain.workload import Actual, Desired, ManagedVolume, WorkloadSpec, WorkloadStatus

LOCAL = "local"
READ_WRITE_ONCE = "ReadWriteOnce"
READ_ONLY_MANY = "ReadOnlyMany"
READ_WRITE_MANY = "ReadWriteMany"
ACCESS_MODES = (READ_WRITE_ONCE, READ_ONLY_MANY, READ_WRITE_MANY)
DELETE = "Delete"
RETAIN = "Retain"
DISK_PREFIX = "disk-"
MAX_USERS = 2000
"""Workloads that share one volume: its record stays below 300 KB."""

_DRIVERS = {"": LOCAL, "rbd": "ceph-rbd"}


class VolumePhase(StrEnum):
    """How a volume is."""

    PENDING = "Pending"
    """A local disk that no workload has used yet."""
    AVAILABLE = "Available"
    PROVISIONED = "Provisioned"
    """A workload names it, and does not run with it."""
    ATTACHED = "Attached"
    RELEASED = "Released"
    RETAINED = "Retained"
    DELETING = "Deleting"
    ERROR = "Error"


class AttachmentPhase(StrEnum):
    """How far an attachment is."""

    ATTACHING = "Attaching"
    ATTACHED = "Attached"
    DETACHING = "Detaching"
    ERROR = "Error"


class ManagedVolumeRecord(Record):
    """`/volumes/{id}`: a managed volume or a standalone disk.

    Its phase follows from its workloads and is derived when it is read; what is stored is how it
    would be without any of them running.
    """

    id: str
    name: str
    driver: str = LOCAL
    size_gb: int = 0
    access_mode: str = ""
    """Blank: nothing is enforced."""
    fs_type: str = ""
    retain_policy: str = DELETE
    phase: str = VolumePhase.PROVISIONED
    last_error: str = ""
    workload_refs: tuple[str, ...] = ()
    """Workloads whose spec names it."""
    attached_nodes: tuple[str, ...] = ()
    """The nodes of the attachments."""
    attachments: tuple[str, ...] = ()
    """"{node}/{workload}" of each copy that may use it."""
    node_id: str = ""
    """Of a local volume: where its data is."""
    device: str = ""
    standalone: bool = False
    mount_path: str = ""
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def others(self, workload_id: str) -> list[str]:
        """Return the nodes on which other workloads have it attached."""
        return sorted({node for node, holder in map(split_holder, self.attachments) if holder != workload_id})

    def nodes_of(self, workload_id: str) -> list[str]:
        """Return the nodes on which a workload has it attached."""
        return [node for node, holder in map(split_holder, self.attachments) if holder == workload_id]

    def is_attached(self, node_id: str, workload_id: str) -> bool:
        """Whether a copy of the workload may use it on the node."""
        return holder_of(node_id, workload_id) in self.attachments

    def referenced(self, workload_id: str) -> ManagedVolumeRecord:
        """Return the record after a workload names it."""
        if workload_id in self.workload_refs:
            return self
        return self._rested(workload_refs=(*self.workload_refs, workload_id))

    def unreferenced(self, workload_id: str) -> ManagedVolumeRecord:
        """Return the record after a workload names it no more."""
        if workload_id not in self.workload_refs:
            return self
        return self._rested(workload_refs=tuple(w for w in self.workload_refs if w != workload_id))

    def attached(self, node_id: str, workload_id: str) -> ManagedVolumeRecord:
        """Return the record after a copy may use it on a node; a local one lives there from then on."""
        found = self._holding({*self.attachments, holder_of(node_id, workload_id)}).replace(last_error="")
        return found.replace(node_id=node_id) if self.driver == LOCAL else found

    def detached(self, node_id: str, workload_id: str) -> ManagedVolumeRecord:
        """Return the record after that copy is gone."""
        return self._holding(set(self.attachments) - {holder_of(node_id, workload_id)})

    @property
    def is_over(self) -> bool:
        """Whether nobody wants or uses it, and its policy does not keep it."""
        kept = self.standalone or self.retain_policy == RETAIN
        return not (kept or self.workload_refs or self.attachments)

    def _holding(self, holders: set[str]) -> ManagedVolumeRecord:
        if holders == set(self.attachments):
            return self
        nodes = sorted({split_holder(holder)[0] for holder in holders})
        return self._rested(attachments=tuple(sorted(holders)), attached_nodes=tuple(nodes))

    def _rested(self, **changes: object) -> ManagedVolumeRecord:
        changed = self.replace(**changes)
        return changed.replace(phase=resting_phase(changed))


class VolumeAttachmentRecord(Record):
    """`/attachments/{node}/{workload}/{volume}`: a copy of a workload may use a volume on a node."""

    id: str
    """The key itself."""
    volume_id: str
    workload_id: str
    node_id: str
    driver: str = LOCAL
    mount_path: str = ""
    read_only: bool = False
    phase: str = AttachmentPhase.ATTACHING
    last_error: str = ""
    last_transition: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


def driver_name(name: str) -> str:
    """Return the one name of a storage driver; blank means local."""
    lowered = name.strip().lower().replace("_", "-")
    return _DRIVERS.get(lowered, lowered)


def volume_id(volume: ManagedVolume) -> str:
    """Return the id of the volume that a spec names: a disk's own, else its driver and name."""
    return volume.disk_id or f"{driver_name(volume.driver)}:{volume.name}"


def volume_ids(volumes: Iterable[ManagedVolume]) -> tuple[str, ...]:
    """Return the ids of volumes."""
    return tuple(volume_id(volume) for volume in volumes)


def holder_of(node_id: str, workload_id: str) -> str:
    """Return how an attachment is written in the record of its volume."""
    return f"{node_id}/{workload_id}"


def split_holder(holder: str) -> tuple[str, str]:
    """Return the node and the workload of an attachment."""
    node_id, _, workload_id = holder.partition("/")
    return node_id, workload_id


def resting_phase(volume: ManagedVolumeRecord) -> VolumePhase:
    """Return the phase of a volume that nothing runs with."""
    if volume.workload_refs or volume.attachments:
        return VolumePhase.PROVISIONED
    if volume.standalone:
        return VolumePhase.PENDING if volume.driver == LOCAL and not volume.node_id else VolumePhase.AVAILABLE
    return VolumePhase.RETAINED if volume.retain_policy == RETAIN else VolumePhase.RELEASED


def phase_shown(
    volume: ManagedVolumeRecord, specs: Iterable[WorkloadSpec], statuses: Iterable[WorkloadStatus]
) -> tuple[str, str]:
    """Return the phase of a volume and its error, from how its workloads do.

    specs: of those that name it; statuses: of those that have it attached.
    """
    known = list(statuses)
    if any(status.actual == Actual.RUNNING for status in known):
        return VolumePhase.ATTACHED, ""
    if failed := next((status for status in known if status.actual == Actual.FAILED), None):
        return VolumePhase.ERROR, failure_of(failed)
    if volume.last_error:
        return VolumePhase.ERROR, volume.last_error
    wanted = [spec for spec in specs if spec.desired_state != Desired.DELETED]
    ends = volume.workload_refs and not wanted and not volume.standalone and volume.retain_policy != RETAIN
    return (VolumePhase.DELETING if ends else volume.phase), ""


def attachment_phase(spec: WorkloadSpec | None, status: WorkloadStatus | None, node_id: str) -> AttachmentPhase:
    """Return how far an attachment on a node is, from how its workload does."""
    if spec is None or status is None or status.node_id != node_id or spec.desired_state == Desired.DELETED:
        return AttachmentPhase.DETACHING
    if status.actual == Actual.FAILED:
        return AttachmentPhase.ERROR
    return AttachmentPhase.ATTACHED if status.actual == Actual.RUNNING else AttachmentPhase.ATTACHING


def failure_of(status: WorkloadStatus) -> str:
    """Say why a workload has failed."""
    info = status.status_info
    return info.failure_reason or (info.reason.message if info.reason else "")


def objection_to(known: ManagedVolumeRecord | None, wanted: ManagedVolume, workload_id: str) -> str:
    """Say why a workload must not name this volume as it does; blank when it may."""
    name = volume_id(wanted)
    if known is None:
        return f'there is no disk "{wanted.disk_id}"' if wanted.disk_id else ""
    others = [other for other in known.workload_refs if other != workload_id]
    if len(others) >= MAX_USERS:
        return f"volume {name} is used by {len(others)} workloads, {MAX_USERS} are allowed"
    if known.standalone != bool(wanted.disk_id):
        return f"volume {name} is a standalone disk; bind it by its id"
    asked = wanted.access_mode
    if others and asked != known.access_mode:
        is_of, by = known.access_mode or "of no access mode", f'used by "{others[0]}"'
        return f"volume {name} is {is_of} and {by}; {asked or 'none'} asked"
    if asked == READ_WRITE_ONCE != known.access_mode and len(known.attached_nodes) > 1:
        return f"volume {name} is still attached on {', '.join(known.attached_nodes)}; it cannot be {asked} yet"
    return ""


def named_by(
    known: ManagedVolumeRecord | None, wanted: ManagedVolume, workload_id: str, now: datetime | None
) -> ManagedVolumeRecord:
    """Return the record of a volume after a workload's spec names it.

    A standalone disk stays what it is. Of another, the only workload that names it says how it
    is; where there are several, none takes away what another needs: the larger size, and the data.
    """
    if known is None:
        made = ManagedVolumeRecord(
            id=volume_id(wanted),
            name=wanted.name,
            driver=driver_name(wanted.driver),
            size_gb=wanted.size_gb,
            access_mode=wanted.access_mode,
            fs_type=wanted.fs_type,
            retain_policy=wanted.retain_policy,
            mount_path=wanted.mount_path,
            created_at=now,
        )
        return made.referenced(workload_id)
    known = known.referenced(workload_id)
    if known.standalone:
        return known
    alone = known.workload_refs == (workload_id,)
    keeps = RETAIN in (wanted.retain_policy, "" if alone else known.retain_policy)
    return known.replace(
        size_gb=wanted.size_gb if alone else max(wanted.size_gb, known.size_gb),
        access_mode=wanted.access_mode,
        fs_type=wanted.fs_type or known.fs_type,
        retain_policy=RETAIN if keeps else DELETE,
        mount_path=wanted.mount_path if alone else known.mount_path,
    )


def nodes_allowed(
    volume: ManagedVolumeRecord, workload_id: str, *, movable: bool, frees: bool
) -> tuple[str, ...] | None:
    """Return the only nodes on which a workload may use a volume now; None: any.

    movable: the workload may leave the data of a local volume behind.
    frees: no copy of the workload itself that was left elsewhere can use the volume any more.
    """
    others = volume.others(workload_id)
    if volume.driver == LOCAL and volume.node_id and (others or not movable):
        return (volume.node_id,)
    if volume.access_mode != READ_WRITE_ONCE:
        return None
    nodes = others if frees else sorted({*others, *volume.nodes_of(workload_id)})
    return tuple(nodes) or None
