"""What users want of workloads, and the end of them: each a transaction over spec and status.

The spec is written here and nowhere else. Deletion is a one-way flag: once set, nothing but
`finalize_delete` touches the workload's intent, so no late write can bring it back.
What nodes report is recorded by observations.py; its functions are offered here as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.convergence.phase import phase_of
from scheduler.domain.errors import Conflict, InvalidInput, NotFound, Refused
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import Desired, Phase, Reapply, Retry, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, SPECS, STATUSES, TOMBSTONES
from scheduler.store.observations import FACTS as _FACTS
from scheduler.store.observations import ReportOutcome, record_applied, record_failure, record_missing, record_report
from scheduler.store.store import Store
from scheduler.store.tombstones import add_tombstone, clear_tombstone, put_tombstone, tombstone_id
from scheduler.store.write import Guard, Ref, View, Write

__all__ = [
    "Applied",
    "ReportOutcome",
    "add_tombstone",
    "apply_spec",
    "clear_tombstone",
    "finalize_delete",
    "mark_deleted",
    "record_applied",
    "record_failure",
    "record_missing",
    "record_report",
    "retry",
    "set_desired",
]

_ROUNDS = 5
"""How often the node of a workload may change under a delete before it gives up until the next look."""


@dataclass(frozen=True, slots=True)
class Applied:
    """A workload as it is stored after a user's call."""

    spec: WorkloadSpec
    status: WorkloadStatus
    created: bool = False
    changed: bool = False
    """Anything was written."""


def _refs(workload_id: str) -> list[Ref[Any]]:
    return [Ref(SPECS, workload_id), Ref(STATUSES, workload_id)]


async def apply_spec(store: Store, spec: WorkloadSpec, *, now: datetime) -> Applied:
    """Create a workload, or replace what it consists of as a whole.

    The revision is computed here. The same content and desired state write nothing; a new
    revision clears all failure accounting. Raises Refused while the workload is being deleted.
    """
    _check_desired(spec.desired_state)
    spec = spec.replace(revision_id=revision_of(spec))

    def decide(view: View) -> Write[Applied]:
        old, status = view.get(SPECS, spec.id).record, view.get(STATUSES, spec.id).record
        if old is None:
            new = spec.replace(generation=1, created_at=now)
            return _write(Applied(new, _fresh(new, status), created=True, changed=True))
        _check_not_deleted(old)
        if old.revision_id == spec.revision_id:
            return _desire(old, status, spec.desired_state)
        new = spec.replace(generation=old.generation + 1, created_at=old.created_at)
        return _write(Applied(new, _fresh(new, status), changed=True))

    return await store.transact(_refs(spec.id), decide)


async def set_desired(store: Store, workload_id: str, desired: str, *, now: datetime) -> Applied:  # noqa: ARG001 - one form for all
    """Change only what is desired, Running or Stopped; the revision stays.

    Raises NotFound, and Refused while the workload is being deleted.
    """
    _check_desired(desired)

    def decide(view: View) -> Write[Applied]:
        spec = _known(view, workload_id)
        _check_not_deleted(spec)
        return _desire(spec, view.get(STATUSES, workload_id).record, desired)

    return await store.transact(_refs(workload_id), decide)


async def mark_deleted(store: Store, workload_id: str, *, now: datetime) -> WorkloadSpec | None:  # noqa: ARG001
    """Ask for the removal of a workload, in whatever state it is; return its spec, None when there is none."""

    def decide(view: View) -> Write[WorkloadSpec | None]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or spec.desired_state == Desired.DELETED:
            return Write(spec)
        spec = spec.replace(desired_state=Desired.DELETED, generation=spec.generation + 1)
        write: Write[WorkloadSpec | None] = Write(spec)
        write.put(SPECS, workload_id, spec)
        if status:
            write.put(STATUSES, workload_id, status.replace(status=Phase.DELETING))
        return write

    return await store.transact(_refs(workload_id), decide)


async def retry(store: Store, workload_id: str, *, now: datetime) -> WorkloadStatus:  # noqa: ARG001
    """Clear all failure accounting, so that the next look orders again what is wanted.

    Raises NotFound, and Refused while the workload is being deleted.
    """

    def decide(view: View) -> Write[WorkloadStatus]:
        spec = _known(view, workload_id)
        _check_not_deleted(spec)
        status = _cleared(spec, view.get(STATUSES, workload_id).record)
        write = Write(status)
        write.put(STATUSES, workload_id, status)
        return write

    return await store.transact(_refs(workload_id), decide)


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
    refs = [*_refs(workload_id), Ref(ASSIGNMENTS, workload_id)]
    if node_id:
        refs += [Ref(LEDGERS, node_id), Ref(TOMBSTONES, tombstone_id(node_id, workload_id))]

    def decide(view: View) -> Write[bool | None]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or spec.desired_state != Desired.DELETED:
            return Write(result=False)
        if (status.node_id if status else "") != node_id:
            return Write(None)
        if seen and status and (status.node_id, status.epoch) != (seen.node_id, seen.epoch):
            return Write(result=False)
        write: Write[bool | None] = Write(result=True)
        for table in (SPECS, STATUSES, ASSIGNMENTS):
            write.delete(table, workload_id)
        if status and node_id:
            _release(write, view, node_id, workload_id)
            if tombstone:
                put_tombstone(
                    write, view, Tombstone(node_id=node_id, workload_id=workload_id, epoch=status.epoch, created_at=now)
                )
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


def _desire(spec: WorkloadSpec, status: WorkloadStatus | None, desired: str) -> Write[Applied]:
    """Change the desired state only. The guard against a crash loop starts anew: the user wants something else now."""
    status = status or WorkloadStatus(id=spec.id)
    if spec.desired_state == desired:
        return Write(Applied(spec, status))
    spec = spec.replace(desired_state=desired, generation=spec.generation + 1)
    return _write(Applied(spec, status.replace(reapply=Reapply()), changed=True))


def _fresh(spec: WorkloadSpec, status: WorkloadStatus | None) -> WorkloadStatus:
    """Return the status of new content: nothing that went wrong with the old content counts any more."""
    status = _cleared(spec, status)
    return status.replace(status=Phase.UPDATING if status.node_id else Phase.PENDING)


def _cleared(spec: WorkloadSpec, status: WorkloadStatus | None) -> WorkloadStatus:
    status = status or WorkloadStatus(id=spec.id)
    status = status.replace(
        retry=Retry(max_attempts=status.retry.max_attempts),
        reapply=Reapply(),
        status_info=status.status_info.replace(failure_reason="", reason=None),
        metadata={key: value for key, value in status.metadata.items() if key not in _FACTS},
    )
    return status.replace(status=phase_of(spec, status))


def _known(view: View, workload_id: str) -> WorkloadSpec:
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
