"""Disks and volumes over `persys.control.v1.AgentControl`: standalone disks are made here, all volumes are shown."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from scheduler.domain.errors import InvalidInput, NotFound, Refused
from scheduler.domain.ids import check_id
from scheduler.domain.volume import (
    DELETE,
    DISK_PREFIX,
    LOCAL,
    READ_WRITE_ONCE,
    ManagedVolumeRecord,
    VolumePhase,
    phase_shown,
    split_holder,
)
from scheduler.front import fields
from scheduler.front.convert import ACCESS_MODES, DRIVERS, FS_TYPE, FS_TYPE_WORDS, RETAIN_POLICIES
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.validate import MAX_DISK_GB
from scheduler.front.views import timestamp
from scheduler.pb import control_pb2 as pb
from scheduler.store import disks
from scheduler.store.keys import NODES, SPECS, STATUSES, VOLUMES

DEFAULT_GB = 1
DEFAULT_FS = "ext4"
DEFAULT_PATH = "/data"
_SLICE = 500
_LONGEST_ID = 300


class Disks:
    """Some methods of the service, named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and who reads."""
        self._parts = parts
        self._reader = reader

    async def CreateDisk(self, request: pb.CreateDiskRequest, _context: Any) -> pb.CreateDiskResponse:  # noqa: N802 - the wire's name
        """Make a disk. Names need not be unique: what counts is the id that it is given."""
        wanted = _checked(request)
        if wanted.node_id and (await self._parts.store.get(NODES, wanted.node_id)).record is None:
            raise InvalidInput("node_id", f'there is no node "{wanted.node_id}"')
        now = self._parts.now()
        made = wanted.replace(id=f"{DISK_PREFIX}{uuid.uuid4()}", created_at=now, updated_at=now)
        disk = await disks.create_disk(self._parts.store, made)
        await self._reader.see_own_writes()
        return pb.CreateDiskResponse(disk=self._view(disk))

    async def ListDisks(self, _request: pb.ListDisksRequest, _context: Any) -> pb.ListDisksResponse:  # noqa: N802
        """Show all disks, and the volumes that workloads have made."""
        self._reader.require_listed()
        answer = pb.ListDisksResponse(stale=self._reader.stale)
        known = sorted(self._parts.cache.all(VOLUMES).items())
        for place in range(0, len(known), _SLICE):
            answer.disks.extend(self._view(v.record) for _, v in known[place : place + _SLICE] if v.record)
            await asyncio.sleep(0)
        return answer

    async def GetDisk(self, request: pb.GetDiskRequest, _context: Any) -> pb.GetDiskResponse:  # noqa: N802
        """Show a disk or a volume."""
        identifier = _checked_id(request.disk_id)
        known = self._parts.cache.get(VOLUMES, identifier).record
        known = known or (await self._parts.store.get(VOLUMES, identifier)).record
        if known is None:
            raise NotFound(f'there is no disk "{identifier}"')
        return pb.GetDiskResponse(disk=self._view(known))

    async def DeleteDisk(self, request: pb.DeleteDiskRequest, _context: Any) -> pb.DeleteDiskResponse:  # noqa: N802
        """Remove a disk's record. What is gone or never was counts as removed; what is used only by force."""
        try:
            await disks.delete_disk(self._parts.store, _checked_id(request.disk_id), force=request.force)
        except Refused as error:
            return pb.DeleteDiskResponse(success=False, error_message=str(error))
        await self._reader.see_own_writes()
        return pb.DeleteDiskResponse(success=True)

    def _view(self, disk: ManagedVolumeRecord) -> pb.DiskView:
        """Show a volume; how it is follows from how its workloads are."""
        cache = self._parts.cache
        holders = [split_holder(holder) for holder in disk.attachments]
        statuses = [s for node, w in holders if (s := cache.get(STATUSES, w).record) and s.node_id == node]
        specs = [spec for w in disk.workload_refs if (spec := cache.get(SPECS, w).record)]
        phase, error = phase_shown(disk, specs, statuses)
        return pb.DiskView(
            id=disk.id,
            name=disk.name,
            driver=disk.driver,
            size_gb=disk.size_gb,
            fs_type=disk.fs_type,
            access_mode=disk.access_mode,
            retain_policy=disk.retain_policy,
            phase=phase,
            last_error=error,
            node_id=disk.node_id,
            device=disk.device,
            standalone=disk.standalone,
            mount_path=disk.mount_path,
            workload_refs=disk.workload_refs,
            attached_nodes=disk.attached_nodes,
            created_at=timestamp(disk.created_at),
            updated_at=timestamp(disk.updated_at),
        )


def _checked_id(value: str) -> str:
    """Return the id of a disk, "disk-…", or of a volume, "driver:name"."""
    fields.line("disk_id", value, _LONGEST_ID, blank=False)
    if "/" in value:
        raise InvalidInput("disk_id", f"{fields.shown(value)} must not contain '/'")
    return value


def _checked(request: pb.CreateDiskRequest) -> ManagedVolumeRecord:
    """Return the disk that is asked for, without an id."""
    name = check_id("name", request.name)
    driver = fields.choice("driver", request.driver, DRIVERS)
    if request.node_id:
        check_id("node_id", request.node_id)
        if driver != LOCAL:
            raise InvalidInput("node_id", f"does not belong to a disk of driver {driver}, which every node reaches")
    fs_type = request.fs_type or ("" if driver == LOCAL else DEFAULT_FS)
    if fs_type:
        fields.matching("fs_type", fs_type, FS_TYPE, FS_TYPE_WORDS)
    return ManagedVolumeRecord(
        id="",
        name=name,
        driver=driver,
        size_gb=fields.number("size_gb", max(request.size_gb, DEFAULT_GB), DEFAULT_GB, MAX_DISK_GB),
        access_mode=fields.choice("access_mode", request.access_mode, ACCESS_MODES, blank=READ_WRITE_ONCE),
        fs_type=fs_type,
        retain_policy=fields.choice("retain_policy", request.retain_policy, RETAIN_POLICIES, blank=DELETE),
        phase=VolumePhase.PENDING if driver == LOCAL else VolumePhase.AVAILABLE,
        node_id=request.node_id,
        device=f"rbd:{name}" if driver == "ceph-rbd" else "",
        standalone=True,
        mount_path=fields.path("mount_path", request.mount_path) if request.mount_path else DEFAULT_PATH,
    )
