"""Users, two workers, a front and three agents at once, over a network that loses and delays.

Whatever happens in between: when everybody can be reached again, every workload that is wanted
runs exactly once, on the node it is assigned to, and nothing else runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.agents.classify import OLDER_EPOCH
from scheduler.domain.errors import AgentRejected, AgentUnreachable, Conflict, Fenced, NotFound, Refused
from scheduler.domain.node import Health, Node
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, WorkloadSpec
from scheduler.store.keys import SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from scheduler.store.workloads import apply_spec, mark_deleted, record_missing, record_report, set_desired
from tests.support.loop_world import Clock, FakePulses, World, world
from tests.support.placement import check_history, spec

NODE_IDS = ("n-1", "n-2", "n-3")
WORKLOADS = ("a", "b")


@dataclass
class Copy:
    """A workload on a node."""

    revision: str
    epoch: int
    state: str


@dataclass
class Host:
    """A node, its agent, and what its agent remembers."""

    up: bool = True
    copies: dict[str, Copy] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)

    def apply(self, ordered: WorkloadSpec, desired: str, epoch: int) -> Report:
        """Take an order, by the rules of our own agent."""
        known = self.copies.get(ordered.id)
        if epoch <= self.deleted.get(ordered.id, 0) or (known and epoch < known.epoch):
            raise AgentRejected("the node knows a newer epoch", OLDER_EPOCH)
        state = Actual.STOPPED if desired == Desired.STOPPED else Actual.RUNNING
        self.copies[ordered.id] = Copy(ordered.revision_id, epoch, state)
        return self.report(ordered.id)

    def delete(self, workload_id: str, epoch: int) -> None:
        """Remove a copy; remember it."""
        known = self.copies.get(workload_id)
        if known and epoch < known.epoch:
            raise AgentRejected("the node knows a newer epoch", OLDER_EPOCH)
        self.deleted[workload_id] = max(epoch, self.deleted.get(workload_id, 0))
        self.copies.pop(workload_id, None)

    def report(self, workload_id: str) -> Report:
        """Tell how a copy is."""
        copy = self.copies[workload_id]
        return Report(workload_id, copy.state, revision_id=copy.revision, epoch=copy.epoch)


class Network:
    """Calls to agents that take their time, lose answers, and deliver late."""

    def __init__(self, dice: random.Random) -> None:
        """Take the source of all that may happen."""
        self.dice = dice
        self.hosts = {node_id: Host() for node_id in NODE_IDS}
        self.calm = False
        self.late: list[asyncio.Task[None]] = []

    async def pause(self) -> None:
        """Let the others go on for a while."""
        for _ in range(self.dice.randrange(12)):
            await asyncio.sleep(0)

    async def apply(self, node: Node, ordered: WorkloadSpec, *, desired: str, epoch: int) -> Report:
        """Order a copy."""
        report: Report = await self._call(node, lambda host: host.apply(ordered, desired, epoch))
        return report

    async def delete(self, node: Node, workload_id: str, *, epoch: int) -> bool:
        """Order a removal."""
        await self._call(node, lambda host: host.delete(workload_id, epoch))
        return True

    async def status(self, node: Node, workload_id: str) -> Report:
        """Ask for one."""
        report: Report = await self._call(
            node,
            lambda host: (
                host.report(workload_id) if workload_id in host.copies else Report(workload_id, Actual.MISSING)
            ),
        )
        return report

    def drop(self, node_id: str) -> None:
        """Forget nobody."""

    async def _call(self, node: Node, act: Callable[[Host], object]):  # type: ignore[no-untyped-def]  # noqa: ANN202
        await self.pause()
        host = self.hosts[node.node_id]
        fate = "ok" if self.calm else self.dice.choices(["ok", "lost", "late", "answer lost"], [12, 1, 1, 1])[0]
        if not host.up or fate == "lost":
            raise AgentUnreachable(node.node_id)
        if fate == "late":
            self.late.append(asyncio.create_task(self._deliver_late(host, act)))
            raise AgentUnreachable(node.node_id)
        answer = act(host)
        if fate == "answer lost":
            raise AgentUnreachable(node.node_id)
        await self.pause()
        return answer

    async def _deliver_late(self, host: Host, act: Callable[[Host], object]) -> None:
        for _ in range(self.dice.randrange(200)):
            await asyncio.sleep(0)
        try:
            act(host)
        except AgentRejected:
            return


@dataclass
class Play:
    """All of them together."""

    dice: random.Random
    network: Network
    workers: list[World]
    clock: Clock
    pulses: FakePulses

    async def user(self) -> None:
        """Do one thing that a user may do."""
        name, now = self.dice.choice(WORKLOADS), self.clock()
        store = self.dice.choice(self.workers).store
        act = self.dice.choice(["apply", "apply", "stop", "start", "delete"])
        try:
            if act == "apply":
                image = f"v{self.dice.randrange(3)}"
                await apply_spec(store, spec(name, image=image, cpu=self.dice.choice([0.1, 1.5])), now=now)
            elif act == "delete":
                await mark_deleted(store, name, now=now)
            else:
                await set_desired(store, name, "Stopped" if act == "stop" else "Running", now=now)
        except (NotFound, Refused, Conflict):
            return

    async def worker(self) -> None:
        """Look at one workload, or run a cycle, somewhere."""
        this = self.dice.choice(self.workers)
        try:
            if self.dice.random() < 0.7:
                await this.wake(self.dice.choice(WORKLOADS))
            else:
                this.slot = max(one.slot for one in self.workers)
                await this.cycle()
        except (Fenced, Conflict):
            return

    async def front(self) -> None:
        """Record a node's roster, a little late."""
        node_id = self.dice.choice(NODE_IDS)
        host = self.network.hosts[node_id]
        if host.up:
            await self.record(node_id, [host.report(w) for w in list(host.copies)])

    async def record(self, node_id: str, reports: list[Report]) -> None:
        """Do what a front does with a roster."""
        this = self.dice.choice(self.workers)
        expected = {w: this.cache.get(STATUSES, w) for w in this.ctx.index.on_node(node_id)}
        await self.network.pause()
        for report in reports:
            await record_report(this.store, node_id, report, now=self.clock())
        for workload_id in expected.keys() - {r.workload_id for r in reports}:
            status = expected[workload_id]
            epoch = status.record.epoch if status.record else 0
            await record_missing(
                this.store, node_id, workload_id, epoch, now=self.clock(), seen_revision=status.mod_revision
            )

    async def fate(self) -> None:
        """Cut a node off, let it come back, or crash a copy."""
        node_id = self.dice.choice(NODE_IDS)
        host, store = self.network.hosts[node_id], self.workers[0].store
        running = [copy for copy in host.copies.values() if copy.state == Actual.RUNNING]
        if self.dice.random() < 0.4 and running:
            self.dice.choice(running).state = Actual.FAILED
        elif host.up:
            host.up = False
            await set_health(store, node_id, Health.NOT_READY, "silent", "monitor", now=self.clock())
            self.clock.forward(20)
        else:
            await self.bring_back(node_id)

    async def bring_back(self, node_id: str) -> None:
        """Have a node heard again."""
        self.network.hosts[node_id].up = True
        await set_health(self.workers[0].store, node_id, Health.READY, "heard", "heartbeat", now=self.clock())

    async def calm_down(self) -> None:
        """End all mishaps, then run cycles until nothing is left to do."""
        self.network.calm = True
        await asyncio.gather(*self.network.late)
        for node_id in NODE_IDS:
            await self.bring_back(node_id)
        this = self.workers[0]
        this.slot = max(one.slot for one in self.workers)
        for _ in range(12):
            self.clock.forward(1000)
            self.pulses.beat(*NODE_IDS)
            for node_id, host in self.network.hosts.items():
                await self.record(node_id, [host.report(w) for w in list(host.copies)])
            await this.cycle()

    async def check(self) -> None:
        """What is wanted runs once, where it is assigned; nothing else is anywhere; nothing is left to do."""
        this = self.workers[0]
        found = {(n, w): c for n, host in self.network.hosts.items() for w, c in host.copies.items()}
        wanted = {}
        for name in WORKLOADS:
            current = (await this.store.get(SPECS, name)).record
            if current is None:
                continue
            assert current.desired_state != Desired.DELETED, name
            status = await this.status(name)
            state = Actual.STOPPED if current.desired_state == Desired.STOPPED else Actual.RUNNING
            wanted[status.node_id, name] = (current.revision_id, status.epoch, state)
            assert (status.actual, status.observed_revision) == (state, current.revision_id)
        got = {key: (c.revision, c.epoch, c.state) for key, c in found.items()}
        assert got == wanted
        assert set(await this.cycle()) <= {"NoAction"}


async def play(seed: int, length: int) -> None:
    """Let everybody act at once, then calm down and check."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    etcd, clock, network = MemoryEtcd(), Clock(), Network(dice)
    pulses = FakePulses(clock)
    etcd.pause = network.pause
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(world(etcd, agents=network, clock=clock, pulses=pulses)) for _ in range(2)
        ]
        for node_id in NODE_IDS:
            record = Node(node_id=node_id, total_cpu=2.0, total_memory=2048, reports_epochs=True)
            await register(workers[0].store, record, now=clock())
        theatre = Play(dice, network, workers, clock, pulses)
        roles: list[Callable[[], Awaitable[None]]] = [
            theatre.user, theatre.worker, theatre.worker, theatre.worker, theatre.front, theatre.fate,
        ]  # fmt: skip

        async def actor() -> None:
            for _ in range(length):
                await network.pause()
                await dice.choice(roles)()

        await asyncio.gather(*(actor() for _ in range(3)))
        etcd.pause = lambda: asyncio.sleep(0)
        await theatre.calm_down()
        await theatre.check()
        await check_history(etcd)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 14))
def test_P2_every_interleaving_ends_with_exactly_what_is_wanted(seed: int, length: int) -> None:
    """Lost calls, late calls, lost answers, lost nodes, users who change their minds: it converges."""
    asyncio.run(play(seed, length))
