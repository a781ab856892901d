"""Any number of placers, movers and deleters, in any order: the ledger is never oversubscribed, at no revision."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import Conflict, StoreUnavailable
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node
from scheduler.domain.workload import WorkloadSpec
from scheduler.placement.filters import first_objection
from scheduler.placement.request import request_of
from scheduler.store import placements
from scheduler.store.keys import LEDGERS, NODES, SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from tests.support.placement import (
    EXACT,
    check_history,
    delete_workload,
    node,
    placers_on,
    put,
    put_nodes,
    put_workload,
    records,
    spec,
)

NODES_IN_PLAY = ("n-1", "n-2", "n-3")

fleets = st.lists(
    st.builds(
        node,
        total_cpu=st.sampled_from([0.2, 0.5, 1.0]),
        total_memory=st.sampled_from([128, 512]),
        total_disk=st.sampled_from([0, 3]),
    ),
    min_size=2,
    max_size=3,
).map(lambda found: [n.replace(node_id=i) for n, i in zip(found, NODES_IN_PLAY, strict=False)])
workloads = st.lists(
    st.builds(
        spec,
        cpu=st.sampled_from([0.1, 0.2]),
        memory=st.sampled_from([0, 64, 128]),
        disk=st.sampled_from([0, 1]),
        ports=st.sampled_from([(), (), ("80:80/tcp",)]),
    ),
    min_size=1,
    max_size=6,
).map(lambda found: [s.replace(id=f"w-{i}") for i, s in enumerate(found)])
steps = st.lists(
    st.tuples(
        st.sampled_from(["place", "place", "place", "move", "delete", "create", "lose", "find", "touch"]),
        st.integers(0, 2),  # which placer
        st.integers(0, 5),  # which workload
        st.sampled_from(NODES_IN_PLAY),
    ),
    min_size=25,
    max_size=50,
)


class World:
    """One etcd, some placers, and what can happen to them."""

    def __init__(self, etcd: MemoryEtcd, placers: list[Placer], specs: list[WorkloadSpec], *, mishaps: bool) -> None:
        """Take the parts; a store of its own plays the API and the operators."""
        self.etcd = etcd
        self.placers = placers
        self.specs = specs
        self.store = Store(etcd)
        self.tolerated = (StoreUnavailable, Conflict) if mishaps else ()

    async def run(self, action: str, placer: int, workload: int, node_id: str) -> None:
        """Carry out one step; with mishaps on, it may end in a failure that says so."""
        target = self.specs[workload % len(self.specs)]
        acts: dict[str, Callable[[], Awaitable[object]]] = {
            "place": lambda: self.placers[placer].place(target.id),
            "move": lambda: self.move(self.placers[placer], target.id),
            "delete": lambda: delete_workload(self.store, target.id),
            "create": lambda: self.create(target),
            "lose": lambda: self.change_node(node_id, status="NotReady"),
            "find": lambda: self.change_node(node_id, status="Ready"),
            "touch": lambda: self.change_node(node_id, labels={"touched": "yes"}),
        }
        with contextlib.suppress(*self.tolerated):
            await acts[action]()

    async def move(self, placer: Placer, workload_id: str) -> None:
        """Lose the workload's node and move it."""
        status = (await self.store.get(STATUSES, workload_id)).record
        if status and status.node_id:
            await self.change_node(status.node_id, status="NotReady")
            await placer.move(workload_id, from_node=status.node_id)

    async def create(self, target: WorkloadSpec) -> None:
        """Create a workload unless it is there."""
        await put_workload(self.store, target)

    async def change_node(self, node_id: str, **changes: object) -> None:
        """Change a node that exists."""
        known = (await self.store.get(NODES, node_id)).record
        if known:
            await put(self.store, NODES, node_id, known.replace(**changes))


async def play(
    fleet: list[Node], specs: list[WorkloadSpec], moves: list[tuple[str, int, int, str]], seed: int, *, mishaps: bool
) -> None:
    """Run all steps at once over one etcd whose calls are delayed at random, then check every revision.

    Half the time the placers are not choosy, so that the check of capacity alone must hold.
    """
    chance = random.Random(seed)  # noqa: S311
    etcd = MemoryEtcd()
    store = Store(etcd)
    await put_nodes(store, fleet)
    for each in specs:
        await put_workload(store, each)

    async def pause() -> None:
        for _ in range(chance.choice([0, 0, 1, 2, 5])):
            await asyncio.sleep(0)

    def mishap(call: str) -> Mishap | None:
        return chance.choice([*Mishap, *[None] * 12]) if mishaps and call == "txn" else None

    choosy_tries = chance.choice([0, placements._CHOOSY_TRIES])
    async with placers_on([etcd] * 3) as placers:
        world = World(etcd, [placer for placer, _, _ in placers], specs, mishaps=mishaps)
        etcd.pause, etcd.mishap = pause, mishap
        with mock.patch.object(placements, "_CHOOSY_TRIES", choosy_tries):
            async with asyncio.TaskGroup() as group:
                for each in specs:
                    group.create_task(world.run("place", chance.randrange(3), specs.index(each), ""))
                for move in moves:
                    group.create_task(world.run(*move))
                if mishaps:
                    group.create_task(apply_late(etcd))
        etcd.mishap = lambda _call: None
        etcd.apply_late()
        await check_history(etcd)
        if not mishaps:
            await check_nothing_is_left_out(etcd, world)
    await etcd.close()


async def apply_late(etcd: MemoryEtcd) -> None:
    """Let writes that were on their way arrive, now and then."""
    for _ in range(100):
        await asyncio.sleep(0)
        etcd.apply_late()


async def check_nothing_is_left_out(etcd: MemoryEtcd, world: World) -> None:
    """Place what has no node yet; what then has none fits nowhere, by the records themselves."""
    for placer in world.placers:
        await placer._cache.wait_revision(etcd.revision, 5)
    for workload_id in await records(etcd, SPECS):
        await world.placers[0].place(workload_id)
    nodes, ledgers = await records(etcd, NODES), await records(etcd, LEDGERS)
    specs, statuses = await records(etcd, SPECS), await records(etcd, STATUSES)
    for workload_id, status in statuses.items():
        if status.node_id:
            assert not status.pending_reason
            continue
        assert status.pending_reason
        for each in nodes.values():
            ledger = ledgers.get(each.node_id, Ledger(node_id=each.node_id))
            assert first_objection(each, ledger, request_of(specs[workload_id]), EXACT), (workload_id, each)


@settings(max_examples=60, deadline=None)
@given(fleets, workloads, steps, st.integers(0, 2**32))
def test_scenario_C1_no_ledger_is_oversubscribed_at_any_revision(
    fleet: list[Node], specs: list[WorkloadSpec], moves: list[tuple[str, int, int, str]], seed: int
) -> None:
    """And each workload is committed on exactly one node, with status and assignment agreeing, at any revision.

    In the end every workload that fits somewhere has a node, and each of the others says why not.
    """
    asyncio.run(play(fleet, specs, moves, seed, mishaps=False))


@settings(max_examples=40, deadline=None)
@given(fleets, workloads, steps, st.integers(0, 2**32))
def test_scenario_C3_lost_answers_and_late_writes_change_nothing_about_that(
    fleet: list[Node], specs: list[WorkloadSpec], moves: list[tuple[str, int, int, str]], seed: int
) -> None:
    """All of a placement is written, or none of it, also when nobody is told which."""
    asyncio.run(play(fleet, specs, moves, seed, mishaps=True))
