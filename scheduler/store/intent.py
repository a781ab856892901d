"""What operators want of nodes: cordon, drain, taints, labels, removal.

Each is a transaction over the whole record of the node: it is decided from the record as it is, and
decided again when that has changed. So a heartbeat, a registration or another operator at the same
time neither loses it nor is lost, and asking for what already is so writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from scheduler.domain.errors import InvalidInput, NotFound, Refused
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Drain, DrainJob, Node, Taint
from scheduler.domain.toleration import NO_SCHEDULE
from scheduler.store.keys import LEDGERS, NODES
from scheduler.store.nodes import SHARD_LABEL, dns_refs, labels_of, unname
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write

NO_DEADLINE = datetime.max.replace(tzinfo=UTC)
"""As the deadline of a wish: the drain has none any more."""
MAX_TAINTS = 64
"""On one node."""
MAX_LABELS = 128
"""Set by operators, on one node."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A node before and after an operator's call."""

    before: Node
    after: Node

    @property
    def anything(self) -> bool:
        """Whether anything was written."""
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class Wish:
    """What an operator says of a drain; None and blank leave it as it is, or take the default."""

    reason: str = ""
    max_parallel: int | None = None
    min_healthy_seconds: float | None = None
    deadline: datetime | None = None
    ignore_pinned: bool | None = None


async def drain(store: Store, node_id: str, wish: Wish, default: DrainJob, *, total: int, now: datetime) -> Changed:
    """Ask for a node to be emptied, or change how; total: how many workloads are on it. Raises NotFound."""

    def change(node: Node) -> Node:
        job = node.drain_job if node.drain and node.drain_job else default.replace(started_at=now, total=total)
        job = _wished(job, wish)
        # What was ignored may have to leave now: then it is not drained any more.
        again = bool(node.drain_job and node.drain_job.ignore_pinned and not job.ignore_pinned)
        return node.replace(drain=Drain.DRAINING if again else node.drain or Drain.DRAINING, drain_job=job)

    return await _change(store, node_id, change)


async def undrain(store: Store, node_id: str) -> Changed:
    """End a drain; whether the node is Ready is a matter of its health. Raises NotFound."""
    return await _change(store, node_id, lambda node: node.replace(drain=Drain.NONE, drain_job=None))


async def mark_drained(
    store: Store, seen: Node, pinned: AbstractSet[str], *, now: datetime, guards: Sequence[Guard] = ()
) -> bool:
    """Note that the drain that was seen is over; return whether it is noted now.

    Not when the drain has been ended or changed since, or when the ledger holds anything but what is pinned.
    """
    refs: list[Ref[Any]] = [Ref(NODES, seen.node_id), Ref(LEDGERS, seen.node_id)]

    def decide(view: View) -> Write[bool]:
        node, ledger = view.get(NODES, seen.node_id).record, view.get(LEDGERS, seen.node_id).record
        if node is None or node.drain != Drain.DRAINING or node.drain_job != seen.drain_job or not node.is_ready:
            return Write(result=False)
        if ledger and ledger.commitments.keys() - pinned:
            return Write(result=False)
        write = Write(result=True)
        job = (node.drain_job or DrainJob()).replace(finished_at=now)
        write.put(NODES, node.node_id, node.replace(drain=Drain.DRAINED, drain_job=job))
        return write

    return await store.transact(refs, decide, guards=guards)


async def set_schedulable(store: Store, node_id: str, *, schedulable: bool) -> Changed:
    """Let a node take new work, or not; what is there stays. Raises NotFound."""
    return await _change(store, node_id, lambda node: node.replace(schedulable=schedulable))


async def add_taint(store: Store, node_id: str, taint: Taint) -> Changed:
    """Put a taint on a node; one with the same key and effect is replaced. Raises NotFound, Refused."""

    def change(node: Node) -> Node:
        others = [t for t in node.taints if _identity(t) != _identity(taint)]
        if len(others) >= MAX_TAINTS:
            raise Refused(f'node "{node_id}" has {len(others)} taints, at most {MAX_TAINTS} are allowed')
        same = [t for t in node.taints if _identity(t) == _identity(taint)]
        if same and same[0].value == taint.value:
            return node
        return node.replace(taints=(*others, taint))

    return await _change(store, node_id, change)


async def remove_taint(store: Store, node_id: str, key: str, effect: str) -> Changed:
    """Take a taint off a node. Raises NotFound."""
    gone = (key, effect)
    return await _change(
        store, node_id, lambda node: node.replace(taints=tuple(t for t in node.taints if _identity(t) != gone))
    )


async def set_label(store: Store, node_id: str, key: str, value: str) -> Changed:
    """Label a node. Raises NotFound; Refused where its agent gives another value, which wins."""

    def change(node: Node) -> Node:
        _check_key(key)
        said = node.agent_labels.get(key)
        if said not in (None, value):
            raise Refused(f'label {key}={said} of node "{node_id}" comes from its agent, which wins; change it there')
        labels = {**node.operator_labels, key: value}
        if len(labels) > MAX_LABELS:
            raise Refused(f'node "{node_id}" has {MAX_LABELS} labels set by operators; no more are allowed')
        return _labelled(node, labels)

    return await _change(store, node_id, change)


async def delete_label(store: Store, node_id: str, key: str) -> Changed:
    """Take a label off a node. Raises NotFound; Refused where it comes from the node's agent."""

    def change(node: Node) -> Node:
        _check_key(key)
        if key in node.agent_labels and key not in node.operator_labels:
            raise Refused(
                f'label {key}={node.agent_labels[key]} of node "{node_id}" comes from its agent; take it away there'
            )
        return _labelled(node, {k: v for k, v in node.operator_labels.items() if k != key}, gone=key)

    return await _change(store, node_id, change)


async def remove_node(store: Store, node_id: str, *, force: bool) -> Node | None:
    """Remove a node with its ledger; return what it was, None when there was none. Its workloads are placed anew.

    force: also while it is Ready, or holds work. Raises Refused.
    """
    refs: list[Ref[Any]] = [Ref(NODES, node_id), Ref(LEDGERS, node_id)]

    def decide(view: View) -> Write[Node | None]:
        node, ledger = view.get(NODES, node_id).record, view.get(LEDGERS, node_id).record
        if node is None:
            return Write(None)
        if not force:
            _check_removable(node, ledger)
        write: Write[Node | None] = Write(node)
        write.delete(NODES, node_id)
        write.delete(LEDGERS, node_id)
        view.require(names := dns_refs(node))
        unname(write, view, names)
        return write

    return await store.transact(refs, decide)


async def check_removal(store: Store, node_id: str, workloads: int, *, force: bool) -> None:
    """Say whether a node could be removed now. Raises NotFound, Refused."""
    view = await store.read([Ref(NODES, node_id), Ref(LEDGERS, node_id)])
    node = view.get(NODES, node_id).record
    if node is None:
        raise NotFound(f'there is no node "{node_id}"')
    if not force:
        _check_removable(node, view.get(LEDGERS, node_id).record, workloads)


def holds_text(node_id: str, held: int) -> str:
    """Say why a node that holds work is not removed."""
    return (
        f'node "{node_id}" holds {held} workload{"" if held == 1 else "s"}; wait until they have moved, or use '
        "force when it is certain that they do not run there any more"
    )


def _check_removable(node: Node, ledger: Ledger | None, workloads: int = 0) -> None:
    if node.is_ready:
        raise Refused(
            f'node "{node.node_id}" is heard: its agent would register it again; stop the agent first, or use force'
        )
    if held := max(workloads, len(ledger.commitments) if ledger else 0):
        raise Refused(holds_text(node.node_id, held))


async def _change(store: Store, node_id: str, change: Callable[[Node], Node]) -> Changed:
    def decide(view: View) -> Write[Changed]:
        node = view.get(NODES, node_id).record
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        after = change(node)
        write = Write(Changed(node, after))
        write.put(NODES, node_id, after)
        return write

    return await store.transact([Ref(NODES, node_id)], decide)


def _wished(job: DrainJob, wish: Wish) -> DrainJob:
    said = {
        "max_parallel": wish.max_parallel,
        "min_healthy_seconds": wish.min_healthy_seconds,
        "deadline": wish.deadline,
        "ignore_pinned": wish.ignore_pinned,
        "reason": wish.reason or None,
    }
    after = job.replace(**{name: value for name, value in said.items() if value is not None})
    return after.replace(deadline=None) if after.deadline == NO_DEADLINE else after


def _identity(taint: Taint) -> tuple[str, str]:
    return taint.key, taint.effect or NO_SCHEDULE


def _check_key(key: str) -> None:
    if key == SHARD_LABEL:
        raise InvalidInput("key", f"{SHARD_LABEL} is set by the scheduler; choose another key")


def _labelled(node: Node, operator: dict[str, str], *, gone: str = "") -> Node:
    known = {k: v for k, v in node.labels.items() if k != gone}
    return node.replace(operator_labels=operator, labels=labels_of(known, node.agent_labels, operator))
