"""What a restore changes in records: their epochs, and what was true of nodes only at the time of the backup.

Agents refuse orders of older epochs than they know, and since the backup newer ones have been
given out. So all epochs are raised by the same shift, above every one that anybody can know
(their order stays), and later ones are counted from a base above them. What a node runs
already it keeps: an order of a newer epoch for the same revision changes nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.domain.record import Record
from scheduler.domain.workload import Actual, Assignment, Tombstone, WorkloadStatus
from scheduler.store import keys
from scheduler.store.decode import CorruptRecord, decode
from scheduler.store.kv import KV

GAP = 1 << 32
"""More assignments than can have been made between a backup and its restore."""

_TABLES: tuple[keys.Table[Any], ...] = (
    keys.NODES, keys.LEDGERS, keys.STATUSES, keys.ASSIGNMENTS, keys.TOMBSTONES,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Raise:
    """How epochs are raised."""

    shift: int
    """Added to each epoch of the backup."""
    base: int
    """New epochs are above it."""


def raise_for(records: Iterable[tuple[str, bytes]], *, known: int) -> Raise:
    """Return how to raise the epochs of a backup; `known`: above all that were given out until it was taken."""
    epochs = [epoch for key, value in records for epoch in _epochs(_record(key, value)) if epoch]
    highest = max([known, *epochs])
    shift = highest - min(epochs, default=highest) + GAP
    return Raise(shift, highest + shift)


def raised(key: str, value: bytes, by: Raise, now: datetime) -> bytes:
    """Return the value to store; what is no record of a table that knows epochs stays as it is."""
    record = _record(key, value)
    changed = _changed(record, by.shift, now) if record else None
    return value if changed is None else changed.to_json()


def _record(key: str, value: bytes) -> Record | None:
    table = next((table for table in _TABLES if table.owns(key)), None)
    if table is None:
        return None
    try:
        found: Record | None = decode(table, table.id_of(key), KV(key, value, 1, 1, 1, 0)).record
    except CorruptRecord:
        return None
    return found


def _epochs(record: Record | None) -> Iterable[int]:
    match record:
        case Ledger():
            yield from (one.epoch for one in record.commitments.values())
        case WorkloadStatus():
            yield from (record.epoch, record.vacating)
        case Assignment():
            yield record.epoch
        case Tombstone():
            yield from (record.epoch, record.after_epoch)


def _changed(record: Record, shift: int, now: datetime) -> Record | None:
    def up(epoch: int) -> int:
        return epoch + shift if epoch else 0

    match record:
        case Ledger():
            held = {holder: one.replace(epoch=up(one.epoch)) for holder, one in record.commitments.items()}
            return record.replace(commitments=held)
        case WorkloadStatus():
            return _unconfirmed(record.replace(epoch=up(record.epoch), vacating=up(record.vacating)), now)
        case Assignment():
            return record.replace(epoch=up(record.epoch))
        case Tombstone():
            return record.replace(epoch=up(record.epoch), after_epoch=up(record.after_epoch), confirmed=False)
        case Node():
            return _at_the_begin(record, now)
    return None


def _unconfirmed(status: WorkloadStatus, now: datetime) -> WorkloadStatus:
    """Have the node of an assignment told of it, and asked how it is."""
    if not status.node_id or not status.observed_revision:
        return status
    info = status.status_info.replace(actual_state=Actual.PENDING, last_updated=now)
    return status.replace(observed_revision="", status_info=info)


def _at_the_begin(node: Node, now: datetime) -> Node:
    """Count a lost node's grace anew, and forget an operator's word that it is off: it may have come back since."""
    if node.is_ready:
        return node
    return node.replace(status_updated_at=now, fenced_at=None, fenced_by="")
