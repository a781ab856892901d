"""A drain while everybody else goes on: two workers, a front, reboots, other operators, calls that get lost.

Whatever the turns: every workload that may run twice for a moment has a running copy all the time, one
that must not never has two, no more set out than may, and in the end the node is empty and drained.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import Conflict, Fenced
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Drain, DrainJob, Health, Node
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, WorkloadSpec
from scheduler.store import intent
from scheduler.store.intent import Wish
from scheduler.store.keys import LEDGERS, NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from scheduler.store.workloads import apply_spec
from tests.property.convergence.test_interleavings import Host, Network
from tests.support.loop_world import Clock, FakePulses, World, world
from tests.support.placement import spec

NODE_IDS = ("n-1", "n-2", "n-3")
PLAIN = ("a", "b", "c")
ALONE = ("x", "y")
MAX_PARALLEL = 2
RECORD = Node(node_id="", total_cpu=2.0, total_memory=2048, reports_epochs=True)


@dataclass
class SlowHost(Host):
    """A node on which a copy that is ordered runs a while later."""

    def apply(self, ordered: WorkloadSpec, desired: str, epoch: int) -> Report:
        """Take an order; a copy that is there already goes on as it is."""
        known = self.copies.get(ordered.id)
        super().apply(ordered, desired, epoch)
        self.copies[ordered.id].state = known.state if known else Actual.PENDING
        return self.report(ordered.id)


@dataclass
class Watched(Network):
    """A network that checks the copies after everything that happens on a node."""

    dice: random.Random
    trouble: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the nodes."""
        Network.__init__(self, self.dice)
        self.hosts = {node_id: SlowHost() for node_id in NODE_IDS}
        self.watching = False

    def check(self) -> None:
        """Note what must not be."""
        if not self.watching:
            return
        for name in PLAIN:
            if not any(h.copies[name].state == Actual.RUNNING for h in self.hosts.values() if name in h.copies):
                self.trouble.append(f"{name} runs nowhere")
        for name in ALONE:
            where = [n for n, h in self.hosts.items() if name in h.copies]
            if len(where) > 1:
                self.trouble.append(f"{name} is on {where}")

    async def _call(self, node: Node, act: Callable[[Host], object]):  # type: ignore[no-untyped-def]  # noqa: ANN202
        def watched(host: Host) -> object:
            done = act(host)
            self.check()
            return done

        return await super()._call(node, watched)


@dataclass
class Play:
    """All who act."""

    dice: random.Random
    network: Watched
    workers: list[World]
    clock: Clock
    pulses: FakePulses

    async def operator(self) -> None:
        """Drain the node, or end the drain."""
        store = self.dice.choice(self.workers).store
        if self.dice.random() < 0.3:
            await intent.undrain(store, "n-1")
        else:
            await self.drain(store)

    async def drain(self, store: object = None) -> None:
        """Ask for the drain."""
        wish, default = Wish(max_parallel=MAX_PARALLEL), DrainJob()
        await intent.drain(
            store or self.workers[0].store, "n-1", wish, default, total=5, now=self.clock()  # type: ignore[arg-type]
        )  # fmt: skip

    async def worker(self) -> None:
        """Look at one workload, or run a cycle."""
        this = self.dice.choice(self.workers)
        try:
            if self.dice.random() < 0.6:
                await this.wake(self.dice.choice(PLAIN + ALONE))
            else:
                this.slot = max(one.slot for one in self.workers)
                await this.cycle()
        except (Fenced, Conflict):
            return

    async def node(self) -> None:
        """Have what was ordered on a node run, and reported."""
        node_id = self.dice.choice(NODE_IDS)
        for copy in self.network.hosts[node_id].copies.values():
            copy.state = Actual.RUNNING
        await self.report(node_id)

    async def report(self, node_id: str) -> None:
        """Have a node's roster recorded."""
        host = self.network.hosts[node_id]
        this = self.dice.choice(self.workers)
        for report in [host.report(w) for w in list(host.copies)]:
            await this.hear(node_id, report)

    async def reboot(self) -> None:
        """Have the node fall silent and register again, its copies untouched."""
        store = self.workers[0].store
        await set_health(store, "n-1", Health.NOT_READY, "silent", "monitor", now=self.clock())
        await self.network.pause()
        await register(store, RECORD.replace(node_id="n-1"), now=self.clock())

    async def begin(self) -> None:
        """Have everything run on one node."""
        this = self.workers[0]
        for node_id in NODE_IDS:
            await register(this.store, RECORD.replace(node_id=node_id), now=self.clock())
            self.pulses.beat(node_id)
            await intent.set_schedulable(this.store, node_id, schedulable=node_id == "n-1")
        for name in PLAIN + ALONE:
            metadata = {"fleetbeat.exclusive": "true"} if name in ALONE else {}
            await apply_spec(this.store, spec(name, metadata=metadata), now=self.clock())
        self.network.calm = True
        await this.cycle()
        for copy in self.network.hosts["n-1"].copies.values():
            copy.state = Actual.RUNNING
        await self.report("n-1")
        for node_id in NODE_IDS:
            await intent.set_schedulable(this.store, node_id, schedulable=True)
        assert set(self.network.hosts["n-1"].copies) == set(PLAIN + ALONE)
        self.network.watching, self.network.calm = True, False

    async def finish(self) -> None:
        """Let nothing get lost any more and carry the drain on until it is over."""
        self.network.calm = True
        await asyncio.gather(*self.network.late)
        await register(self.workers[0].store, RECORD.replace(node_id="n-1"), now=self.clock())
        await self.drain()
        this = self.workers[0]
        this.slot = max(one.slot for one in self.workers)
        for _ in range(16):
            self.clock.forward(1000)
            self.pulses.beat(*NODE_IDS)
            await this.cycle()
            for node_id, host in self.network.hosts.items():
                for copy in host.copies.values():
                    copy.state = Actual.RUNNING
                await self.report(node_id)

    async def check(self) -> None:
        """The node is empty and drained, and everything runs once elsewhere."""
        assert not self.network.trouble, self.network.trouble
        record = (await self.workers[0].store.get(NODES, "n-1")).record
        assert record
        assert record.drain == Drain.DRAINED, {n: dict(h.copies) for n, h in self.network.hosts.items()}
        assert not self.network.hosts["n-1"].copies
        copies = sorted(name for host in self.network.hosts.values() for name in host.copies)
        assert copies == sorted(PLAIN + ALONE)


async def play(seed: int, length: int) -> None:
    """Let everybody act at once, then finish the drain and check."""
    dice = random.Random(seed)  # noqa: S311 - reproducible, not secret
    etcd, clock, network = MemoryEtcd(), Clock(), Watched(dice)
    pulses = FakePulses(clock)
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(world(etcd, agents=network, clock=clock, pulses=pulses)) for _ in range(2)
        ]
        theatre = Play(dice, network, workers, clock, pulses)
        await theatre.begin()
        etcd.pause = network.pause
        await theatre.drain()
        roles: list[Callable[[], Awaitable[None]]] = [
            theatre.worker, theatre.worker, theatre.worker, theatre.node, theatre.operator, theatre.reboot,
        ]  # fmt: skip

        async def actor() -> None:
            for _ in range(length):
                await network.pause()
                await dice.choice(roles)()

        await asyncio.gather(*(actor() for _ in range(3)))
        etcd.pause = lambda: asyncio.sleep(0)
        await theatre.finish()
        await theatre.check()
        await check_pace(etcd)


async def check_pace(etcd: MemoryEtcd) -> None:
    """At no revision were more workloads on their way than allowed."""
    for revision in range(2, etcd.revision + 1):
        found, _ = await etcd.scan(LEDGERS.prefix, revision=revision)
        for kv in found:
            assert len(Ledger.from_json(kv.value).leaving) <= MAX_PARALLEL


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(4, 14))
def test_F64_no_interleaving_of_a_drain_stops_what_runs_or_runs_twice_what_must_not(seed: int, length: int) -> None:
    """Drain, undrain, reboot, reports and lost calls in any order."""
    asyncio.run(play(seed, length))
