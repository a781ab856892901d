"""Writing the copies of a workload, and changing how many there are.

What a copy needs is decided inside the transaction that writes it, and that compares the workload's
own record: so a copy that a scale-down or a deletion has made superfluous is never created late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.convergence.replicas import Change, What, change_of
from scheduler.domain.errors import Conflict, InvalidInput, NotFound
from scheduler.domain.event import EventType
from scheduler.domain.policy import MAX_REPLICAS
from scheduler.domain.replicas import check_replicas, replica_spec, split_replica_id
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.store import volumes
from scheduler.store.claims import Applied, Claim, check_is_own, claim_for, claiming
from scheduler.store.keys import LEGACY, SPECS, STATUSES
from scheduler.store.store import Store
from scheduler.store.takeover import as_ours
from scheduler.store.workloads import applied_to, deletion_of
from scheduler.store.write import Guard, Ref, View, Write

BATCH = 20
"""Copies written by one transaction: small enough that what is reported of one seldom makes it start anew."""

EVENTS = {What.CREATE: EventType.WORKLOAD_CREATED, What.UPDATE: EventType.WORKLOAD_UPDATED}
"""What to tell of a change of a copy; its end is told when its records go."""


@dataclass(frozen=True, slots=True)
class Settled:
    """A copy that was changed, and the node that it is on."""

    change: Change
    node_id: str


async def write_copies(
    store: Store, workload_id: str, copies: Sequence[str], *, now: datetime, guards: Sequence[Guard] = ()
) -> list[Settled]:
    """Bring these copies in line with their workload as etcd has it now; return what was changed.

    copies: ids. Raises Fenced, Conflict, StoreUnavailable; what was written before that stays.
    """
    done: list[Settled] = []
    for begin in range(0, len(copies), BATCH):
        some = copies[begin : begin + BATCH]
        refs: list[Ref[Any]] = [Ref(SPECS, workload_id)]
        refs += [Ref(table, copy) for copy in some for table in (SPECS, STATUSES, LEGACY)]
        written: list[Settled] = await store.transact(refs, _writing(workload_id, some, now), guards=guards)
        done += written
    return done


def _writing(workload_id: str, copies: Sequence[str], now: datetime) -> Callable[[View], Write[list[Settled]]]:
    def decide(view: View) -> Write[list[Settled]]:
        parent = view.get(SPECS, workload_id).record
        whole: Write[list[Settled]] = Write([])
        named: list[tuple[WorkloadSpec, WorkloadSpec | None]] = []
        for identifier in copies:
            copy, status = view.get(SPECS, identifier).record, view.get(STATUSES, identifier).record
            split = split_replica_id(identifier)
            change = change_of(parent, identifier, split[1] if split else 0, copy)
            if change is None or (copy and copy.replica_of != workload_id):
                continue
            if copy is None and view.get(LEGACY, identifier).record:
                continue  # a workload of another scheduler's that is not taken over yet has the id
            one = _write_one(change, parent, copy, status, now)
            if isinstance(one.result, Applied):
                named.append((one.result.spec, copy))
            whole.puts |= one.puts
            whole.result.append(Settled(change, status.node_id if status else ""))
        volumes.name_all(whole, view, named, now)
        return whole

    return decide


def _write_one(
    change: Change,
    parent: WorkloadSpec | None,
    copy: WorkloadSpec | None,
    status: WorkloadStatus | None,
    now: datetime,
) -> Write[Any]:
    if parent is None or change.what is What.REMOVE:
        return deletion_of(copy, status)
    split = split_replica_id(change.id)
    assert split is not None, change  # noqa: S101 - only copies with a number are created or updated
    return applied_to(copy, status, replica_spec(parent, split[1]), now)


# How many there are


async def scale(store: Store, workload_id: str, replicas: int, *, now: datetime, generation: int = 0) -> Applied:
    """Set how many copies of a workload there are to be; the copies are written by others.

    generation: what it must be; 0: anything. Raises InvalidInput, NotFound, Refused, and Conflict
    for another generation. A large step takes several transactions; what stops it half-way is told
    by the error, and the workload then has the number of copies it has got to.
    """

    def decide(view: View, claim: Claim, last: Applied | None) -> Write[Applied]:
        expected = last.spec.generation if last and generation else generation
        return scaling(view, claim, replicas, now=now, generation=expected)

    known = (await store.get(SPECS, workload_id)).record or WorkloadSpec(id=workload_id, type="")
    wanted = known.replace(replicas=_checked(replicas))
    return await as_ours(store, workload_id, lambda: claiming(store, wanted, decide), now=now)


async def preview(store: Store, workload_id: str, replicas: int, *, now: datetime, generation: int = 0) -> Applied:
    """Return what `scale` would store in its first step, or raise what it would raise; nothing is written."""
    claim = await claim_for(store, workload_id, _checked(replicas))
    return scaling(await store.read(claim.refs()), claim, replicas, now=now, generation=generation).result


def scaling(view: View, claim: Claim, replicas: int, *, now: datetime, generation: int = 0) -> Write[Applied]:
    """Write another number of copies over the workload that the claim is for."""
    spec = view.get(SPECS, claim.workload_id).record
    if spec is None:
        raise NotFound(f'there is no workload "{claim.workload_id}"')
    check_is_own(spec)
    if generation and spec.generation != generation:
        raise Conflict(f'workload "{spec.id}" is at generation {spec.generation}, not at {generation}')
    check_replicas(spec.replace(replicas=replicas))
    new = spec.replace(replicas=claim.granted(view, replicas))
    return applied_to(spec, view.get(STATUSES, spec.id).record, new, now)


def _checked(replicas: int) -> int:
    if not 1 <= replicas <= MAX_REPLICAS:
        raise InvalidInput("replicas", f"{replicas} is not allowed; it must be 1 to {MAX_REPLICAS}")
    return replicas
