"""Commitments that nothing stands behind are found, and released only while that is so."""

from __future__ import annotations

import pytest

from scheduler.domain.ledger import LEFT, Commitment, Ledger
from scheduler.domain.workload import Tombstone, WorkloadStatus
from scheduler.store.audit import Charge, charges, find_charges, release
from scheduler.store.intent import remove_node
from scheduler.store.keys import LEDGERS, NODES, STATUSES, TOMBSTONES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from tests.support.placement import node, placer_on, put, put_nodes, put_workload, records, spec


@pytest.mark.parametrize(
    ("holder", "commitment", "status", "tombstone", "why"),
    [
        ("web", Commitment(epoch=3), WorkloadStatus(id="web", node_id="n-1", epoch=3), "", ""),
        ("web", Commitment(epoch=3), WorkloadStatus(id="web", node_id="n-2", epoch=4), "", "not on this node"),
        ("web", Commitment(epoch=3), None, "", "no such workload"),
        ("box", Commitment(kind="sandbox"), None, "", ""),
        ("web~left", Commitment(kind=LEFT), None, "n-1/web", ""),
        ("web~left", Commitment(kind=LEFT), None, "n-2/web", "nothing is left"),
        ("web~left", Commitment(kind=LEFT), WorkloadStatus(id="web", node_id="n-1", epoch=3, vacating=3), "", ""),
    ],
)
def test_scenario_O9_what_stands_behind_a_commitment(
    holder: str, commitment: Commitment, status: WorkloadStatus | None, tombstone: str, why: str
) -> None:
    """A workload on this node, a stop that is owed or under way, or a sandbox, of which others know."""
    ledger = Ledger(node_id="n-1", commitments={holder: commitment})
    found = charges({"n-1"}, {"n-1": ledger}, {"web": status} if status else {}, {tombstone})
    assert [c.why for c in found] == [] if not why else why in found[0].why


async def test_scenario_O9_what_is_charged_to_a_node_that_is_gone_is_found_and_released() -> None:
    """Also what a node that is there holds for a workload that is not; the rest stays as it is."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, _cache):
        await put_nodes(store, [node("n-1")])
        await put_workload(store, spec("web"))
        await placer.place("web")
        kept = (await records(etcd, LEDGERS))["n-1"]
        await put(store, LEDGERS, "n-1", kept.with_commitment("ghost", Commitment(cpu_millicores=500)))
        await put_nodes(store, [node("n-2")])
        await remove_node(store, "n-2", force=True)
        await put(store, LEDGERS, "n-2", Ledger(node_id="n-2", commitments={"a": Commitment(), "b~left": Commitment()}))
        found = await find_charges(store)
        assert [(c.node_id, c.holder) for c in found] == [("n-1", "ghost"), ("n-2", "a"), ("n-2", "b~left")]
        assert [await release(store, charge) for charge in found] == [True, True, True]
        assert await records(etcd, LEDGERS) == {"n-1": kept}
        assert not await find_charges(store)
        assert not await release(store, found[0])


async def test_scenario_O9_what_is_needed_again_meanwhile_is_not_released() -> None:
    """The node has registered, the workload has come, or a stop is owed, since the scan."""
    store = Store(MemoryEtcd())
    await put(store, LEDGERS, "n-1", Ledger(node_id="n-1", commitments={"web": Commitment(epoch=2)}))
    assert await find_charges(store) == [Charge("n-1", "web", "there is no such node")]
    await put(store, NODES, "n-1", node("n-1"))
    await put(store, STATUSES, "web", WorkloadStatus(id="web", node_id="n-1", epoch=2))
    assert not await release(store, Charge("n-1", "web", ""))
    left = Ledger(node_id="n-1", commitments={"db~left": Commitment(kind=LEFT)})
    await put(store, LEDGERS, "n-1", left)
    await put(store, TOMBSTONES, "n-1/db", Tombstone(node_id="n-1", workload_id="db", epoch=1))
    assert not await release(store, Charge("n-1", "db~left", ""))
