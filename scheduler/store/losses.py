"""What is recorded of a workload whose node is lost and that stays there: why, once an episode."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from scheduler.convergence.loss import NO_FAILOVER_TARGET, Stay
from scheduler.domain.policy import PINNED_REASON_KEY
from scheduler.domain.workload import Actual, Desired, Reason, WorkloadStatus
from scheduler.store.keys import LEDGERS, NODES, SPECS, STATUSES
from scheduler.store.observations import bounded
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write

_SECONDS = re.compile(r"\b\d+(?:\.\d+)? s\b")
"""How far a proof has got: no reason to write."""


async def record_blocked(store: Store, workload_id: str, why: str, *, guards: Sequence[Guard] = ()) -> bool:
    """Record what a workload without a node waits for before it is given one; return whether that was news."""
    text = bounded(why)

    def decide(view: View) -> Write[bool]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or status is None or spec.desired_state == Desired.DELETED:
            return Write(result=False)
        if status.node_id or is_told_blocked(status, text):
            return Write(result=False)
        write = Write(result=True)
        write.put(STATUSES, workload_id, status.replace(pending_reason=text))
        return write

    return await store.transact([Ref(SPECS, workload_id), Ref(STATUSES, workload_id)], decide, guards=guards)


def is_told_blocked(status: WorkloadStatus, why: str) -> bool:
    """Whether the status says already what the workload waits for: then there is no need of a fence."""
    return _SECONDS.sub("", status.pending_reason) == _SECONDS.sub("", bounded(why))


async def record_stay(
    store: Store, seen: WorkloadStatus, stay: Stay, *, now: datetime, guards: Sequence[Guard] = ()
) -> bool:
    """Record why a workload stays on its lost node; return whether that was news.

    Nothing is written when the assignment is another by now, or the node is heard again. The
    counts of failures are left alone: that a node is lost is no failure of its workloads.
    """
    workload_id, node_id = seen.id, seen.node_id
    refs: list[Ref[Any]] = [Ref(SPECS, workload_id), Ref(STATUSES, workload_id)]
    refs += [Ref(NODES, node_id), Ref(LEDGERS, node_id)]

    def decide(view: View) -> Write[bool]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        node, ledger = view.get(NODES, node_id).record, view.get(LEDGERS, node_id).record
        if spec is None or status is None or spec.desired_state == Desired.DELETED or (node and node.is_ready):
            return Write(result=False)
        if (status.node_id, status.epoch) != (node_id, seen.epoch) or _is_told(status, stay):
            return Write(result=False)
        write = Write(result=True)
        write.put(STATUSES, workload_id, _staying(status, stay, now))
        if stay.releases and ledger and workload_id in ledger.commitments:
            write.put(LEDGERS, node_id, ledger.without(workload_id))
        return write

    return await store.transact(refs, decide, guards=guards)


def _is_told(status: WorkloadStatus, stay: Stay) -> bool:
    reason = status.status_info.reason
    return reason is not None and reason.code == stay.code and status.status == stay.phase


def _staying(status: WorkloadStatus, stay: Stay, now: datetime) -> WorkloadStatus:
    """Return the status of a workload of which nobody knows whether it runs."""
    text = bounded(stay.why)
    info = status.status_info.replace(
        actual_state=Actual.UNKNOWN,
        last_updated=now,
        failure_reason=text if stay.code == NO_FAILOVER_TARGET else status.status_info.failure_reason,
        reason=Reason(code=stay.code, message=text, last_transition=now, retryable=True),
    )
    metadata = {**status.metadata, PINNED_REASON_KEY: text} if stay.pinned else status.metadata
    after = status.replace(status=stay.phase, status_info=info, metadata=metadata)
    # Ordered again when its node is back: only an order commits there anew what is released here.
    return after.replace(observed_generation=0) if stay.releases else after
