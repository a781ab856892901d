"""An exclusive workload under partitions, returns, fences, late orders and users: never two copies at once.

Two workers, a front that hears who is connected, and three nodes whose guardians end exclusive
copies in time. A node may be cut off while its copy runs on, may be reached by workers although
it is not heard, and its clock is everybody's. An operator fences only what he has turned off.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.agents.classify import NOT_NOW, OLDER_EPOCH
from scheduler.domain.errors import AgentRejected, AgentUnreachable, Conflict, Fenced, NotFound, Refused
from scheduler.domain.node import Health, Node
from scheduler.domain.policy import told_stop_after_ms
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, WorkloadSpec
from scheduler.store.fences import fence_node
from scheduler.store.keys import SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from scheduler.store.workloads import apply_spec, mark_deleted, record_missing, record_report, set_desired
from tests.support.loop_world import Clock, FakePulses, World, world
from tests.support.placement import check_history, spec

NODE_IDS = ("n-1", "n-2", "n-3")
STOP_AFTER, LEASE = 10.0, 3.0
LONGEST_DELAY = 2.0
"""No order is delivered later than that: less than a node waits before it takes one after a gap."""


@dataclass
class Copy:
    """The workload on a node."""

    revision: str
    epoch: int
    state: str
    stop_after: float
    generation: int


@dataclass
class Host:
    """A node by the rules of our own agent and its guardian."""

    clock: Clock
    on: bool = True
    heard: bool = True
    """Its heartbeats get through."""
    heard_at: float = 0.0
    settled_at: float = 0.0
    copy: Copy | None = None
    deleted: int = 0

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
        if self.copy and self.copy.state == Actual.RUNNING and self.now >= self.heard_at + self.copy.stop_after:
            self.copy.state = Actual.STOPPED

    def apply(self, ordered: WorkloadSpec, desired: str, epoch: int) -> Report:
        """Take an order."""
        if epoch <= self.deleted or (self.copy and epoch < self.copy.epoch):
            raise AgentRejected("the node knows a newer epoch", OLDER_EPOCH)
        stop_after = told_stop_after_ms(ordered, STOP_AFTER, LEASE) / 1000
        assert stop_after
        state = Actual.STOPPED if desired == Desired.STOPPED else Actual.RUNNING
        if state == Actual.RUNNING and (self.now < self.settled_at or self.now >= self.heard_at + stop_after):
            raise AgentRejected("not heard lately", NOT_NOW)
        if self.copy and self.copy.epoch == epoch and ordered.generation < self.copy.generation:
            raise AgentRejected("knows a newer generation", NOT_NOW)
        self.copy = Copy(ordered.revision_id, epoch, state, stop_after, ordered.generation)
        return self.report()

    def delete(self, epoch: int) -> None:
        """Remove the copy; remember it."""
        if self.copy and epoch < self.copy.epoch:
            raise AgentRejected("the node knows a newer epoch", OLDER_EPOCH)
        self.deleted = max(epoch, self.deleted)
        self.copy = None

    def report(self) -> Report:
        """Tell how it is."""
        if self.copy is None:
            return Report("x", Actual.MISSING)
        return Report("x", self.copy.state, revision_id=self.copy.revision, epoch=self.copy.epoch)


@dataclass
class Theatre:
    """All of them; also the network between them."""

    dice: random.Random
    clock: Clock
    pulses: FakePulses
    hosts: dict[str, Host]
    workers: list[World] = field(default_factory=list)
    late: list[tuple[float, Host, Callable[[Host], object]]] = field(default_factory=list)
    calm: bool = False

    def check(self) -> None:
        """At most one copy, at any time."""
        for host in self.hosts.values():
            host.guard()
        running = [n for n, h in self.hosts.items() if h.on and h.copy and h.copy.state == Actual.RUNNING]
        assert len(running) <= 1, {n: h.copy for n, h in self.hosts.items()}

    async def pause(self) -> None:
        """Let the others go on for a while."""
        for _ in range(self.dice.randrange(8)):
            await asyncio.sleep(0)

    # The agents' side, as the loops call it.

    async def apply(self, node: Node, ordered: WorkloadSpec, *, desired: str, epoch: int) -> Report:
        """Order a copy."""
        report: Report = await self._call(node, lambda host: host.apply(ordered, desired, epoch))
        return report

    async def delete(self, node: Node, _workload_id: str, *, epoch: int) -> bool:
        """Order a removal."""
        await self._call(node, lambda host: host.delete(epoch))
        return True

    async def status(self, node: Node, _workload_id: str) -> Report:
        """Ask."""
        report: Report = await self._call(node, lambda host: host.report())
        return report

    def drop(self, node_id: str) -> None:
        """Forget nobody."""

    async def _call(self, node: Node, act: Callable[[Host], object]):  # type: ignore[no-untyped-def]  # noqa: ANN202
        sent = self.clock().timestamp()
        await self.pause()
        host = self.hosts[node.node_id]
        if self.calm:
            return act(host)
        fate = self.dice.choices(["ok", "lost", "late", "answer lost"], [10, 1, 2, 1])[0]
        reached = host.on and (host.heard or self.dice.random() < 0.5)
        if not reached or fate == "lost" or self.clock().timestamp() > sent + LONGEST_DELAY:
            raise AgentUnreachable(node.node_id)
        if fate == "late":
            self.late.append((sent, host, act))
            raise AgentUnreachable(node.node_id)
        answer = act(host)
        self.check()
        if fate == "answer lost":
            raise AgentUnreachable(node.node_id)
        return answer

    # What happens.

    async def user(self) -> None:
        """Change what is wanted, or how it is to be treated."""
        store, now = self.dice.choice(self.workers).store, self.clock()
        rules = {
            "fleetbeat.exclusive": "true",
            "fleetbeat.stop_after": self.dice.choice(["5s", "10s", "20s"]),
            "fleetbeat.on_return": self.dice.choice(["keep_original", "keep_replacement", "longest_running"]),
        }
        try:
            act = self.dice.choices(["apply", "delete", "stop", "start"], [6, 1, 1, 2])[0]
            if act == "apply":
                await apply_spec(store, spec("x", image=f"v{self.dice.randrange(2)}", metadata=rules), now=now)
            elif act == "delete":
                await mark_deleted(store, "x", now=now)
            else:
                await set_desired(store, "x", "Stopped" if act == "stop" else "Running", now=now)
        except (NotFound, Refused, Conflict):
            return

    async def worker(self) -> None:
        """Look, by wake-up or by cycle."""
        this = self.dice.choice(self.workers)
        try:
            if self.dice.random() < 0.5:
                await this.wake("x")
            else:
                this.slot = max(one.slot for one in self.workers)
                await this.cycle(self.dice.choice(["reconcile", "reconcile", "monitor_nodes"]))
        except (Fenced, Conflict):
            return

    async def time(self) -> None:
        """Let time pass; those who are connected beat, and what is late arrives."""
        self.clock.forward(2.0 if self.calm else self.dice.choice([0.5, 1.0, 2.0, 4.0]))
        self.check()
        for sent, host, act in self.late:
            if host.on and self.clock().timestamp() <= sent + LONGEST_DELAY:
                try:
                    act(host)
                except AgentRejected:
                    continue
        self.late.clear()
        self.check()
        for node_id, host in self.hosts.items():
            if host.on and host.heard:
                await self.beat(node_id, host)

    async def beat(self, node_id: str, host: Host) -> None:
        """Do what a front does with a heartbeat."""
        this = self.dice.choice(self.workers)
        self.pulses.beat(node_id)
        host.beat()
        await set_health(
            this.store, node_id, Health.READY, "heard", "heartbeat", now=self.clock(), expect_status=Health.NOT_READY
        )
        stored = await this.store.get(STATUSES, "x")
        if host.copy:
            await record_report(this.store, node_id, host.report(), now=self.clock())
        elif stored.record and stored.record.node_id == node_id:
            seen = stored.mod_revision
            await record_missing(this.store, node_id, "x", stored.record.epoch, now=self.clock(), seen_revision=seen)

    async def fate(self) -> None:
        """Cut a node off, turn it off, fence it, or let it come back."""
        node_id = self.dice.choice(NODE_IDS)
        stored = (await self.workers[0].store.get(STATUSES, "x")).record
        if stored and stored.node_id and self.dice.random() < 0.6:
            node_id = stored.node_id
        host = self.hosts[node_id]
        act = self.dice.choices(["cut", "heal", "off", "on", "fence", "crash"], [5, 3, 1, 2, 1, 1])[0]
        if act in ("cut", "heal"):
            host.heard = act == "heal"
        elif act == "crash" and host.copy:
            host.copy.state = Actual.FAILED
        elif act == "on":
            host.on = True
        elif act in ("off", "fence"):
            host.on, host.copy, host.deleted = False, None, 0
            if act == "fence":
                store = self.dice.choice(self.workers).store
                await fence_node(store, node_id, "off", force=True, now=self.clock())

    async def calm_down(self) -> None:
        """End all mishaps, and run until nothing is left to do."""
        self.calm = True
        this = self.workers[0]
        for host in self.hosts.values():
            host.on = host.heard = True
        this.slot = max(one.slot for one in self.workers)
        for _ in range(40):
            await self.time()
            await this.settle()
            await this.cycle()
            self.check()


async def play(seed: int, length: int) -> None:
    """Let everybody act, then calm down: what is wanted runs, once."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    etcd, clock = MemoryEtcd(), Clock()
    pulses = FakePulses(clock)
    theatre = Theatre(dice, clock, pulses, {n: Host(clock, heard_at=clock().timestamp()) for n in NODE_IDS})
    etcd.pause = theatre.pause
    async with AsyncExitStack() as stack:
        for _ in range(2):
            this = await stack.enter_async_context(
                world(etcd, agents=theatre, clock=clock, pulses=pulses, exclusive_stop_after_seconds=STOP_AFTER)
            )
            theatre.workers.append(this)
        for node_id in NODE_IDS:
            record = Node(
                node_id=node_id, total_cpu=2.0, total_memory=2048, reports_epochs=True, enforces_stop_after=True
            )
            await register(theatre.workers[0].store, record, now=clock())
            pulses.beat(node_id)
        await theatre.user()
        roles: list[Callable[[], Awaitable[None]]] = [
            theatre.user, *[theatre.worker] * 8, *[theatre.time] * 6, *[theatre.fate] * 2,
        ]  # fmt: skip

        async def actor() -> None:
            for _ in range(length):
                await theatre.pause()
                await dice.choice(roles)()
                theatre.check()

        await asyncio.gather(*(actor() for _ in range(3)))
        etcd.pause = lambda: asyncio.sleep(0)
        await theatre.calm_down()
        await check_end(theatre)
        await check_history(etcd)


async def check_end(theatre: Theatre) -> None:
    """What is wanted runs once, where it is assigned."""
    this = theatre.workers[0]
    wanted = (await this.store.get(SPECS, "x")).record
    copies = {n: h.copy for n, h in theatre.hosts.items() if h.copy}
    if wanted is None:
        assert not copies
        return
    if wanted.desired_state == Desired.STOPPED:
        assert all(c.state != Actual.RUNNING for c in copies.values())
        return
    assert list(copies) == [(await this.status("x")).node_id]
    assert all(c.state == wanted.desired_state and c.revision == wanted.revision_id for c in copies.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 60))
def test_scenario_L15_there_are_never_two_copies_of_an_exclusive_workload(seed: int, length: int) -> None:
    """Partitions of one direction, late orders, fences, users who change rules: one copy at most, one in the end."""
    asyncio.run(play(seed, length))
