"""A lost node is back: its copy of a workload takes the place of the replacement, in one transaction.

Also the cure for an assignment whose epoch its own node refuses: the node was told that copies
up to it are over, by somebody who then did not get to end the assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.convergence.returns import is_weighed
from scheduler.domain.ledger import Ledger
from scheduler.domain.workload import (
    Actual,
    Assignment,
    Phase,
    StatusInfo,
    Tombstone,
    WorkloadSpec,
    WorkloadStatus,
)
from scheduler.placement.capacity import Overcommit, commitment_of
from scheduler.placement.filters import first_objection
from scheduler.placement.request import request_of
from scheduler.store import volumes
from scheduler.store.assign import next_epoch
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.store import Store
from scheduler.store.tombstones import put_tombstone, tombstone_id
from scheduler.store.write import Guard, Ref, View, Write


@dataclass(frozen=True, slots=True)
class Kept:
    """The original has its workload back."""

    node_id: str
    epoch: int


async def keep_original(
    store: Store,
    seen: WorkloadStatus,
    owed: Tombstone,
    overcommit: Overcommit,
    *,
    rule: str,
    now: datetime,
    guards: Sequence[Guard] = (),
) -> Kept | None:
    """Give a workload back to the node that it was moved away from; its replacement owes the stop.

    seen: the status that the decision rested on. The new epoch is above that of the replacement,
    which so never can come back. Return None, with nothing written, when anything is different by
    now or the node has no room.
    """
    workload_id = owed.workload_id
    refs: list[Ref[Any]] = [Ref(table, workload_id) for table in (SPECS, STATUSES, ASSIGNMENTS)]
    refs.append(Ref(NODES, owed.node_id))
    for node_id in (owed.node_id, seen.node_id):
        refs += [Ref(LEDGERS, node_id), Ref(TOMBSTONES, tombstone_id(node_id, workload_id))]

    def decide(view: View) -> Write[Kept | None]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        standing = view.get(TOMBSTONES, tombstone_id(owed.node_id, workload_id)).record
        if spec is None or status is None or standing is None or not is_weighed(spec, status, standing):
            return Write(None)
        if (status.node_id, status.epoch) != (seen.node_id, seen.epoch) or standing.epoch != owed.epoch:
            return Write(None)
        return _swap(view, spec, status, owed, overcommit, rule=rule, now=now)

    return await store.transact(refs, decide, guards=guards)


def _swap(
    view: View,
    spec: WorkloadSpec,
    status: WorkloadStatus,
    owed: Tombstone,
    overcommit: Overcommit,
    *,
    rule: str,
    now: datetime,
) -> Write[Kept | None]:
    node = view.get(NODES, owed.node_id).record
    request = volumes.located_in(view, request_of(spec), spec, frees=True)
    ledger = view.get(LEDGERS, owed.node_id).record or Ledger(node_id=owed.node_id)
    if node is None or not node.is_ready or first_objection(node, ledger, request, overcommit):
        return Write(None)
    epoch = next_epoch(view, spec.id)
    write: Write[Kept | None] = Write(Kept(owed.node_id, epoch))
    write.put(LEDGERS, owed.node_id, ledger.with_commitment(spec.id, commitment_of(request, epoch)))
    attached = volumes.attach(write, view, spec, status, owed.node_id, now=now, frees=True)
    write.put(STATUSES, spec.id, _returned(status, owed.node_id, epoch, now).replace(attached=attached))
    reason = f"node {owed.node_id} is back, its copy stays: {rule}"
    write.put(
        ASSIGNMENTS,
        spec.id,
        Assignment(workload_id=spec.id, node_id=owed.node_id, epoch=epoch, reason=reason, created_at=now),
    )
    write.delete(TOMBSTONES, tombstone_id(owed.node_id, spec.id))
    left = view.get(LEDGERS, status.node_id).record
    if left and spec.id in left.commitments:
        write.put(LEDGERS, status.node_id, left.without(spec.id))
    replaced = Tombstone(node_id=status.node_id, workload_id=spec.id, epoch=status.epoch, created_at=now)
    put_tombstone(write, view, replaced.replace(volumes=status.attached))
    return write


def _returned(status: WorkloadStatus, node_id: str, epoch: int, now: datetime) -> WorkloadStatus:
    """Return the status: to be confirmed by the node. No count of failures begins anew."""
    return status.replace(
        status=Phase.SCHEDULED,
        node_id=node_id,
        assigned_node=node_id,
        epoch=epoch,
        observed_revision="",
        told_stop_after_ms=None,
        previous_node=status.node_id,
        status_info=StatusInfo(actual_state=Actual.PENDING, last_updated=now),
    )


async def renew_epoch(store: Store, seen: WorkloadStatus, *, now: datetime, guards: Sequence[Guard] = ()) -> int | None:
    """Give an assignment that its own node refuses a new epoch there; None: it is another by now."""
    workload_id, node_id = seen.id, seen.node_id
    refs: list[Ref[Any]] = [Ref(table, workload_id) for table in (SPECS, STATUSES, ASSIGNMENTS)]
    refs.append(Ref(LEDGERS, node_id))

    def decide(view: View) -> Write[int | None]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or status is None or (status.node_id, status.epoch) != (node_id, seen.epoch):
            return Write(None)
        epoch = next_epoch(view, workload_id)
        write: Write[int | None] = Write(epoch)
        info = status.status_info.replace(actual_state=Actual.PENDING, last_updated=now)
        write.put(STATUSES, workload_id, status.replace(epoch=epoch, observed_revision="", status_info=info))
        assignment, ledger = view.get(ASSIGNMENTS, workload_id).record, view.get(LEDGERS, node_id).record
        if assignment:
            write.put(ASSIGNMENTS, workload_id, assignment.replace(epoch=epoch))
        if ledger and workload_id in ledger.commitments:
            held = ledger.commitments[workload_id].replace(epoch=epoch)
            write.put(LEDGERS, node_id, ledger.with_commitment(workload_id, held))
        return write

    return await store.transact(refs, decide, guards=guards)
