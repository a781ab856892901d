"""Workloads of the reference scheduler become ours, each in one transaction.

It compares all it rests on: the foreign records as they were read, the absence of ours, and the node with
its ledger. What runs goes on running: the revision and the node are kept, what it takes up is
committed there whether there is room or not, for it takes it up already. The epoch is the revision of
the read, above that of any earlier assignment of the id and below whatever the next one gets.

A record that cannot be read stays where it is. While it does, no workload is created under its id: a copy
that nobody else knows of may run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeVar

from scheduler.domain.errors import Conflict, InvalidInput, Refused
from scheduler.domain.ledger import Ledger
from scheduler.domain.legacy import in_our_form, is_foreign, legacy_pair
from scheduler.domain.workload import Actual, Assignment, Phase, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.placement.capacity import commitment_of
from scheduler.placement.request import request_of
from scheduler.store import volumes
from scheduler.store.decode import CorruptRecord, decode
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, LEGACY, NODES, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.store import Store
from scheduler.store.tombstones import put_tombstone, tombstone_id
from scheduler.store.write import Guard, Ref, Versioned, View, Write

T = TypeVar("T")

REASON = "it ran there under the scheduler that was replaced"
_ROUNDS = 3
"""Before a user's write: a record that is taken over is not foreign the next time."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A record of the reference scheduler's, or one that cannot be read, and why it stays as it is."""

    key: str
    workload_id: str
    why: str


async def find_foreign(store: Store) -> list[Foreign]:
    """Return the records of workloads that cannot be read or are not ours yet. Costs a scan of three tables."""
    read: dict[Table[Any], dict[str, Versioned[Any]]] = {}
    found: list[Foreign] = []
    revision = 0
    for table in (SPECS, STATUSES, LEGACY):
        read[table] = {}
        values, revision = await store.etcd.scan(table.prefix, revision=revision)
        for kv in values:
            identifier = table.id_of(kv.key)
            try:
                read[table][identifier] = decode(table, identifier, kv)
            except CorruptRecord as error:
                found.append(Foreign(kv.key, identifier, str(error)))
    view_of = {table.key(w): stored for table, some in read.items() for w, stored in some.items()}
    unread = {one.workload_id for one in found}
    for workload_id in sorted({*read[SPECS], *read[LEGACY]} - unread):
        refs = [table.key(workload_id) for table in (SPECS, STATUSES, LEGACY)]
        view = View(revision, {key: view_of.get(key) or Versioned(workload_id, None) for key in refs})
        if one := _as_found(view, workload_id):
            found.append(one)
    return found


def _as_found(view: View, workload_id: str) -> Foreign | None:
    spec, legacy = view.get(SPECS, workload_id).record, view.get(LEGACY, workload_id).record
    key = (SPECS if spec and is_foreign(spec) else LEGACY).key(workload_id)
    if spec and not is_foreign(spec):
        done = _beside_ours(view, workload_id).result if legacy else None
        return (
            Foreign(key, workload_id, done.why or "is older than our own record, and about to be removed")
            if done
            else None
        )
    try:
        _found(view, workload_id)
    except InvalidInput as error:
        return Foreign(key, workload_id, f"cannot be taken over: {error}")
    return Foreign(key, workload_id, "is about to be taken over")


class NotOursYetError(Conflict):
    """The workload is stored in the form of the reference scheduler; it is taken over within a moment."""


class Outcome(StrEnum):
    """What became of a foreign record."""

    NOTHING = "Nothing"
    """There is none."""
    TAKEN = "TakeOver"
    REMOVED = "RemoveLegacy"
    """It was older than our own record of the workload."""
    LEFT = "LeaveLegacy"


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The end of one attempt."""

    outcome: Outcome
    node_id: str = ""
    why: str = ""
    """Why it was left; names key and field."""


def check_ours(view: View, workload_id: str) -> None:
    """Raise NotOursYetError for a workload that a user's write must not touch before it is taken over."""
    spec = view.get(SPECS, workload_id).record
    if is_foreign(spec) if spec else view.get(LEGACY, workload_id).record is not None:
        raise NotOursYetError(f'workload "{workload_id}" is being taken over from another scheduler; try again')


async def as_ours(store: Store, workload_id: str, write: Callable[[], Awaitable[T]], *, now: datetime) -> T:
    """Do a user's write on a workload, after taking it over where it is not ours. Raises Refused when that fails."""
    for _ in range(_ROUNDS):
        try:
            return await write()
        except NotOursYetError:
            done = await take_over(store, workload_id, now=now)
            if done.outcome is Outcome.LEFT:
                raise Refused(f'workload "{workload_id}": {done.why}') from None
    return await write()


async def take_over(store: Store, workload_id: str, *, now: datetime, guards: Sequence[Guard] = ()) -> TakenOver:
    """Make a foreign workload ours, or remove a whole record that our own one has replaced. Idempotent."""
    refs: list[Ref[Any]] = [Ref(table, workload_id) for table in (SPECS, STATUSES, LEGACY, ASSIGNMENTS)]

    def decide(view: View) -> Write[TakenOver]:
        spec = view.get(SPECS, workload_id).record
        if spec and not is_foreign(spec):
            return _beside_ours(view, workload_id)
        try:
            found = _found(view, workload_id)
            return _taken(view, *found, now) if found else Write(TakenOver(Outcome.NOTHING))
        except (InvalidInput, Refused) as error:
            key = (SPECS if spec else LEGACY).key(workload_id)
            return Write(TakenOver(Outcome.LEFT, why=f"{key} cannot be taken over: {error}; repair or delete the key"))

    return await store.transact(refs, decide, guards=guards)


def _found(view: View, workload_id: str) -> tuple[WorkloadSpec, WorkloadStatus] | None:
    """Return the workload in our form. Of the two forms the reference scheduler wrote the later one is right."""
    if spec := view.get(SPECS, workload_id).record:
        if spec.id != workload_id:
            raise InvalidInput("id", f"{spec.id!r} is not the id of the key")
        return in_our_form(spec, view.get(STATUSES, workload_id).record)
    legacy = view.get(LEGACY, workload_id).record
    return legacy_pair(workload_id, legacy) if legacy else None


def _beside_ours(view: View, workload_id: str) -> Write[TakenOver]:
    """Remove a whole record that was last written before ours was created; leave one of which that is not sure."""
    spec, legacy = view.get(SPECS, workload_id), view.get(LEGACY, workload_id)
    if legacy.record is None:
        return Write(TakenOver(Outcome.NOTHING))
    if not _is_older(view, workload_id):
        why = f"{LEGACY.key(workload_id)} was written after {SPECS.key(workload_id)}, which stands; delete one of them"
        return Write(TakenOver(Outcome.LEFT, why=why))
    write = Write(TakenOver(Outcome.REMOVED))
    write.delete(LEGACY, spec.id)
    return write


def _is_older(view: View, workload_id: str) -> bool:
    """Whether etcd's revisions prove that the whole record was last written before the spec was created."""
    return view.get(LEGACY, workload_id).mod_revision < view.get(SPECS, workload_id).create_revision


def _taken(view: View, spec: WorkloadSpec, status: WorkloadStatus, now: datetime) -> Write[TakenOver]:
    node_id = status.node_id
    if node_id:
        owed = Ref(TOMBSTONES, tombstone_id(node_id, spec.id))
        view.require([Ref(NODES, node_id), Ref(LEDGERS, node_id), owed])
    epoch = max(status.epoch + 1, view.epoch_base + view.revision)
    known = bool(node_id) and view.get(NODES, node_id).record is not None
    write = Write(TakenOver(Outcome.TAKEN, node_id if known else ""))
    if known:
        status = _committed(write, view, spec, status.replace(epoch=epoch), now)
    else:
        volumes.name(write, view, spec, None, now)
        status = _homeless(write, view, status, epoch, now)
    write.put(SPECS, spec.id, spec)
    write.put(STATUSES, spec.id, status)
    two_keys = view.get(SPECS, spec.id).record is not None
    if view.get(LEGACY, spec.id).record and (not two_keys or _is_older(view, spec.id)):
        write.delete(LEGACY, spec.id)
    return write


def _committed(
    write: Write[TakenOver], view: View, spec: WorkloadSpec, status: WorkloadStatus, now: datetime
) -> WorkloadStatus:
    """Commit it on its node, with the volumes it has there; return its status."""
    node_id = status.node_id
    ledger = (view.get(LEDGERS, node_id).record or Ledger(node_id=node_id)).without(spec.id)
    write.put(LEDGERS, node_id, ledger.with_commitment(spec.id, commitment_of(request_of(spec), status.epoch)))
    placed = Assignment(workload_id=spec.id, node_id=node_id, epoch=status.epoch, reason=REASON, created_at=now)
    write.put(ASSIGNMENTS, spec.id, placed)
    write.delete(TOMBSTONES, tombstone_id(node_id, spec.id))
    return status.replace(attached=volumes.attach(write, view, spec, status, node_id, now=now, frees=False))


def _homeless(write: Write[TakenOver], view: View, status: WorkloadStatus, epoch: int, now: datetime) -> WorkloadStatus:
    """Let it wait for a node; one that has no record any more owes the end of the copy, should it come back."""
    write.delete(ASSIGNMENTS, status.id)
    node_id = status.node_id
    if node_id:
        owed = Tombstone(node_id=node_id, workload_id=status.id, epoch=epoch, created_at=now)
        put_tombstone(write, view, owed)
    return status.replace(
        status=status.status if status.status == Phase.DELETING else Phase.PENDING,
        node_id="",
        assigned_node="",
        previous_node=node_id,
        epoch=epoch,
        observed_revision="",
        observed_generation=0,
        terminal="",
        attached=(),
        status_info=status.status_info.replace(actual_state=Actual.NONE),
        pending_reason=f'its node "{node_id}" has no record' if node_id else "",
    )
