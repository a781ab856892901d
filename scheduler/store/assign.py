"""The transaction that gives a workload to a node.

It checks everything again that the choice rested on, in the view that it will compare: that the
workload still wants a node, and that the node may still take it. In one transaction it writes the
ledger, the status and the assignment; a move also releases the ledger of the node left behind and
leaves a tombstone there, so that no copy on that node outlives the move.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.convergence.failures import without_copy
from scheduler.convergence.loss import loss_over
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.domain.workload import (
    Actual,
    Assignment,
    Desired,
    Phase,
    Reapply,
    Retry,
    Tombstone,
    WorkloadSpec,
    WorkloadStatus,
)
from scheduler.placement.capacity import Overcommit, commitment_of
from scheduler.placement.choose import Choice
from scheduler.placement.filters import Objection, first_objection
from scheduler.placement.request import Request, request_of
from scheduler.store import volumes
from scheduler.store.keys import ASSIGNMENTS, ATTACHMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES, VOLUMES
from scheduler.store.tombstones import put_tombstone, tombstone_id
from scheduler.store.volumes import attachment_id
from scheduler.store.write import Ref, Versioned, View, Write


@dataclass(frozen=True, slots=True)
class Placed:
    """The workload has a node. Epoch 0: it would get this one, nothing is committed."""

    node_id: str
    epoch: int
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The workload wants no node any more: it was deleted, or is being deleted."""

    workload_id: str
    summary: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A placement that was written, with the ledger before and after it."""

    placed: Placed
    before: Versioned[Ledger]
    after: Ledger


@dataclass(frozen=True, slots=True)
class Outdated:
    """The choice rested on something that has changed: look at this and choose again."""

    spec: WorkloadSpec
    node: Versioned[Node]
    ledger: Versioned[Ledger]
    objection: Objection | None = None
    """Set when the node must not take the workload; None when it could, but may not be the best any more."""


@dataclass(frozen=True, slots=True)
class Assign:
    """One try to commit a choice; called with a view it decides what to write."""

    request: Request
    choice: Choice
    overcommit: Overcommit
    at: datetime
    holders: AbstractSet[str] | None
    """Who was thought to hold something of the node: anybody else there outdates the choice. None: nobody does."""
    from_node: str = ""
    """The node that the workload is moved off; blank for a workload that has none."""
    frees: bool = False
    """No copy that the workload has left elsewhere can use its volumes any more."""

    def refs(self) -> list[Ref[Any]]:
        """Return all that the decision reads or writes."""
        workload, node, old = self.request.workload_id, self.choice.node_id, self.from_node
        refs: list[Ref[Any]] = [Ref(table, workload) for table in (SPECS, STATUSES, ASSIGNMENTS)]
        refs += [Ref(VOLUMES, volume) for volume in self.request.volumes]
        refs += [Ref(ATTACHMENTS, attachment_id(node, workload, volume)) for volume in self.request.volumes]
        refs += [Ref(NODES, node), Ref(LEDGERS, node), Ref(TOMBSTONES, tombstone_id(node, workload))]
        if old:
            refs += [Ref(NODES, old), Ref(LEDGERS, old), Ref(TOMBSTONES, tombstone_id(old, workload))]
        return refs

    @property
    def frees_volumes(self) -> bool:
        """Whether what the workload has attached on other nodes does not bind it; a lost node's copy has ended."""
        return self.frees or bool(self.from_node)

    def __call__(self, view: View) -> Write[Committed | Placed | Vanished | Outdated]:
        """Decide."""
        settled = settled_already(view, self.request.workload_id) if not self.from_node else self._need_not_move(view)
        if settled:
            return Write(settled)
        spec = view.get(SPECS, self.request.workload_id).record
        assert spec is not None, self.request  # noqa: S101 - settled otherwise
        return Write(outdated) if (outdated := self._outdated(view, spec)) else self._commit(view)

    def _need_not_move(self, view: View) -> Placed | Vanished | None:
        """Return where the workload stays: where another moved it, or on a node that has come back."""
        settled = settled_already(view, self.request.workload_id)
        if not isinstance(settled, Placed) or settled.node_id != self.from_node:
            return settled
        node = view.get(NODES, self.from_node).record
        return settled if node and node.is_ready and not node.drain else None

    def _outdated(self, view: View, spec: WorkloadSpec) -> Outdated | None:
        node, ledger = view.get(NODES, self.choice.node_id), view.get(LEDGERS, self.choice.node_id)
        if volumes.located_in(view, request_of(spec), spec, frees=self.frees_volumes) != self.request:
            return Outdated(spec, node, ledger)
        if objection := self._objection(node, ledger):
            return Outdated(spec, node, ledger, objection)
        if self.holders is not None and ledger.record and ledger.record.commitments.keys() - self.holders:
            return Outdated(spec, node, ledger)
        return None

    def _objection(self, node: Versioned[Node], ledger: Versioned[Ledger]) -> Objection | None:
        if node.record is None:
            return Objection("status", node.id, "is gone")
        return first_objection(node.record, ledger.record or Ledger(node_id=node.id), self.request, self.overcommit)

    def _commit(self, view: View) -> Write[Committed | Placed | Vanished | Outdated]:
        workload, node_id = self.request.workload_id, self.choice.node_id
        status = view.get(STATUSES, workload).record or WorkloadStatus(id=workload)
        epoch = next_epoch(view, workload)
        before = view.get(LEDGERS, node_id)
        # An older copy there is taken over, and so is what it still takes up.
        ledger = (before.record or Ledger(node_id=node_id)).without(workload)
        after = ledger.with_commitment(workload, commitment_of(self.request, epoch))
        placed = Placed(node_id, epoch, self.choice.score, self.choice.reason)
        write: Write[Committed | Placed | Vanished | Outdated] = Write(Committed(placed, before, after))
        write.put(LEDGERS, node_id, after)
        write.put(STATUSES, workload, self._status(status, epoch).replace(attached=self._attach(view, write, status)))
        write.put(ASSIGNMENTS, workload, self._assignment(epoch))
        # An older copy that the node still owes the stop of is taken over by applying the new one there.
        write.delete(TOMBSTONES, tombstone_id(node_id, workload))
        if status.node_id:
            self._leave(view, write, status)
        return write

    def _status(self, status: WorkloadStatus, epoch: int) -> WorkloadStatus:
        scheduled = loss_over(status).replace(
            status=Phase.FAILED if status.terminal else Phase.SCHEDULED,
            node_id=self.choice.node_id,
            assigned_node=self.choice.node_id,
            epoch=epoch,
            observed_revision="",
            told_stop_after_ms=None,
            status_info=without_copy(status, Actual.PENDING, self.at),
            pending_reason="",
        )
        if not status.node_id:
            return scheduled
        return scheduled.replace(
            previous_node=status.node_id, retry=Retry(max_attempts=status.retry.max_attempts), reapply=Reapply()
        )

    def _attach(self, view: View, write: Write[Any], status: WorkloadStatus) -> tuple[str, ...]:
        spec = view.get(SPECS, status.id).record
        assert spec is not None, self.request  # noqa: S101 - settled otherwise
        node_id, frees = self.choice.node_id, self.frees_volumes
        leaves = frees and bool(status.node_id)
        return volumes.attach(write, view, spec, status, node_id, now=self.at, frees=frees, leaves=leaves)

    def _assignment(self, epoch: int) -> Assignment:
        return Assignment(
            workload_id=self.request.workload_id,
            node_id=self.choice.node_id,
            epoch=epoch,
            reason=self.choice.reason,
            score=round(self.choice.score, 4),
            created_at=self.at,
        )

    def _leave(self, view: View, write: Write[Any], status: WorkloadStatus) -> None:
        """Release the node left behind, and make it owe the stop of every copy up to the old epoch."""
        old, workload = status.node_id, status.id
        ledger = view.get(LEDGERS, old).record
        if ledger and workload in ledger.commitments:
            write.put(LEDGERS, old, ledger.without(workload))
        node = view.get(NODES, old).record
        lost = node is not None and not node.is_ready
        owed = Tombstone(node_id=old, workload_id=workload, epoch=status.epoch, created_at=self.at, lost=lost)
        put_tombstone(write, view, owed)


def settled_already(view: View, workload_id: str) -> Placed | Vanished | None:
    """Return the answer that needs no choice: the workload wants no node, or has one."""
    spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
    if spec is None:
        return Vanished(workload_id, f'workload "{workload_id}" does not exist')
    if spec.desired_state == Desired.DELETED:
        return Vanished(workload_id, f'workload "{workload_id}" is being deleted')
    if status is None or not status.node_id:
        return None
    return Placed(status.node_id, status.epoch, 0.0, "has this node already")


def next_epoch(view: View, workload_id: str) -> int:
    """Return the fencing number of a new assignment: above every earlier one of this workload id.

    Each epoch is at most the store revision that its transaction got, and a status record created
    after a delete has a revision above that; so epochs grow also over delete and re-create. In
    an etcd whose revisions began anew the base of the cluster makes up for it.
    """
    spec, status = view.get(SPECS, workload_id), view.get(STATUSES, workload_id)
    last = status.record.epoch if status.record else 0
    return max(last + 1, view.epoch_base + (status.mod_revision or spec.mod_revision))
