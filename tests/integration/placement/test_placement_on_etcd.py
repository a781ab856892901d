"""Placement over a real etcd: processes' worth of placers, every revision checked."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from scheduler.domain.errors import Conflict, StoreUnavailable
from scheduler.placement.explain import Explanation
from scheduler.store.assign import Placed
from scheduler.store.etcd import Etcd
from scheduler.store.keys import LEDGERS, NODES, SPECS, STATUSES
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from tests.support.placement import (
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
from tests.support.servers import Server, etcd, running

PLACERS = 5


class Fleet:
    """Several placers, each with a client and a cache of its own, as processes have."""

    def __init__(self, etcds: list[Etcd], placers: list[Placer], first_revision: int) -> None:
        """Take the parts and the revision from which on the history is ours."""
        self.etcds = etcds
        self.placers = placers
        self.first_revision = first_revision
        self.store = Store(etcds[0])

    async def check(self) -> int:
        """Check the invariants at every revision since the start; return how many there were."""
        return await check_history(self.etcds[0], self.first_revision)

    async def create(self, count: int, **changes: object) -> list[str]:
        """Store workloads that have no node."""
        ids = [f"w-{i}" for i in range(count)]
        await asyncio.gather(*(put_workload(self.store, spec(i, **changes)) for i in ids))  # type: ignore[arg-type]
        return ids


@pytest_asyncio.fixture
async def fleet(etcd_server: Server, etcd_prefix: str) -> AsyncIterator[Fleet]:
    """Five placers on the session's etcd, under a prefix of their own."""
    etcds = [Etcd([etcd_server.address], prefix=etcd_prefix) for _ in range(PLACERS)]
    _, revision = await etcds[0].get("/none")
    async with placers_on(etcds) as placers:
        yield Fleet(etcds, [placer for placer, _, _ in placers], revision + 1)
    for client in etcds:
        await client.close()


async def test_scenario_C1_fifty_submitters_never_oversubscribe_few_nodes(fleet: Fleet) -> None:
    """Three nodes with room for 45 of 50: 45 are placed, five say why not, and no revision shows more."""
    await put_nodes(fleet.store, (node(f"n-{i}", total_cpu=1.5) for i in range(3)))
    ids = await fleet.create(50)
    outcomes = await asyncio.gather(*(fleet.placers[i % PLACERS].place(w) for i, w in enumerate(ids)))
    unplaced = [w for w, outcome in zip(ids, outcomes, strict=True) if not isinstance(outcome, Placed)]
    assert all(isinstance(o, Explanation) for o in outcomes if not isinstance(o, Placed))
    for workload_id in unplaced:
        await fleet.placers[0].place(workload_id)
    statuses = (await records(fleet.etcds[0], STATUSES)).values()
    assert Counter(s.node_id for s in statuses) == {"n-0": 15, "n-1": 15, "n-2": 15, "": 5}
    assert all("cpu_insufficient" in s.pending_reason for s in statuses if not s.node_id)
    assert await fleet.check() >= 50 + 45


async def test_scenario_C3_placers_movers_and_deleters_at_once(fleet: Fleet) -> None:
    """Whatever they do to each other, status, assignment and ledgers agree at every revision."""
    chance = random.Random(7)  # noqa: S311
    await put_nodes(fleet.store, (node(f"n-{i}", total_cpu=0.6) for i in range(4)))
    ids = await fleet.create(18)

    async def place_and_move(placer: Placer) -> None:
        for workload_id in chance.sample(ids, len(ids)):
            await placer.place(workload_id)
            status = (await fleet.store.get(STATUSES, workload_id)).record
            if status and status.node_id and chance.random() < 0.5:
                await placer.move(workload_id, from_node=status.node_id)

    async def delete_some() -> None:
        for workload_id in chance.sample(ids, 6):
            await delete_workload(fleet.store, workload_id)
            await put_workload(fleet.store, spec(workload_id))

    async def lose_and_find() -> None:
        for _ in range(12):
            node_id = f"n-{chance.randrange(4)}"
            for status in ("NotReady", "Ready"):
                await put(fleet.store, NODES, node_id, node(node_id, total_cpu=0.6, status=status))
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for placer in fleet.placers:
            group.create_task(place_and_move(placer))
        group.create_task(delete_some())
        group.create_task(lose_and_find())
    assert await fleet.check() > 60
    assert {s.previous_node for s in (await records(fleet.etcds[0], STATUSES)).values()} - {""}


async def test_F58_ten_at_once_from_five_processes_split_five_and_five(fleet: Fleet) -> None:
    """Before any heartbeat, and although no placer sees the others' choices."""
    await put_nodes(fleet.store, (node("n-1"), node("n-2")))
    ids = await fleet.create(10)
    outcomes = await asyncio.gather(*(fleet.placers[i % PLACERS].place(w) for i, w in enumerate(ids)))
    assert Counter(o.node_id for o in outcomes if isinstance(o, Placed)) == {"n-1": 5, "n-2": 5}
    await fleet.check()


async def test_F51_a_node_change_is_visible_to_placement_without_a_scan(fleet: Fleet) -> None:
    """By the watch, in every process."""
    await put_workload(fleet.store, spec())
    await put_nodes(fleet.store, [node("n-1")])
    for placer in fleet.placers:
        await until_explained_as(placer, Placed)
    await put(fleet.store, NODES, "n-1", node("n-1", schedulable=False))
    for placer in fleet.placers:
        await until_explained_as(placer, Explanation)


async def until_explained_as(placer: Placer, expected: type[Placed | Explanation]) -> None:
    """Wait until the placer, from what it has been told, would place "web" or would not."""
    async with asyncio.timeout(5):
        while not placer._cache.get(SPECS, "web").record or not isinstance(placer.explain("web"), expected):
            await asyncio.sleep(0.005)


async def test_F59_a_release_is_visible_at_once(fleet: Fleet) -> None:
    """A commitment has no time to live: it ends with its workload, and the room is there for the next."""
    await put_nodes(fleet.store, [node("n-1")])
    await fleet.create(2, cpu=2)
    assert isinstance(await fleet.placers[0].place("w-0"), Placed)
    assert isinstance(await fleet.placers[1].place("w-1"), Explanation)
    await delete_workload(fleet.store, "w-0")
    async with asyncio.timeout(5):
        while not isinstance(await fleet.placers[1].place("w-1"), Placed):
            await asyncio.sleep(0.01)
    assert list((await records(fleet.etcds[0], LEDGERS))["n-1"].commitments) == ["w-1"]
    await fleet.check()


async def test_scenario_C5_placements_under_which_etcd_dies_are_whole_or_not_there(tmp_path: Path) -> None:
    """Tried again, all succeed; nothing assumed stays behind, and no revision shows half a placement."""
    with running(etcd(tmp_path)) as server:
        clients = [Etcd([server.address], timeout_seconds=1) for _ in range(2)]
        store = Store(clients[0])
        await put_nodes(store, (node(f"n-{i}", total_cpu=1) for i in range(3)))
        for index in range(30):
            await put_workload(store, spec(f"w-{index}"))
        async with placers_on(clients) as placers, asyncio.timeout(30):
            work = [asyncio.create_task(insist(placers[i % 2][0], f"w-{i}")) for i in range(30)]
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await asyncio.gather(*work)
            assert not any(placer._live._assumed for placer, _, _ in placers)
        statuses = (await records(clients[0], STATUSES)).values()
        assert Counter(s.node_id for s in statuses) == {"n-0": 10, "n-1": 10, "n-2": 10}
        await check_history(clients[0])
        for client in clients:
            await client.close()


async def insist(placer: Placer, workload_id: str) -> None:
    """Place a workload, however often it takes."""
    while True:
        try:
            assert isinstance(await placer.place(workload_id), Placed)
        except (StoreUnavailable, Conflict):
            await asyncio.sleep(0.05)
        else:
            return
