"""Hard anti-affinity: two of a group never share a node, whoever places them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.placement.explain import Explanation
from scheduler.store import placements
from scheduler.store.assign import Placed
from scheduler.store.keys import LEDGERS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from tests.support.placement import node, placers_on, put, put_nodes, put_workload, records, spec
from tests.support.turns import Turns

GROUPS = ("db", "db", "db", "cache", "")


async def check(etcd: MemoryEtcd) -> None:
    """At no revision does a node hold two of a group."""
    for revision in range(2, etcd.revision + 1):
        for ledger in (await records(etcd, LEDGERS, revision)).values():
            groups = [c.group for c in ledger.commitments.values() if c.group]
            assert len(groups) == len(set(groups)), ledger


async def race(nodes: int, choosy: int, choose: Callable[[int], int]) -> None:
    """Place five workloads by three placers at once, one turn after the other."""
    etcd = MemoryEtcd()
    store = Store(etcd)
    await put_nodes(store, [node(f"n-{i}") for i in range(nodes)])
    for index, group in enumerate(GROUPS):
        await put_workload(store, spec(f"w-{index}", metadata={"fleetbeat.anti_affinity": group}))
    async with placers_on([etcd] * 3) as placers:
        turns = Turns(choose)
        etcd.pause = turns.pause
        with mock.patch.object(placements, "_CHOOSY_TRIES", choosy):
            outcomes: list[Any] = await turns.run(
                [placers[index % 3][0].place(f"w-{index}") for index in range(len(GROUPS))]
            )
        etcd.pause = lambda: asyncio.sleep(0)
        await check(etcd)
        kinds = [type(outcome) for outcome in outcomes]
        assert set(kinds) <= {Placed, Explanation}, outcomes
        assert kinds[:3].count(Placed) == min(nodes, 3)
        assert kinds[3:] == [Placed, Placed]
        for status in (await records(etcd, STATUSES)).values():
            assert status.node_id or "anti_affinity" in status.pending_reason
    await etcd.close()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.sampled_from([0, 8]), st.data())
def test_scenario_C4_parallel_creates_of_a_group_never_share_a_node(
    nodes: int, choosy: int, data: st.DataObject
) -> None:
    """In whatever order their calls arrive; those for whom no node is left say so."""
    asyncio.run(race(nodes, choosy, lambda count: data.draw(st.integers(0, count - 1), "turn")))


async def test_scenario_C4_the_check_is_in_the_committing_transaction() -> None:
    """A placer whose columns know nothing of the other's commitment is refused by the records."""
    etcd = MemoryEtcd()
    store = Store(etcd)
    await put_nodes(store, [node("n-1")])
    for workload_id in ("a", "b"):
        await put_workload(store, spec(workload_id, metadata={"fleetbeat.anti_affinity": "db"}))
    async with placers_on([etcd] * 2) as placers:
        assert isinstance(await placers[0][0].place("a"), Placed)
        ledger = (await store.get(LEDGERS, "n-1")).record
        assert ledger
        assert ledger.commitments["a"].group == "db"
        # The second placer's fleet is set back to before that.
        placers[1][0]._live.fleet.upsert(node("n-1"), ledger.without("a"))
        outcome = await placers[1][0].place("b")
        assert isinstance(outcome, Explanation)
        assert outcome.rejections[0].filter == "anti_affinity"
        await put(store, LEDGERS, "n-1", ledger.without("a"))
    await etcd.close()
