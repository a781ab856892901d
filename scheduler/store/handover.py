"""The transactions by which a workload leaves a node that is being drained, or that it may not stay on.

A hand-over assigns the new node and leaves the old copy running: the old node owes its stop, but not
before the new copy runs. A workload that must never run twice is stopped first: that it is being
stopped is noted, then its agent confirms, then it gives the node up and is placed like any other.

In both, the ledger of the old node says who is under way: what the old copy takes up stays committed
there, and no more workloads set out at once than the pace allows. Each transaction compares that ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler.convergence.drain import Pace, Relocate, Vacate, is_vacating, leaving, may_start, pace_of, too_many_down
from scheduler.convergence.failures import without_copy
from scheduler.domain.ledger import LEFT, Commitment, Ledger, left_by
from scheduler.domain.node import Node
from scheduler.domain.workload import Actual, Desired, Phase, Tombstone, WorkloadStatus
from scheduler.store import volumes
from scheduler.store.assign import Assign, Committed, Outdated, Placed, Vanished, next_epoch, settled_already
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.store import Store
from scheduler.store.tombstones import tombstone_id
from scheduler.store.write import Guard, Ref, View, Write

MAX_COMPARED = 64
"""Copies of a replica set whose states one transaction compares."""
_MAY_RUN = frozenset({Actual.RUNNING, Actual.PENDING, Actual.UNKNOWN})


@dataclass(frozen=True, slots=True)
class HandOver(Assign):
    """One try to commit a choice for a workload that leaves `from_node`, where its copy goes on running meanwhile."""

    default_pace: Pace = field(kw_only=True)
    """For a node that is left because of a taint."""

    @property
    def frees_volumes(self) -> bool:
        """The copy that is left goes on using what it has attached."""
        return False

    def __call__(self, view: View) -> Write[Committed | Placed | Vanished | Outdated]:
        """Decide."""
        stays = self._need_not_move(view)
        if stays is None and not self._may_start(view):
            epoch = _status(view, self.request.workload_id).epoch
            stays = Placed(self.from_node, epoch, 0.0, "others leave the node first")
        return Write(stays) if stays else Assign.__call__(self, view)

    def _need_not_move(self, view: View) -> Placed | Vanished | None:
        """Return where the workload stays: where another moved it, or on a node that it need not leave any more."""
        settled = settled_already(view, self.request.workload_id)
        if not isinstance(settled, Placed) or settled.node_id != self.from_node:
            return settled
        spec, node = view.get(SPECS, self.request.workload_id).record, view.get(NODES, self.from_node).record
        status = _status(view, self.request.workload_id)
        must_leave = spec and node and node.is_ready and isinstance(leaving(spec, status, node), Relocate)
        return None if must_leave else settled

    def _may_start(self, view: View) -> bool:
        status = _status(view, self.request.workload_id)
        if status.node_id != self.from_node:
            return True
        ledger = view.get(LEDGERS, self.from_node).record
        return may_start(ledger, status.id, self._pace(view), self.at)

    def _pace(self, view: View) -> Pace:
        return _pace(view.get(NODES, self.from_node).record, self.default_pace)

    def _leave(self, view: View, write: Write[Any], status: WorkloadStatus) -> None:
        """Keep the old copy and what it takes up, until the new one runs."""
        spec = view.get(SPECS, status.id).record
        ledger = view.get(LEDGERS, status.node_id).record or Ledger(node_id=status.node_id)
        write.put(LEDGERS, status.node_id, ledger.with_left(status.id, status.epoch))
        # Where nothing runs, nothing has to run elsewhere first.
        runs = spec is not None and spec.desired_state == Desired.RUNNING and status.actual in _MAY_RUN
        after = next_epoch(view, status.id) if runs else 0
        owed = _owed(status, self._pace(view), after, self.at)
        write.put(TOMBSTONES, tombstone_id(status.node_id, status.id), owed)


async def begin_vacate(
    store: Store,
    seen: WorkloadStatus,
    default_pace: Pace,
    *,
    now: datetime,
    guards: Sequence[Guard] = (),
    siblings: Sequence[str] = (),
) -> bool:
    """Note that the copy of this assignment is about to be stopped so that the workload can leave its node.

    siblings: the other copies of its replica set, so that no more of them are down at once than may be,
        from whatever nodes; of very large sets only as many as one transaction can compare.

    Return whether it is: not when it need not leave any more, or when others go first.
    """
    others = siblings[:MAX_COMPARED]
    refs: list[Ref[Any]] = [Ref(SPECS, seen.id), Ref(STATUSES, seen.id)]
    refs += [Ref(NODES, seen.node_id), Ref(LEDGERS, seen.node_id), *(Ref(STATUSES, other) for other in others)]

    def decide(view: View) -> Write[bool]:
        status = _wanted(view, seen)
        if status is None or is_vacating(status):
            return Write(status is not None)
        spec, node = view.get(SPECS, seen.id).record, view.get(NODES, seen.node_id).record
        if not (spec and node and node.is_ready and isinstance(leaving(spec, status, node), Vacate)):
            return Write(result=False)
        ledger = view.get(LEDGERS, seen.node_id).record or Ledger(node_id=seen.node_id)
        pace = pace_of(node, default_pace)
        if not may_start(ledger, seen.id, pace, now):
            return Write(result=False)
        if others and too_many_down((view.get(STATUSES, other).record for other in others), pace, now):
            return Write(result=False)
        write = Write(result=True)
        write.put(STATUSES, seen.id, status.replace(vacating=status.epoch))
        write.put(LEDGERS, seen.node_id, ledger.with_commitment(left_by(seen.id), _under_way(status)))
        return write

    return await store.transact(refs, decide, guards=guards)


async def end_vacate(
    store: Store, seen: WorkloadStatus, default_pace: Pace, why: str, *, now: datetime, guards: Sequence[Guard] = ()
) -> bool:
    """Give the node up: its agent has confirmed that the copy of this assignment is gone.

    It happens whatever has become of the drain, for the agent takes no order of that assignment any
    more. Until the workload runs elsewhere it counts as under way; a node that was removed meanwhile
    keeps nothing of it. Return whether it was given up now.
    """
    node_id = seen.node_id
    refs: list[Ref[Any]] = [Ref(table, seen.id) for table in (SPECS, STATUSES, ASSIGNMENTS)]
    refs += [Ref(NODES, node_id), Ref(LEDGERS, node_id), Ref(TOMBSTONES, tombstone_id(node_id, seen.id))]

    def decide(view: View) -> Write[bool]:
        status = _wanted(view, seen)
        if status is None or not is_vacating(status):
            return Write(result=False)
        write = Write(result=True)
        if node := view.get(NODES, node_id).record:
            ledger = view.get(LEDGERS, node_id).record or Ledger(node_id=node_id)
            write.put(LEDGERS, node_id, ledger.without(seen.id).with_commitment(left_by(seen.id), _under_way(status)))
            owed = _owed(status, pace_of(node, default_pace), status.epoch + 1, now, confirmed=True)
            write.put(TOMBSTONES, tombstone_id(node_id, seen.id), owed)
        write.delete(ASSIGNMENTS, seen.id)
        volumes.release(write, view, status, now)
        write.put(STATUSES, seen.id, _homeless(status, why, now))
        return write

    return await store.transact(refs, decide, guards=guards)


def _status(view: View, workload_id: str) -> WorkloadStatus:
    return view.get(STATUSES, workload_id).record or WorkloadStatus(id=workload_id)


def _wanted(view: View, seen: WorkloadStatus) -> WorkloadStatus | None:
    """Return the status if the workload is wanted and has still the assignment that was seen."""
    spec, status = view.get(SPECS, seen.id).record, view.get(STATUSES, seen.id).record
    if spec is None or status is None or spec.desired_state == Desired.DELETED:
        return None
    return status if (status.node_id, status.epoch) == (seen.node_id, seen.epoch) else None


def _pace(node: Node | None, default: Pace) -> Pace:
    return pace_of(node, default) if node else default


def _under_way(status: WorkloadStatus) -> Commitment:
    return Commitment(kind=LEFT, epoch=status.epoch)


def _owed(status: WorkloadStatus, pace: Pace, after_epoch: int, now: datetime, *, confirmed: bool = False) -> Tombstone:
    return Tombstone(
        node_id=status.node_id,
        workload_id=status.id,
        epoch=status.epoch,
        created_at=now,
        volumes=() if confirmed else status.attached,
        after_epoch=after_epoch,
        healthy_seconds=pace.min_healthy_seconds,
        not_after=pace.deadline,
        confirmed=confirmed,
    )


def _homeless(status: WorkloadStatus, why: str, now: datetime) -> WorkloadStatus:
    return status.replace(
        status=Phase.PENDING,
        node_id="",
        assigned_node="",
        previous_node=status.node_id,
        vacating=0,
        attached=(),
        observed_revision="",
        status_info=without_copy(status, Actual.NONE, now),
        pending_reason=why,
    )
