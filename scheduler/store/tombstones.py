"""Tombstones: stops that a node owes. Every copy with an epoch up to the tombstone's must go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scheduler.domain.workload import Tombstone
from scheduler.store.keys import TOMBSTONES
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write


def tombstone_id(node_id: str, workload_id: str) -> str:
    """Return the id of a tombstone in its table."""
    return f"{node_id}/{workload_id}"


def split_tombstone_id(identifier: str) -> tuple[str, str]:
    """Return the node and the workload of a tombstone's id."""
    node_id, _, workload_id = identifier.partition("/")
    return node_id, workload_id


def put_tombstone(write: Write[Any], view: View, tombstone: Tombstone) -> bool:
    """Add a tombstone to a write, unless one for this epoch or a later one stands; return whether it was added.

    The transaction must name the tombstone among its refs.
    """
    identifier = tombstone_id(tombstone.node_id, tombstone.workload_id)
    standing = view.get(TOMBSTONES, identifier).record
    if standing and standing.epoch >= tombstone.epoch:
        return False
    write.put(TOMBSTONES, identifier, tombstone)
    return True


async def add_tombstone(
    store: Store, node_id: str, workload_id: str, epoch: int, *, now: datetime, guards: Sequence[Guard] = ()
) -> bool:
    """Let the node owe the removal of every copy up to this epoch; return whether that was news."""
    tombstone = Tombstone(node_id=node_id, workload_id=workload_id, epoch=epoch, created_at=now)

    def decide(view: View) -> Write[bool]:
        write = Write(result=True)
        write.result = put_tombstone(write, view, tombstone)
        return write

    return await store.transact([Ref(TOMBSTONES, tombstone_id(node_id, workload_id))], decide, guards=guards)


async def clear_tombstone(
    store: Store, node_id: str, workload_id: str, epoch: int, *, guards: Sequence[Guard] = ()
) -> bool:
    """Remove a tombstone that was carried out for this epoch; one raised to a later epoch meanwhile stays."""
    identifier = tombstone_id(node_id, workload_id)

    def decide(view: View) -> Write[bool]:
        standing = view.get(TOMBSTONES, identifier).record
        if standing is None or standing.epoch > epoch:
            return Write(result=False)
        write = Write(result=True)
        write.delete(TOMBSTONES, identifier)
        return write

    return await store.transact([Ref(TOMBSTONES, identifier)], decide, guards=guards)
