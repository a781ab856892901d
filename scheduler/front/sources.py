"""What a spec refers to and does not contain: disks that people have made, and compose files in git."""

from __future__ import annotations

import re

from scheduler.domain.errors import InvalidInput
from scheduler.domain.volume import READ_ONLY_MANY, RETAIN, ManagedVolumeRecord
from scheduler.domain.workload import ManagedVolume, WorkloadSpec
from scheduler.front import fields
from scheduler.front.convert import MAX_VOLUMES, check_exclusive, distinct_volumes
from scheduler.front.git import GitSource
from scheduler.front.parts import FrontParts
from scheduler.store.keys import VOLUMES
from scheduler.store.write import Ref

DISK_KEYS = ("persys.disk.ids", "disk_ids")
"""Metadata that binds disks to a workload: their ids, with a comma, a semicolon or a blank between them."""
_BETWEEN = re.compile(r"[,;\s]+")


class Sources:
    """Completes specs, for one front."""

    def __init__(self, parts: FrontParts) -> None:
        """Take the front's parts."""
        self._store = parts.store
        self._git = GitSource(parts.settings.git_hosts, parts.settings.git_timeout_seconds)

    async def completed(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Return the spec with all that it refers to. Raises InvalidInput."""
        return await self._git.resolved(await self._with_disks(spec))

    async def _with_disks(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Return the spec with the disks that it binds as volumes of its own."""
        field, ids = disk_ids(spec)
        if not ids:
            return spec
        if spec.type == "compose":
            raise InvalidInput(field, "does not belong to a workload of type compose, whose file names its volumes")
        fields.count(field, ids, MAX_VOLUMES)
        view = await self._store.read([Ref(VOLUMES, identifier) for identifier in ids])
        disks = [_bound(field, identifier, view.get(VOLUMES, identifier).record) for identifier in ids]
        volumes = distinct_volumes(field, (*spec.managed_volumes, *disks))
        return check_exclusive(spec.replace(managed_volumes=volumes))


def disk_ids(spec: WorkloadSpec) -> tuple[str, list[str]]:
    """Return the ids of the disks that a spec binds, and the field that says so; the VM's own metadata counts."""
    for where, metadata in (("spec.metadata", spec.metadata), ("vm.metadata", spec.vm.metadata if spec.vm else {})):
        for key in DISK_KEYS:
            if ids := [part for part in _BETWEEN.split(metadata.get(key, "")) if part]:
                return f"{where}.{key}", list(dict.fromkeys(ids))
    return "", []


def _bound(field: str, identifier: str, disk: ManagedVolumeRecord | None) -> ManagedVolume:
    if disk is None or not disk.standalone:
        raise InvalidInput(field, f"there is no disk {fields.shown(identifier)}")
    return ManagedVolume(
        name=disk.name,
        driver=disk.driver,
        size_gb=disk.size_gb,
        access_mode=disk.access_mode,
        fs_type=disk.fs_type,
        mount_path=disk.mount_path,
        read_only=disk.access_mode == READ_ONLY_MANY,
        # A node never removes the data of a disk: the disk outlives every workload.
        retain_policy=RETAIN,
        disk_id=disk.id,
    )
