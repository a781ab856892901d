"""Whom an id belongs to: a user's workload, or a further copy of one.

A workload with N replicas owns the ids `{id}.2` to `{id}.N` from when its record says so. Whoever
stores such a record compares, in the same transaction, that nothing of another is stored under
the ids it takes; whoever creates a workload under an id of that form compares the record that
could own it. So of the two one fails, in whatever order they come.

A transaction has room for 128 compares: more copies are taken in steps, after all ids were looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler.domain.errors import Conflict, Refused
from scheduler.domain.replicas import check_replicas, replica_id, split_replica_id
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.store.keys import LEGACY, SPECS, STATUSES
from scheduler.store.kv import MAX_TXN_OPERATIONS
from scheduler.store.store import Store
from scheduler.store.takeover import check_ours
from scheduler.store.write import Ref, View, Write

CLAIMED_AT_ONCE = 100
"""Ids taken by one transaction."""
_ROUNDS = 20
"""More than the steps to the largest number of copies, and some for what others do meanwhile."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A workload as it is stored after a user's call."""

    spec: WorkloadSpec
    status: WorkloadStatus
    created: bool = False
    changed: bool = False
    """Anything was written."""
    replicas_before: int = 1


class OutdatedClaimError(Exception):
    """The claim rests on a number of copies that has become smaller meanwhile."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one transaction compares so that a workload may have more copies."""

    workload_id: str
    above: int
    """The number of copies that is taken already."""
    upto: int
    """The number of copies that this transaction can take it to."""

    def refs(self) -> list[Ref[Any]]:
        """Return all that `granted` reads."""
        found: list[Ref[Any]] = [Ref(table, self.workload_id) for table in (SPECS, STATUSES, LEGACY)]
        if owner := split_replica_id(self.workload_id):
            found.append(Ref(SPECS, owner[0]))
        return found + _copies(self.workload_id, self.above, self.upto)

    def granted(self, view: View, wanted: int) -> int:
        """Return how many of the wanted copies the workload may have now.

        Raises Refused when the workload is a copy itself, or an id belongs to another; NotOursYetError.
        """
        check_ours(view, self.workload_id)
        old = view.get(SPECS, self.workload_id).record
        if old:
            check_is_own(old)
        elif owner := split_replica_id(self.workload_id):
            _check_not_taken(self.workload_id, owner[1], view.get(SPECS, owner[0]).record)
        count = old.replicas if old else 1
        if wanted <= count:
            return wanted
        if count < self.above:
            raise OutdatedClaimError
        granted = max(count, min(wanted, self.upto))
        _check_free(self.workload_id, view, _copies(self.workload_id, count, granted))
        return granted


def check_is_own(spec: WorkloadSpec) -> None:
    """Refuse to change a copy by itself."""
    if spec.replica_of:
        raise Refused(
            f'workload "{spec.id}" is a copy of "{spec.replica_of}" and follows it; change "{spec.replica_of}" instead'
        )


async def claim_for(store: Store, workload_id: str, wanted: int) -> Claim:
    """Prepare the next step to so many copies. Raises Refused when any of their ids belongs to another."""
    if wanted <= 1:
        return Claim(workload_id, 1, 1)
    known = (await store.get(SPECS, workload_id)).record
    count = known.replicas if known else 1
    if wanted - count > CLAIMED_AT_ONCE:
        await _look_at_all(store, workload_id, count, wanted)
    return Claim(workload_id, count, min(wanted, count + CLAIMED_AT_ONCE))


Decide = Callable[[View, Claim, Applied | None], Write[Applied]]
"""Stores what Claim.granted of the wanted number says; given what the step before it has stored."""


async def claiming(store: Store, spec: WorkloadSpec, decide: Decide) -> Applied:
    """Run a decision that may give the workload more copies, in as many steps as it takes.

    spec: names the workload and the wanted number of copies; 0: as many as there are.
    """
    if spec.replicas:
        check_replicas(spec)
    first: Applied | None = None
    last: Applied | None = None
    for _ in range(_ROUNDS):
        claim = await claim_for(store, spec.id, spec.replicas)
        try:
            last = await store.transact(claim.refs(), _bound(decide, claim, last))
        except OutdatedClaimError:
            continue
        first = first or last
        if last.spec.replicas >= spec.replicas:
            return replace(
                last,
                created=first.created,
                changed=first.changed or last.changed,
                replicas_before=first.replicas_before,
            )
    raise Conflict(f'workload "{spec.id}" kept changing while copies were added to it')


def _bound(decide: Decide, claim: Claim, last: Applied | None) -> Callable[[View], Write[Applied]]:
    return lambda view: decide(view, claim, last)


def _copies(workload_id: str, above: int, upto: int) -> list[Ref[Any]]:
    return [Ref(SPECS, replica_id(workload_id, number)) for number in range(above + 1, upto + 1)]


async def _look_at_all(store: Store, workload_id: str, above: int, upto: int) -> None:
    refs = _copies(workload_id, above, upto)
    for begin in range(0, len(refs), MAX_TXN_OPERATIONS):
        some = refs[begin : begin + MAX_TXN_OPERATIONS]
        _check_free(workload_id, await store.read(some), some)


def _check_free(workload_id: str, view: View, refs: Sequence[Ref[Any]]) -> None:
    for ref in refs:
        found = view.get(SPECS, ref.id).record
        if found and found.replica_of != workload_id:
            raise Refused(
                f'workload "{workload_id}" cannot have that many copies: one would be "{ref.id}", and there is '
                "another workload of that id; delete that one, or choose another id for either"
            )


def _check_not_taken(identifier: str, number: int, owner: WorkloadSpec | None) -> None:
    if owner and not owner.replica_of and number <= owner.replicas:
        raise Refused(
            f'workload "{identifier}": the id is that of copy {number} of workload "{owner.id}"; choose another one'
        )
