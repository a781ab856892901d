"""Tombstones: stops that a node owes. Every copy with an epoch up to the tombstone's must go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scheduler.domain.ledger import left_by
from scheduler.domain.workload import Tombstone
from scheduler.store import volumes
from scheduler.store.keys import LEDGERS, TOMBSTONES
from scheduler.store.store import Store
from scheduler.store.write import NO_BASIS, Basis, Guard, Ref, View, Write


def tombstone_id(node_id: str, workload_id: str) -> str:
    """Return the id of a tombstone in its table."""
    return f"{node_id}/{workload_id}"


def split_tombstone_id(identifier: str) -> tuple[str, str]:
    """Return the node and the workload of a tombstone's id."""
    node_id, _, workload_id = identifier.partition("/")
    return node_id, workload_id


def put_tombstone(write: Write[Any], view: View, tombstone: Tombstone) -> bool:
    """Add a tombstone to a write, unless one for this epoch or a later one stands; return whether it was added.

    One that waits for a copy elsewhere goes on waiting when it is raised. The transaction must name
    the tombstone among its refs.
    """
    identifier = tombstone_id(tombstone.node_id, tombstone.workload_id)
    standing = view.get(TOMBSTONES, identifier).record
    attached = tuple(dict.fromkeys((*(standing.volumes if standing else ()), *tombstone.volumes)))
    if standing and standing.epoch >= tombstone.epoch:
        if attached != standing.volumes:
            write.put(TOMBSTONES, identifier, standing.replace(volumes=attached))
        return False
    if standing and standing.after_epoch and not tombstone.after_epoch:
        tombstone = standing.replace(epoch=tombstone.epoch)
    write.put(TOMBSTONES, identifier, tombstone.replace(volumes=attached))
    return True


async def add_tombstone(
    store: Store,
    node_id: str,
    workload_id: str,
    epoch: int,
    *,
    now: datetime,
    guards: Sequence[Guard] = (),
    basis: Basis = NO_BASIS,
) -> bool:
    """Let the node owe the removal of every copy up to this epoch; return whether that was news.

    basis: what this was decided on; when it has changed since, nothing is owed.
    """
    tombstone = Tombstone(node_id=node_id, workload_id=workload_id, epoch=epoch, created_at=now)

    def decide(view: View) -> Write[bool]:
        write = Write(result=False)
        if basis.holds(view):
            write.result = put_tombstone(write, view, tombstone)
        return write

    refs = [Ref(TOMBSTONES, tombstone_id(node_id, workload_id)), *basis.refs]
    return await store.transact(refs, decide, guards=guards)


async def clear_tombstone(
    store: Store, node_id: str, workload_id: str, epoch: int, *, guards: Sequence[Guard] = ()
) -> bool:
    """Remove a tombstone that was carried out for this epoch; one raised to a later epoch meanwhile stays.

    With it goes what the old copy of a workload that has moved on still took up on the node.
    """
    identifier = tombstone_id(node_id, workload_id)

    def decide(view: View) -> Write[bool]:
        standing = view.get(TOMBSTONES, identifier).record
        if standing is None or standing.epoch > epoch:
            return Write(result=False)
        write = Write(result=True)
        write.delete(TOMBSTONES, identifier)
        release_left(write, view, node_id, workload_id, epoch)
        volumes.settle(write, view, standing)
        return write

    refs: list[Ref[Any]] = [Ref(TOMBSTONES, identifier), Ref(LEDGERS, node_id)]
    return await store.transact(refs, decide, guards=guards)


def release_left(write: Write[Any], view: View, node_id: str, workload_id: str, epoch: int) -> None:
    """Release what copies of a workload up to this epoch still take up on a node that it has left."""
    ledger = view.get(LEDGERS, node_id).record
    left = ledger.commitments.get(left_by(workload_id)) if ledger else None
    if ledger and left and left.epoch <= epoch:
        write.put(LEDGERS, node_id, ledger.without_left(workload_id))
