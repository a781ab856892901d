"""Small records for tests of the store, and decisions over them."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.domain.shard import FenceRecord, SlotRecord
from scheduler.store.keys import FENCES, SLOTS
from scheduler.store.write import Ref, View, Write

COUNTER = Ref(FENCES, "0/reconcile")
OTHER = Ref(FENCES, "1/reconcile")
SLOT = Ref(SLOTS, "reconcile")


def fence(slot: int) -> FenceRecord:
    """Make a record that counts."""
    return FenceRecord(term=1, slot=slot)


def slot(number: int) -> SlotRecord:
    """Make a record of another table."""
    return SlotRecord(loop="reconcile", slot=number, term=1)


def count_of(view: View, ref: Ref[FenceRecord] = COUNTER) -> int:
    """Read a counter; an absent one is 0."""
    record = view.get(ref.table, ref.id).record
    return record.slot if record else 0


def add_one(view: View) -> Write[int]:
    """Count up, and return the new count."""
    new = count_of(view) + 1
    write = Write(new)
    write.put(FENCES, COUNTER.id, fence(new))
    return write


def set_to(number: int) -> Callable[[View], Write[str]]:
    """Make a decision that sets the counter."""

    def decide(_view: View) -> Write[str]:
        write = Write("set")
        write.put(FENCES, COUNTER.id, fence(number))
        return write

    return decide
