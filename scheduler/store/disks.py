"""Standalone disks: made and removed by people; workloads only refer to them."""

from __future__ import annotations

from typing import Any

from scheduler.domain.errors import Refused
from scheduler.domain.volume import ManagedVolumeRecord, split_holder
from scheduler.store.keys import ATTACHMENTS, VOLUMES
from scheduler.store.store import Store
from scheduler.store.volumes import attachment_id
from scheduler.store.write import Ref, View, Write

_SHOWN = 5


async def create_disk(store: Store, disk: ManagedVolumeRecord) -> ManagedVolumeRecord:
    """Store a disk under its id, unless there is one; return what is stored."""

    def decide(view: View) -> Write[ManagedVolumeRecord]:
        known = view.get(VOLUMES, disk.id).record
        if known:
            return Write(known)
        write = Write(disk)
        write.put(VOLUMES, disk.id, disk)
        return write

    return await store.transact([Ref(VOLUMES, disk.id)], decide)


async def delete_disk(store: Store, identifier: str, *, force: bool) -> ManagedVolumeRecord | None:
    """Remove the record of a disk or of another volume; return what it was, None when there was none.

    force: also while workloads name it or have it attached. Raises Refused.
    """

    def decide(view: View) -> Write[ManagedVolumeRecord | None]:
        known = view.get(VOLUMES, identifier).record
        write: Write[ManagedVolumeRecord | None] = Write(known)
        if known is None:
            return write
        holders = sorted({*known.workload_refs, *(workload for _, workload in map(split_holder, known.attachments))})
        if holders and not force:
            raise Refused(_in_use(identifier, holders))
        attachments: list[Ref[Any]] = [
            Ref(ATTACHMENTS, attachment_id(*split_holder(holder), identifier)) for holder in known.attachments
        ]
        view.require(attachments)
        for ref in attachments:
            write.delete(ATTACHMENTS, ref.id)
        write.delete(VOLUMES, identifier)
        return write

    return await store.transact([Ref(VOLUMES, identifier)], decide)


def _in_use(identifier: str, holders: list[str]) -> str:
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    named = ", ".join(f'"{holder}"' for holder in holders[:_SHOWN])
    return f'disk "{identifier}" is used by {named}{more}; unbind it there first, or use force'
