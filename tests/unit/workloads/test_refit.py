"""After a change of a spec: the ledger follows, or the workload gives its node up."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scheduler.domain.node import Node, Taint
from scheduler.domain.workload import Actual, Phase, WorkloadSpec, WorkloadStatus
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, STATUSES, TOMBSTONES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.refit import refit
from scheduler.store.store import Store
from scheduler.store.workloads import apply_spec
from tests.support.placement import EXACT, check_history, node, placer_on, put, put_nodes, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


async def placed(etcd: MemoryEtcd, first: WorkloadSpec, on: Node | None = None) -> tuple[Store, WorkloadStatus]:
    """Place a workload and a neighbour that takes half the node; return the workload's status."""
    store = Store(etcd)
    await put_nodes(store, [on or node("n-1")])
    await apply_spec(store, first, now=NOW)
    await apply_spec(store, spec("db", cpu=1.0, memory=1024, ports=("5432:5432/tcp",)), now=NOW)
    async with placer_on(etcd) as (placer, _, _):
        for name in (first.id, "db"):
            await placer.place(name)
    return store, await status_of(store)


async def status_of(store: Store) -> WorkloadStatus:
    """Read the status."""
    status = (await store.get(STATUSES, "web")).record
    assert status
    return status


async def committed_cpu(store: Store) -> int:
    """Return what the workload has been promised."""
    ledger = (await store.get(LEDGERS, "n-1")).record
    assert ledger
    return ledger.commitments["web"].cpu_millicores if "web" in ledger.commitments else 0


async def test_F13_an_unchanged_request_writes_nothing(etcd: MemoryEtcd) -> None:
    """The image changes, what is asked of the node does not."""
    store, seen = await placed(etcd, spec(image="a"))
    await apply_spec(store, spec(image="b"), now=NOW)
    revision = etcd.revision
    assert await refit(store, seen, EXACT, now=NOW) == ""
    assert etcd.revision == revision


@pytest.mark.parametrize("cpu", [0.2, 0.05, 1.0])
async def test_F13_the_ledger_follows_a_changed_request_that_fits(etcd: MemoryEtcd, cpu: float) -> None:
    """Its own earlier commitment does not count against it."""
    store, seen = await placed(etcd, spec())
    await apply_spec(store, spec(cpu=cpu), now=NOW)
    assert await refit(store, seen, EXACT, now=NOW) == ""
    assert await committed_cpu(store) == cpu * 1000
    assert (await status_of(store)).node_id == "n-1"
    await check_history(etcd)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (spec(cpu=1.1), "cpu_insufficient"),
        (spec(ports=("5432:80/tcp",)), '5432/tcp taken by "db"'),
        (spec(labels={"zone": "b"}), "label_mismatch"),
        (spec(type="vm"), "workload_type_unsupported"),
    ],
)
async def test_F13_a_workload_that_does_not_suit_its_node_any_more_gives_it_up(
    etcd: MemoryEtcd, changed: WorkloadSpec, why: str
) -> None:
    """In one transaction: ledger released, no node, the old node owes the removal of the old copy."""
    store, seen = await placed(etcd, spec())
    await apply_spec(store, changed, now=NOW)
    revision = etcd.revision
    assert why in await refit(store, seen, EXACT, now=NOW)
    assert etcd.revision == revision + 1
    status = await status_of(store)
    assert (status.node_id, status.status, status.previous_node) == ("", Phase.PENDING, "n-1")
    assert (status.actual, status.observed_revision) == (Actual.NONE, "")
    assert why in status.pending_reason
    assert await committed_cpu(store) == 0
    assert (await store.get(ASSIGNMENTS, "web")).record is None
    owed = (await store.get(TOMBSTONES, "n-1/web")).record
    assert owed
    assert owed.epoch == seen.epoch


async def test_F13_what_keeps_new_work_away_does_not_drive_out_what_is_there(etcd: MemoryEtcd) -> None:
    """A cordoned, tainted node keeps a workload whose request still fits."""
    store, seen = await placed(etcd, spec())
    await put(store, NODES, "n-1", node("n-1", schedulable=False, taints=(Taint(key="gpu"),)))
    await apply_spec(store, spec(cpu=0.5), now=NOW)
    assert await refit(store, seen, EXACT, now=NOW) == ""
    assert await committed_cpu(store) == 500


async def test_P2_an_assignment_that_is_over_is_not_refitted(etcd: MemoryEtcd) -> None:
    """Somebody else moved it meanwhile."""
    store, seen = await placed(etcd, spec())
    await apply_spec(store, spec(cpu=1.5), now=NOW)
    await put(store, STATUSES, "web", seen.replace(epoch=seen.epoch + 1))
    revision = etcd.revision
    assert await refit(store, seen, EXACT, now=NOW) == ""
    assert etcd.revision == revision
