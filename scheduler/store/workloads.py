"""What users want of workloads, and the end of them: each a transaction over spec and status.

The spec is written here and nowhere else. Deletion is a one-way flag: once set, nothing but
`finalize_delete` touches the workload's intent, so no late write can bring it back.
What nodes report is recorded by observations.py; its functions are offered here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from scheduler.convergence.phase import phase_of
from scheduler.domain.errors import Conflict, InvalidInput, NotFound, Refused
from scheduler.domain.policy import longest_stop_after_ms, remembering
from scheduler.domain.replicas import check_replicas
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import Desired, Phase, Reapply, Retry, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.store import volumes
from scheduler.store.claims import Applied, Claim, check_is_own, claiming
from scheduler.store.drifts import findings_about
from scheduler.store.keys import ASSIGNMENTS, DRIFTS, LEDGERS, LEGACY, SPECS, STATUSES, TOMBSTONES
from scheduler.store.observations import FACTS as _FACTS
from scheduler.store.observations import (
    LAST_ACTION,
    ReportOutcome,
    record_applied,
    record_failure,
    record_missing,
    record_report,
)
from scheduler.store.store import Store
from scheduler.store.takeover import as_ours, check_ours
from scheduler.store.tombstones import add_tombstone, clear_tombstone, put_tombstone, tombstone_id
from scheduler.store.write import Guard, Ref, View, Write

__all__ = [
    "Applied",
    "ReportOutcome",
    "add_tombstone",
    "applied_to",
    "apply_spec",
    "clear_tombstone",
    "deleting",
    "deletion_of",
    "desiring",
    "finalize_delete",
    "mark_deleted",
    "record_applied",
    "record_failure",
    "record_missing",
    "record_report",
    "retry",
    "retrying",
    "set_desired",
    "workload_refs",
]

_ROUNDS = 5
"""How often the node of a workload may change under a delete before it gives up until the next look."""


def workload_refs(workload_id: str) -> list[Ref[Any]]:
    """Return the records that a decision about a workload's intent is made over."""
    return [Ref(SPECS, workload_id), Ref(STATUSES, workload_id), Ref(LEGACY, workload_id)]


async def apply_spec(store: Store, spec: WorkloadSpec, *, now: datetime) -> Applied:
    """Create a workload, or replace what it consists of as a whole.

    The revision is computed here. The same content, policies and desired state write nothing; a new
    revision clears all failure accounting. `replicas` 0 keeps the number of copies there are.
    Raises Refused while the workload is being deleted, for a copy of another workload, and when an
    id that its copies would have belongs to somebody else; InvalidInput for an impossible number.
    """
    _check_desired(spec.desired_state)

    def decide(view: View, claim: Claim, _last: Applied | None) -> Write[Applied]:
        old, status = view.get(SPECS, spec.id).record, view.get(STATUSES, spec.id).record
        new = spec.replace(replicas=claim.granted(view, spec.replicas or (old.replicas if old else 1)))
        check_replicas(new)
        write = applied_to(old, status, new, now)
        volumes.name(write, view, new, old, now)
        return write

    return await as_ours(store, spec.id, lambda: claiming(store, spec, decide), now=now)


def applied_to(
    old: WorkloadSpec | None, status: WorkloadStatus | None, spec: WorkloadSpec, now: datetime
) -> Write[Applied]:
    """Write a spec over the one there is. Raises Refused while that is being deleted."""
    spec = spec.replace(revision_id=revision_of(spec))
    # What was taken over from another scheduler keeps the revision it had there, which is no sum over the content.
    if old is None:
        new = spec.replace(generation=1, created_at=now)
        return _write(Applied(new, _fresh(new, status), created=True, changed=True))
    _check_not_deleted(old)
    if spec.revision_id in (old.revision_id, revision_of(old)):
        return _same_content(old, status, spec)
    new = remembering(old, spec.replace(generation=old.generation + 1, created_at=old.created_at))
    return _write(Applied(new, _fresh(new, status), changed=True, replicas_before=old.replicas))


def _same_content(old: WorkloadSpec, status: WorkloadStatus | None, spec: WorkloadSpec) -> Write[Applied]:
    """Take over what is not content: policies, the number of copies, the desired state."""
    new = old.replace(
        metadata=spec.metadata,
        desired_state=spec.desired_state,
        replicas=spec.replicas,
        replica_of=spec.replica_of,
        replica_revision=spec.replica_revision,
    )
    new = remembering(old, new)
    status = status or WorkloadStatus(id=spec.id)
    if new == old:
        return Write(Applied(old, status, replicas_before=old.replicas))
    if new.desired_state != old.desired_state:
        status = status.replace(reapply=Reapply(), terminal="")
    new = new.replace(generation=old.generation + 1)
    return _write(Applied(new, status, changed=True, replicas_before=old.replicas))


async def set_desired(store: Store, workload_id: str, desired: str, *, now: datetime) -> Applied:
    """Change only what is desired, Running or Stopped; the revision stays.

    Raises NotFound, and Refused while the workload is being deleted, or for a copy of another workload.
    """
    decide = desiring(workload_id, desired)
    return await as_ours(store, workload_id, lambda: store.transact(workload_refs(workload_id), decide), now=now)


def desiring(workload_id: str, desired: str) -> Callable[[View], Write[Applied]]:
    """Return the decision of `set_desired`, over workload_refs."""
    _check_desired(desired)

    def decide(view: View) -> Write[Applied]:
        spec = _known(view, workload_id)
        check_is_own(spec)
        _check_not_deleted(spec)
        return _same_content(spec, view.get(STATUSES, workload_id).record, spec.replace(desired_state=desired))

    return decide


async def mark_deleted(store: Store, workload_id: str, *, now: datetime) -> WorkloadSpec | None:
    """Ask for the removal of a workload, in whatever state it is; return its spec, None when there is none.

    Raises Refused for a copy of another workload.
    """
    decide = deleting(workload_id)
    return await as_ours(store, workload_id, lambda: store.transact(workload_refs(workload_id), decide), now=now)


def deleting(workload_id: str) -> Callable[[View], Write[WorkloadSpec | None]]:
    """Return the decision of `mark_deleted`, over workload_refs."""

    def decide(view: View) -> Write[WorkloadSpec | None]:
        check_ours(view, workload_id)
        spec = view.get(SPECS, workload_id).record
        if spec:
            check_is_own(spec)
        return deletion_of(spec, view.get(STATUSES, workload_id).record)

    return decide


def deletion_of(spec: WorkloadSpec | None, status: WorkloadStatus | None) -> Write[WorkloadSpec | None]:
    """Write that a workload is to be removed."""
    if spec is None or spec.desired_state == Desired.DELETED:
        return Write(spec)
    spec = spec.replace(desired_state=Desired.DELETED, generation=spec.generation + 1)
    write: Write[WorkloadSpec | None] = Write(spec)
    write.put(SPECS, spec.id, spec)
    if status:
        write.put(STATUSES, spec.id, status.replace(status=Phase.DELETING))
    return write


async def retry(store: Store, workload_id: str, *, now: datetime) -> WorkloadStatus:
    """Clear all failure accounting, so that the next look orders again what is wanted.

    Raises NotFound, and Refused while the workload is being deleted.
    """
    decide = retrying(workload_id)
    return await as_ours(store, workload_id, lambda: store.transact(workload_refs(workload_id), decide), now=now)


def retrying(workload_id: str) -> Callable[[View], Write[WorkloadStatus]]:
    """Return the decision of `retry`, over workload_refs."""

    def decide(view: View) -> Write[WorkloadStatus]:
        spec = _known(view, workload_id)
        _check_not_deleted(spec)
        status = _cleared(spec, view.get(STATUSES, workload_id).record)
        # Its agent may tell of the same failure once more before the order gets there: the order goes out all the same.
        status = status.replace(observed_generation=min(status.observed_generation, spec.generation - 1))
        write = Write(status)
        write.put(STATUSES, workload_id, status)
        return write

    return decide


async def finalize_delete(
    store: Store,
    workload_id: str,
    *,
    tombstone: bool,
    now: datetime,
    guards: Sequence[Guard] = (),
    seen: WorkloadStatus | None = None,
) -> bool:
    """Remove every record of a deleted workload in one transaction: spec, status, assignment, ledger commitment.

    tombstone: its node owes the removal of the copy; else its agent has confirmed it.
    seen: the status this rests on; with another node or epoch now, nothing is removed.

    Return whether it was removed now.
    """
    for _ in range(_ROUNDS):
        status = (await store.get(STATUSES, workload_id)).record
        node_id = status.node_id if status else ""
        done = await _finalize_on(store, workload_id, node_id, tombstone=tombstone, now=now, guards=guards, seen=seen)
        if done is not None:
            return done
    raise Conflict(f'workload "{workload_id}" kept changing its node while it was being removed')


async def _finalize_on(
    store: Store,
    workload_id: str,
    node_id: str,
    *,
    tombstone: bool,
    now: datetime,
    guards: Sequence[Guard],
    seen: WorkloadStatus | None,
) -> bool | None:
    """Remove the records of a workload on this node; None: it is on another one."""
    refs = [*workload_refs(workload_id), Ref(ASSIGNMENTS, workload_id)]
    if node_id:
        refs += [Ref(LEDGERS, node_id), Ref(TOMBSTONES, tombstone_id(node_id, workload_id))]
    # Sightings of copies that nobody knew do not go on counting after a time in which there was a record.
    found = findings_about(store.cache, workload_id)
    refs += [Ref(DRIFTS, identifier) for identifier in found]

    def decide(view: View) -> Write[bool | None]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or spec.desired_state != Desired.DELETED:
            return Write(result=False)
        if (status.node_id if status else "") != node_id:
            return Write(None)
        if seen and status and (status.node_id, status.epoch) != (seen.node_id, seen.epoch):
            return Write(result=False)
        write: Write[bool | None] = Write(result=True)
        for table in (SPECS, STATUSES, ASSIGNMENTS, LEGACY):
            write.delete(table, workload_id)
        for identifier in found:
            write.delete(DRIFTS, identifier)
        volumes.forget(write, view, spec, status, now, owed=tombstone)
        if status and node_id:
            _release(write, view, node_id, workload_id)
            if tombstone:
                owed = Tombstone(node_id=node_id, workload_id=workload_id, epoch=status.epoch, created_at=now)
                terms = longest_stop_after_ms(spec, status)
                put_tombstone(write, view, owed.replace(volumes=status.attached, stop_after_ms=terms))
        return write

    return await store.transact(refs, decide, guards=guards)


def _release(write: Write[Any], view: View, node_id: str, workload_id: str) -> None:
    ledger = view.get(LEDGERS, node_id).record
    if ledger and workload_id in ledger.commitments:
        write.put(LEDGERS, node_id, ledger.without(workload_id))


def _write(applied: Applied) -> Write[Applied]:
    write = Write(applied)
    write.put(SPECS, applied.spec.id, applied.spec)
    write.put(STATUSES, applied.spec.id, applied.status)
    return write


def _fresh(spec: WorkloadSpec, status: WorkloadStatus | None) -> WorkloadStatus:
    """Return the status of new content: nothing that went wrong with the old content counts any more."""
    status = _cleared(spec, status)
    return status.replace(status=Phase.UPDATING if status.node_id else Phase.PENDING)


def _cleared(spec: WorkloadSpec, status: WorkloadStatus | None) -> WorkloadStatus:
    status = status or WorkloadStatus(id=spec.id)
    status = status.replace(
        retry=Retry(max_attempts=status.retry.max_attempts),
        reapply=Reapply(),
        terminal="",
        status_info=status.status_info.replace(failure_reason="", reason=None),
        metadata={key: value for key, value in status.metadata.items() if key not in (*_FACTS, LAST_ACTION)},
    )
    return status.replace(status=phase_of(spec, status))


def _known(view: View, workload_id: str) -> WorkloadSpec:
    check_ours(view, workload_id)
    spec = view.get(SPECS, workload_id).record
    if spec is None:
        raise NotFound(f'there is no workload "{workload_id}"')
    return spec


def _check_not_deleted(spec: WorkloadSpec) -> None:
    if spec.desired_state == Desired.DELETED:
        raise Refused(f'workload "{spec.id}" is being deleted; wait until it is gone, then create it anew')


def _check_desired(desired: str) -> None:
    if desired not in (Desired.RUNNING, Desired.STOPPED):
        raise InvalidInput("desired_state", f"{desired!r} must be Running or Stopped")
