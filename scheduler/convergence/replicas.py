"""Which copies of a workload to create, change and remove: pure, from the workload and the copies there are.

Level-triggered: it is asked anew after each change, and what was lost is found again. A copy that
is being removed is waited for; its number is taken again only when it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from scheduler.domain.policy import max_unavailable
from scheduler.domain.replicas import FIRST_NUMBER, follows, number_of, replica_id
from scheduler.domain.workload import Actual, Desired, WorkloadSpec, WorkloadStatus


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


def paced(
    parent: WorkloadSpec | None,
    found: Iterable[Change],
    copies: Mapping[str, WorkloadSpec],
    statuses: Mapping[str, WorkloadStatus | None],
) -> list[Change]:
    """Return those changes that may be made now: a new version goes to few running copies at once.

    The workload itself is the first to get it. Another copy that runs gets it when that leaves no more
    than `max_unavailable` of them down: a version that does not start takes no more than these with it.
    Copies that do not run, and changes that restart nothing or stop everything, wait for nothing.

    statuses: of the workload and of its copies. They come from a cache, and are not compared in the
    transaction: etcd allows 128 comparisons, and a set may have 1000 copies. What is old in the cache makes
    the same copies come up again, in the same order, so two deciders change the same ones.
    """
    if parent is None:
        return list(found)
    members = {parent.id: parent} | {i: copy for i, copy in copies.items() if _is_live_copy(copy)}
    up = {i for i, spec in members.items() if number_of(spec) <= parent.replicas and _is_up(spec, statuses.get(i))}
    left = max_unavailable(parent) - (parent.replicas - len(up))
    allowed: list[Change] = []
    for change in found:
        copy = copies.get(change.id)
        if change.what is What.UPDATE and copy and change.id in up and _restarts(copy, parent):
            if left <= 0:
                continue
            left -= 1
        allowed.append(change)
    return allowed


def _is_up(spec: WorkloadSpec, status: WorkloadStatus | None) -> bool:
    """Whether a copy runs and goes on running: one whose node has not got its new spec yet is about to restart."""
    if status is None or not status.node_id or spec.desired_state != Desired.RUNNING:
        return False
    return status.actual == Actual.RUNNING and status.observed_revision == spec.revision_id


def _restarts(copy: WorkloadSpec, parent: WorkloadSpec) -> bool:
    return copy.replica_revision != parent.revision_id and parent.desired_state == Desired.RUNNING


def _ordered(found: Iterable[Change], numbers: Mapping[str, int]) -> list[Change]:
    def rank(change: Change) -> tuple[bool, int, str]:
        removed = change.what is What.REMOVE
        return not removed, -numbers[change.id] if removed else numbers[change.id], change.id

    return sorted(found, key=rank)


def _is_live_copy(copy: WorkloadSpec) -> bool:
    return bool(copy.replica_of) and copy.desired_state != Desired.DELETED
