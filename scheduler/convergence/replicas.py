"""Which copies of a workload to create, change and remove: pure, from the workload and the copies there are.

Level-triggered: it is asked anew after each change, and what was lost is found again. A copy that
is being removed is waited for; its number is taken again only when it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler.domain.replicas import FIRST_NUMBER, follows, number_of, replica_id
from scheduler.domain.workload import Desired, WorkloadSpec


class What(StrEnum):
    """What to do with one copy."""

    CREATE = "create"
    UPDATE = "update"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Change:
    """One copy that is not as it should be."""

    what: What
    id: str


def change_of(parent: WorkloadSpec | None, identifier: str, number: int, copy: WorkloadSpec | None) -> Change | None:
    """Say what the copy of this number needs; None: nothing, or nothing now.

    parent: None when there is no such workload any more.
    copy: what is stored under the copy's id; a user's own workload there is left alone.
    """
    wanted = parent is not None and parent.desired_state != Desired.DELETED and not parent.replica_of
    if parent is None or not wanted or not FIRST_NUMBER <= number <= parent.replicas:
        return Change(What.REMOVE, identifier) if copy and _is_live_copy(copy) else None
    if copy is None:
        return Change(What.CREATE, identifier)
    if copy.replica_of != parent.id or not _is_live_copy(copy) or follows(copy, parent):
        return None
    return Change(What.UPDATE, identifier)


def changes(parent: WorkloadSpec | None, copies: Mapping[str, WorkloadSpec]) -> list[Change]:
    """Return what the copies of a workload need: removals first, the highest numbers first, then the rest in order.

    copies: by id, all that say they are of this workload, and what else is stored under a wanted id.
    """
    numbers = {identifier: number_of(copy) for identifier, copy in copies.items() if copy.replica_of}
    if parent is not None:
        wanted = range(FIRST_NUMBER, parent.replicas + 1)
        numbers |= {replica_id(parent.id, number): number for number in wanted}
    found = (change_of(parent, i, number, copies.get(i)) for i, number in numbers.items())
    return _ordered((change for change in found if change), numbers)


def _ordered(found: Iterable[Change], numbers: Mapping[str, int]) -> list[Change]:
    def rank(change: Change) -> tuple[bool, int, str]:
        removed = change.what is What.REMOVE
        return not removed, -numbers[change.id] if removed else numbers[change.id], change.id

    return sorted(found, key=rank)


def _is_live_copy(copy: WorkloadSpec) -> bool:
    return bool(copy.replica_of) and copy.desired_state != Desired.DELETED
