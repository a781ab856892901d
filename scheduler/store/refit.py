"""After a change of a spec: keep the node if the workload still suits it, else give it up.

The ledger holds what the spec asked for when it was placed. Before a new revision reaches the
node, its commitment is brought in line with what the spec asks for now. Where that does not
fit, the workload gives the node up in the same transaction and is placed anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scheduler.convergence.failures import without_copy
from scheduler.domain.ledger import Ledger
from scheduler.domain.workload import Actual, Desired, Phase, Tombstone, WorkloadStatus
from scheduler.placement.capacity import Overcommit, commitment_of
from scheduler.placement.filters import objections
from scheduler.placement.request import Request, request_of
from scheduler.store import volumes
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.observations import bounded
from scheduler.store.store import Store
from scheduler.store.tombstones import put_tombstone, tombstone_id
from scheduler.store.write import Guard, Ref, View, Write

_FOR_NEW_WORK = frozenset({"status", "heartbeat_stale", "tainted", "node_full"})
"""Filters that keep new work away but do not drive out what is there."""


async def refit(
    store: Store, seen: WorkloadStatus, overcommit: Overcommit, *, now: datetime, guards: Sequence[Guard] = ()
) -> str:
    """Commit on the workload's node what its spec asks for now.

    Return "" when the node holds it (or when the assignment is another by now); else why the
    node does not suit it any more: then it has no node, and its old one owes the removal.
    """
    workload_id, node_id = seen.id, seen.node_id
    refs: list[Ref[Any]] = [Ref(table, workload_id) for table in (SPECS, STATUSES, ASSIGNMENTS)]
    refs += [Ref(NODES, node_id), Ref(LEDGERS, node_id), Ref(TOMBSTONES, tombstone_id(node_id, workload_id))]

    def decide(view: View) -> Write[str]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or status is None or spec.desired_state == Desired.DELETED:
            return Write("")
        if (status.node_id, status.epoch) != (node_id, seen.epoch):
            return Write("")
        request = volumes.located_in(view, request_of(spec), spec, frees=False)
        ledger = view.get(LEDGERS, node_id).record or Ledger(node_id=node_id)
        if why := _misfit(view, ledger, request, overcommit):
            return _give_up(view, ledger, status, why, now)
        write = Write("")
        if not is_committed(ledger, request, status.epoch):
            write.put(LEDGERS, node_id, ledger.with_commitment(workload_id, commitment_of(request, status.epoch)))
        write.put(STATUSES, workload_id, volumes.keep_up(write, view, spec, status, now))
        return write

    return await store.transact(refs, decide, guards=guards)


def is_committed(ledger: Ledger | None, request: Request, epoch: int) -> bool:
    """Whether the ledger holds exactly what is asked, for this assignment."""
    return ledger is not None and ledger.commitments.get(request.workload_id) == commitment_of(request, epoch)


def _misfit(view: View, ledger: Ledger, request: Request, overcommit: Overcommit) -> str:
    node = view.get(NODES, ledger.node_id).record
    if node is None:
        return ""
    found = (o for o in objections(node, ledger, request, overcommit) if o.filter not in _FOR_NEW_WORK)
    return str(next(found, ""))


def _give_up(view: View, ledger: Ledger, status: WorkloadStatus, why: str, now: datetime) -> Write[str]:
    write = Write(why)
    write.put(LEDGERS, ledger.node_id, ledger.without(status.id))
    write.delete(ASSIGNMENTS, status.id)
    owed = Tombstone(
        node_id=status.node_id, workload_id=status.id, epoch=status.epoch, created_at=now, volumes=status.attached
    )
    put_tombstone(write, view, owed)
    homeless = status.replace(
        status=Phase.PENDING,
        node_id="",
        assigned_node="",
        attached=(),
        previous_node=status.node_id,
        observed_revision="",
        status_info=without_copy(status, Actual.NONE, now),
        pending_reason=bounded(f"does not suit its node any more: {why}"),
    )
    write.put(STATUSES, status.id, homeless)
    return write
