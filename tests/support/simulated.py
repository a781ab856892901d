"""Nodes by the rules of our own agent and its guardian, on a clock set by hand, and the calls that reach them.

Everything that a history may do to a node is a field here: whether it is on, whether its heartbeats get
through, whether calls reach it, how it answers orders, how fast its copies start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from scheduler.agents.classify import NOT_NOW, OLDER_EPOCH
from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.node import Node
from scheduler.domain.policy import told_stop_after_ms
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, WorkloadSpec
from tests.support.loop_world import Clock

T = TypeVar("T")

STOP_AFTER, LEASE = 10.0, 3.0
"""Of the simulated nodes and of the world that they are used in: what a workload has that says nothing, seconds."""
LONGEST_DELAY = 2.0
"""No order is delivered later than that: less than a node waits before it takes one after a gap."""


@dataclass
class Copy:
    """A workload on a node."""

    revision: str
    epoch: int
    generation: int
    state: str
    stop_after: float
    """0: it is not exclusive."""
    code: str = ""
    """Of its failure."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs or is starting."""
        return self.state in (Actual.RUNNING, Actual.PENDING)


@dataclass
class Host:
    """One node."""

    clock: Clock
    on: bool = True
    heard: bool = True
    """Its heartbeats get through."""
    reachable: bool = True
    """Calls reach it."""
    refuses: str = ""
    """With which code it refuses orders; blank: it takes them."""
    slow: bool = False
    """What it starts is Pending until `progress`."""
    heard_at: float = 0.0
    settled_at: float = 0.0
    copies: dict[str, Copy] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have been heard just now."""
        self.heard_at = self.now

    @property
    def now(self) -> float:
        """Seconds."""
        return self.clock().timestamp()

    def beat(self) -> None:
        """Be acknowledged."""
        if self.now - self.heard_at >= LEASE:
            self.settled_at = self.now + LEASE
        self.heard_at = self.now

    def guard(self) -> None:
        """End what must not run any more."""
        for copy in self.copies.values():
            if copy.is_alive and copy.stop_after and self.now >= self.heard_at + copy.stop_after:
                copy.state = Actual.STOPPED

    def progress(self) -> None:
        """Let what is starting run."""
        for copy in self.copies.values():
            if copy.state == Actual.PENDING:
                copy.state = Actual.RUNNING

    def end(self, workload_id: str, state: str, code: str = "") -> None:
        """Let a copy end, or go back to its start."""
        copy = self.copies.get(workload_id)
        if copy and copy.is_alive:
            copy.state, copy.code = state, code

    def turn_off(self, *, wiped: bool) -> None:
        """Run nothing any more. What is exclusive is not started again without an order; wiped: nothing is known."""
        self.on = False
        if wiped:
            self.copies.clear()
            self.deleted.clear()
        for copy in self.copies.values():
            if copy.stop_after and copy.is_alive:
                copy.state = Actual.STOPPED

    def apply(self, ordered: WorkloadSpec, desired: str, epoch: int) -> Report:
        """Take an order."""
        known = self.copies.get(ordered.id)
        if epoch <= self.deleted.get(ordered.id, 0) or (known and epoch < known.epoch):
            raise AgentRejected("the node knows a newer epoch", OLDER_EPOCH)
        if self.refuses:
            raise AgentRejected(f"this node refuses it with {self.refuses}", self.refuses)
        stop_after = told_stop_after_ms(ordered, STOP_AFTER, LEASE) / 1000
        runs = desired != Desired.STOPPED
        if runs and stop_after and (self.now < self.settled_at or self.now >= self.heard_at + stop_after):
            raise AgentRejected("not heard lately", NOT_NOW)
        if known and known.epoch == epoch and ordered.generation < known.generation:
            raise AgentRejected("knows a newer generation", NOT_NOW)
        state = self._begun(known, ordered) if runs else Actual.STOPPED
        self.copies[ordered.id] = Copy(ordered.revision_id, epoch, ordered.generation, state, stop_after)
        return self.report(ordered.id)

    def _begun(self, known: Copy | None, ordered: WorkloadSpec) -> str:
        if known and known.revision == ordered.revision_id and known.is_alive:
            return known.state
        return Actual.PENDING if self.slow else Actual.RUNNING

    def delete(self, workload_id: str, epoch: int) -> bool:
        """Remove a copy; remember it."""
        known = self.copies.get(workload_id)
        if known and epoch < known.epoch:
            raise AgentRejected("the node knows a newer epoch", OLDER_EPOCH)
        self.deleted[workload_id] = max(epoch, self.deleted.get(workload_id, 0))
        self.copies.pop(workload_id, None)
        return True

    def report(self, workload_id: str) -> Report:
        """Tell how a copy is."""
        copy = self.copies.get(workload_id)
        if copy is None:
            return Report(workload_id, Actual.MISSING)
        metadata = {"retry_terminal": "true"} if copy.code else {}
        message = "exit code 1" if copy.state == Actual.FAILED else ""
        return Report(workload_id, copy.state, message, copy.revision, copy.epoch, copy.code, metadata=metadata)


class Hosts:
    """All nodes, and the calls of the loops to their agents."""

    def __init__(self, clock: Clock, node_ids: tuple[str, ...], turn: Callable[[], Awaitable[None]]) -> None:
        """Take the nodes' names; turn: awaited before and after each call."""
        self.clock = clock
        self.by_id = {node_id: Host(clock) for node_id in node_ids}
        self.fate = "ok"
        """Of the next call: ok, lost, late, answer lost."""
        self.late: list[tuple[float, Host, Callable[[Host], object]]] = []
        self.on_change: Callable[[], None] = lambda: None
        self._turn = turn

    async def apply(self, node: Node, ordered: WorkloadSpec, *, desired: str, epoch: int) -> Report:
        """Order a copy."""
        return await self._call(node, lambda host: host.apply(ordered, desired, epoch))

    async def delete(self, node: Node, workload_id: str, *, epoch: int) -> bool:
        """Order a removal."""
        return await self._call(node, lambda host: host.delete(workload_id, epoch))

    async def status(self, node: Node, workload_id: str) -> Report:
        """Ask for one."""
        return await self._call(node, lambda host: host.report(workload_id))

    def drop(self, node_id: str) -> None:
        """Forget nobody."""

    def deliver_late(self) -> None:
        """Have arrive what is on its way and not too old."""
        late, self.late = self.late, []
        for sent, host, act in late:
            if host.on and host.now <= sent + LONGEST_DELAY:
                try:
                    act(host)
                except AgentRejected:
                    continue
        self.on_change()

    def running(self, workload_id: str) -> list[str]:
        """Return the nodes on which a copy runs or is starting."""
        return [
            node_id
            for node_id, host in self.by_id.items()
            if host.on and workload_id in host.copies and host.copies[workload_id].is_alive
        ]

    async def _call(self, node: Node, act: Callable[[Host], T]) -> T:
        sent, host = self.clock().timestamp(), self.by_id[node.node_id]
        fate, self.fate = self.fate, "ok"
        await self._turn()
        if not (host.on and host.reachable) or fate == "lost":
            raise AgentUnreachable(node.node_id)
        if fate == "late":
            self.late.append((sent, host, act))
            raise AgentUnreachable(node.node_id)
        answer = act(host)
        self.on_change()
        await self._turn()
        if fate == "answer lost":
            raise AgentUnreachable(node.node_id)
        return answer
