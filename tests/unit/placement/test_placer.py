"""The placer over an etcd in memory: what it writes, and what it makes of rivals."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from scheduler.domain.errors import Conflict, Fenced, NotFound, StoreUnavailable
from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.workload import Actual, Assignment, Phase, Reapply, Retry, StatusInfo, Tombstone, WorkloadStatus
from scheduler.placement.explain import Explanation
from scheduler.placement.fleet import Measured
from scheduler.store import placements
from scheduler.store.assign import Placed, Vanished
from scheduler.store.cache import Cache
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from scheduler.store.write import Guard
from tests.support.placement import (
    check_history,
    delete_workload,
    mark_deleted,
    node,
    placer_on,
    placers_on,
    put,
    put_nodes,
    put_workload,
    records,
    spec,
)


class Bench:
    """One etcd in memory with a placer on it."""

    def __init__(self, etcd: MemoryEtcd, placer: Placer, store: Store, cache: Cache) -> None:
        """Take the parts."""
        self.etcd, self.placer, self.store, self.cache = etcd, placer, store, cache

    async def record(self, table: Table[Any], identifier: str) -> Any:
        """Return a record as etcd holds it."""
        return (await self.store.get(table, identifier)).record

    async def synced(self) -> None:
        """Wait until the cache shows all that was written."""
        await self.cache.wait_revision(self.etcd.revision, 5)

    async def placed(self, workload_id: str) -> Placed:
        """Place a workload that fits."""
        outcome = await self.placer.place(workload_id)
        assert isinstance(outcome, Placed), outcome
        return outcome


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    """A placer over two nodes, n-1 and n-2."""
    etcd = MemoryEtcd()
    await put_nodes(Store(etcd), (node("n-1"), node("n-2")))
    async with placer_on(etcd) as (placer, store, cache):
        yield Bench(etcd, placer, store, cache)
    await etcd.close()


async def test_F8_a_placement_writes_ledger_status_and_assignment_at_one_revision(bench: Bench) -> None:
    """All three say the same, with the epoch and the reason."""
    await put_workload(bench.store, spec(cpu=0.25, memory=100, ports=("80:80",)))
    rested_on = (await bench.store.get(STATUSES, "web")).mod_revision
    placed = await bench.placed("web")
    assert placed.epoch == rested_on
    view = [
        await bench.store.get(t, i) for t, i in ((LEDGERS, placed.node_id), (STATUSES, "web"), (ASSIGNMENTS, "web"))
    ]
    assert len({versioned.mod_revision for versioned in view}) == 1
    ledger, status, assignment = (versioned.record for versioned in view)
    assert isinstance(ledger, Ledger)
    assert isinstance(assignment, Assignment)
    assert ledger.commitments == {
        "web": Commitment(cpu_millicores=250, memory_mb=100, ports=("80/tcp",), epoch=placed.epoch)
    }
    assert isinstance(status, WorkloadStatus)
    assert (status.status, status.node_id, status.assigned_node) == (Phase.SCHEDULED, placed.node_id, placed.node_id)
    assert (status.epoch, status.actual, status.pending_reason) == (placed.epoch, Actual.PENDING, "")
    assert (assignment.node_id, assignment.epoch) == (placed.node_id, placed.epoch)
    assert assignment.reason == placed.reason
    assert assignment.score == round(placed.score, 4)


async def test_placing_what_has_a_node_changes_nothing(bench: Bench) -> None:
    """A message received twice does nothing."""
    await put_workload(bench.store, spec())
    first = await bench.placed("web")
    revision = bench.etcd.revision
    again = await bench.placed("web")
    assert (again.node_id, again.epoch) == (first.node_id, first.epoch)
    assert bench.etcd.revision == revision


async def test_one_workload_placed_by_many_at_once_gets_one_node(bench: Bench) -> None:
    """Event, cycle and front may all try."""
    await put_workload(bench.store, spec(cpu=1.5))
    outcomes = await asyncio.gather(*(bench.placer.place("web") for _ in range(8)))
    assert len({(o.node_id, o.epoch) for o in outcomes if isinstance(o, Placed)}) == 1
    assert len(outcomes) == sum(isinstance(o, Placed) for o in outcomes)
    await check_history(bench.etcd)


async def test_scenario_C7_a_workload_deleted_meanwhile_is_dropped(bench: Bench) -> None:
    """Gone or going: a clear answer, nothing written, nothing to retry."""
    assert await bench.placer.place("web") == Vanished("web", 'workload "web" does not exist')
    await put_workload(bench.store, spec())
    await bench.synced()
    await mark_deleted(bench.store, "web")
    revision = bench.etcd.revision
    assert await bench.placer.place("web") == Vanished("web", 'workload "web" is being deleted')
    await delete_workload(bench.store, "web")
    assert isinstance(await bench.placer.place("web"), Vanished)
    assert bench.etcd.revision == revision + 1


async def test_F11_the_reason_is_stored_once_and_again_only_when_the_picture_changes(bench: Bench) -> None:
    """An idle cycle writes nothing and reads nothing; new figures alone are no news; a lost node is."""
    await put_workload(bench.store, spec(cpu=9))
    outcome = await bench.placer.place("web")
    assert isinstance(outcome, Explanation)
    status = await bench.record(STATUSES, "web")
    assert (
        status.pending_reason
        == outcome.summary
        == ("no node fits: 2 of 2 nodes cpu_insufficient (n-1 has 2000m free of 2000m, 9000m asked)")
    )
    await bench.synced()
    calls = bench.etcd.calls
    await bench.placer.place("web")
    assert bench.etcd.calls == calls
    await put_workload(bench.store, spec("small"))
    await bench.placed("small")
    await bench.synced()
    revision = bench.etcd.revision
    await bench.placer.place("web")
    assert bench.etcd.revision == revision
    await put(bench.store, NODES, "n-2", node("n-2", status="NotReady"))
    await bench.synced()
    await bench.placer.place("web")
    assert "1 of 2" in (await bench.record(STATUSES, "web")).pending_reason


async def test_scenario_C6_a_new_node_takes_what_was_pending(bench: Bench) -> None:
    """F51: the watch tells of it; the reason is gone with the placement."""
    await put_workload(bench.store, spec(cpu=9))
    assert isinstance(await bench.placer.place("web"), Explanation)
    await put(bench.store, NODES, "n-3", node("n-3", total_cpu=16))
    await bench.synced()
    assert (await bench.placed("web")).node_id == "n-3"
    assert (await bench.record(STATUSES, "web")).pending_reason == ""


async def test_F58_ten_at_once_in_one_process_spread_evenly(bench: Bench) -> None:
    """They see each other's choices before any of them is committed."""
    await asyncio.gather(*(put_workload(bench.store, spec(f"w{i}")) for i in range(10)))
    outcomes = await asyncio.gather(*(bench.placer.place(f"w{i}") for i in range(10)))
    assert Counter(o.node_id for o in outcomes if isinstance(o, Placed)) == {"n-1": 5, "n-2": 5}
    assert not bench.store.conflicts
    await check_history(bench.etcd)


async def test_F58_ten_at_once_in_five_processes_spread_evenly(bench: Bench) -> None:
    """A choice that did not know of a rival's commitment is made again."""
    await asyncio.gather(*(put_workload(bench.store, spec(f"w{i}")) for i in range(10)))
    async with placers_on([bench.etcd] * 5) as others:
        placers = [placer for placer, _, _ in others]
        outcomes = await asyncio.gather(*(placers[i % 5].place(f"w{i}") for i in range(10)))
    assert Counter(o.node_id for o in outcomes if isinstance(o, Placed)) == {"n-1": 5, "n-2": 5}
    await check_history(bench.etcd)


async def test_scenario_C4_two_that_exclude_each_other_never_share_a_host(bench: Bench) -> None:
    """The same host port, from different processes at once: decided in the transaction, not only by the filter."""
    for index in range(4):
        await put_workload(bench.store, spec(f"w{index}", ports=("80:80",)))
    async with placers_on([bench.etcd] * 4) as others:
        outcomes = await asyncio.gather(*(p.place(f"w{i}") for i, (p, _, _) in enumerate(others)))
    assert sorted(o.node_id for o in outcomes if isinstance(o, Placed)) == ["n-1", "n-2"]
    assert all("port_conflict" in o.summary for o in outcomes if isinstance(o, Explanation))
    await check_history(bench.etcd)


async def test_scenario_C5_a_failed_write_leaves_no_assumption_behind(bench: Bench) -> None:
    """The capacity that was assumed taken is free again, and the next try succeeds."""
    await put_workload(bench.store, spec(cpu=2))
    before = bench.placer._live.fleet.free.copy()
    bench.etcd.mishap = lambda call: Mishap.UNAVAILABLE if call == "txn" else None
    with pytest.raises(StoreUnavailable):
        await bench.placer.place("web")
    assert (bench.placer._live.fleet.free == before).all()
    assert not bench.placer._live._assumed
    bench.etcd.mishap = lambda _call: None
    await bench.placed("web")


async def test_a_fenced_placement_writes_nothing(bench: Bench) -> None:
    """Guards go with the placement, the move and the note of a reason."""
    await put_workload(bench.store, spec())
    await put_workload(bench.store, spec("huge", cpu=99))
    revision = bench.etcd.revision
    for workload in ("web", "huge"):
        with pytest.raises(Fenced):
            await bench.placer.place(workload, guards=[Guard("/shards/0/reconcile", 77)])
    assert bench.etcd.revision == revision


async def test_the_node_is_checked_as_it_is_not_as_it_was_known(bench: Bench) -> None:
    """A node lost, cordoned or gone since the last word of the watch is not used."""
    await put_workload(bench.store, spec())
    await bench.synced()
    await bench.cache.close()
    other = Store(bench.etcd)
    await put(other, NODES, "n-1", node("n-1", schedulable=False))
    await put(other, NODES, "n-2", node("n-2", status="NotReady"))
    bench.cache._synced.set()
    outcome = await bench.placer.place("web")
    assert isinstance(outcome, Explanation)
    assert outcome.rejections[0].filter == "status"
    assert outcome.rejections[0].nodes == 2
    assert await records(bench.etcd, LEDGERS) == {}


async def test_a_spec_that_changed_since_the_choice_is_chosen_for_again(bench: Bench) -> None:
    """The ledger holds what is asked for now, not what a stale cache says."""
    await put_workload(bench.store, spec())
    await bench.synced()
    await bench.cache.close()
    bench.cache._synced.set()
    await put(Store(bench.etcd), SPECS, "web", spec(cpu=1.5))
    placed = await bench.placed("web")
    assert (await bench.record(LEDGERS, placed.node_id)).cpu_millicores == 1500


async def test_scenario_C2_a_node_that_keeps_refusing_is_left_out_and_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever row and record disagree about: the workload goes elsewhere after two refusals."""
    await put(bench.store, LEDGERS, "n-2", Ledger(node_id="n-2", commitments={"api": Commitment()}))
    await put(bench.store, NODES, "n-1", node("n-1", status="NotReady"))
    await bench.synced()
    await put_workload(bench.store, spec())
    live = bench.placer._live
    live.fleet.upsert(node("n-1"), Ledger(node_id="n-1"))
    monkeypatch.setattr(live, "learn", lambda *_: None)
    monkeypatch.setattr(live, "_refresh", lambda *_: None)
    with capture_logs() as logs:
        assert (await bench.placed("web")).node_id == "n-2"
    assert [(entry["node"], entry["workload"]) for entry in logs] == [("n-1", "web")]


async def test_a_placement_whose_nodes_never_hold_still_ends_in_a_conflict(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tries are bounded; the next cycle goes on."""
    monkeypatch.setattr(placements, "_REFUSALS", 99)
    monkeypatch.setattr(placements, "_BACKOFF_SECONDS", 0)
    await put(bench.store, NODES, "n-1", node("n-1", status="NotReady"))
    await bench.synced()
    await put_workload(bench.store, spec(labels={"only": "n-1"}))
    live = bench.placer._live
    live.fleet.upsert(node("n-1", labels={"only": "n-1"}), Ledger(node_id="n-1"))
    monkeypatch.setattr(live, "learn", lambda *_: None)
    monkeypatch.setattr(live, "_refresh", lambda *_: None)
    with capture_logs(), pytest.raises(Conflict, match='workload "web"'):
        await bench.placer.place("web")


async def lose(bench: Bench, node_id: str) -> None:
    """Mark a node NotReady."""
    await put(bench.store, NODES, node_id, node(node_id, status="NotReady"))
    await bench.synced()


async def test_a_move_releases_commits_and_owes_the_stop_in_one_transaction(bench: Bench) -> None:
    """Old ledger, new ledger, status, assignment and tombstone change at one revision; the accounts start anew."""
    await put_workload(bench.store, spec())
    old = await bench.placed("web")
    used = await bench.record(STATUSES, "web")
    used = used.replace(
        retry=Retry(attempts=3, max_attempts=7),
        reapply=Reapply(attempts=4),
        observed_revision="abc",
        status_info=StatusInfo(actual_state=Actual.RUNNING, failure_reason="boom"),
    )
    await put(bench.store, STATUSES, "web", used)
    await lose(bench, old.node_id)
    moved = await bench.placer.move("web", from_node=old.node_id)
    assert isinstance(moved, Placed)
    assert moved.node_id != old.node_id
    assert moved.epoch > old.epoch
    keys = (LEDGERS, old.node_id), (LEDGERS, moved.node_id), (STATUSES, "web"), (ASSIGNMENTS, "web")
    view = [await bench.store.get(t, i) for t, i in (*keys, (TOMBSTONES, f"{old.node_id}/web"))]
    assert {versioned.mod_revision for versioned in view} == {bench.etcd.revision}
    tombstone = await bench.record(TOMBSTONES, f"{old.node_id}/web")
    assert tombstone.epoch == old.epoch
    status = await bench.record(STATUSES, "web")
    assert (status.previous_node, status.retry, status.reapply) == (old.node_id, Retry(max_attempts=7), Reapply())
    assert (status.observed_revision, status.actual, status.status_info.failure_reason) == ("", Actual.PENDING, "")
    assert (await bench.record(LEDGERS, old.node_id)).commitments == {}
    await check_history(bench.etcd)


async def test_a_move_stays_when_the_node_has_come_back(bench: Bench) -> None:
    """The decision to move may be older than the node's return; the transaction sees the return."""
    await put_workload(bench.store, spec())
    old = await bench.placed("web")
    revision = bench.etcd.revision
    stayed = await bench.placer.move("web", from_node=old.node_id)
    assert isinstance(stayed, Placed)
    assert (stayed.node_id, stayed.epoch) == (old.node_id, old.epoch)
    assert bench.etcd.revision == revision


async def test_a_draining_node_is_moved_off_though_it_is_ready(bench: Bench) -> None:
    """A drain is a reason to leave; a cordon is not."""
    await put_workload(bench.store, spec())
    old = await bench.placed("web")
    await put(bench.store, NODES, old.node_id, node(old.node_id, schedulable=False))
    await bench.synced()
    stayed = await bench.placer.move("web", from_node=old.node_id)
    assert isinstance(stayed, Placed)
    assert stayed.node_id == old.node_id
    await put(bench.store, NODES, old.node_id, node(old.node_id, drain="Draining"))
    await bench.synced()
    moved = await bench.placer.move("web", from_node=old.node_id)
    assert isinstance(moved, Placed)
    assert moved.node_id != old.node_id


async def test_a_workload_is_moved_once_however_many_try(bench: Bench) -> None:
    """The second finds it moved and says where to."""
    await put_workload(bench.store, spec())
    old = await bench.placed("web")
    await lose(bench, old.node_id)
    outcomes = [await bench.placer.move("web", from_node=old.node_id) for _ in range(2)]
    assert len({(o.node_id, o.epoch) for o in outcomes if isinstance(o, Placed)}) == 1


async def test_a_move_without_a_target_changes_nothing(bench: Bench) -> None:
    """The workload stays assigned; the explanation does not count the lost node as tried."""
    await put_workload(bench.store, spec())
    old = await bench.placed("web")
    await lose(bench, "n-1")
    await lose(bench, "n-2")
    revision = bench.etcd.revision
    outcome = await bench.placer.move("web", from_node=old.node_id)
    assert isinstance(outcome, Explanation)
    assert [(r.filter, r.nodes) for r in outcome.rejections] == [("excluded", 1), ("status", 1)]
    assert bench.etcd.revision == revision


async def test_F16_coming_back_to_a_node_takes_over_the_copy_it_still_owes(bench: Bench) -> None:
    """The tombstone goes: applying the new assignment there replaces the old copy, a delete would hit the new one."""
    await put_workload(bench.store, spec())
    for node_id in ("n-1", "n-2"):
        await put(bench.store, TOMBSTONES, f"{node_id}/web", Tombstone(node_id=node_id, workload_id="web", epoch=1))
    placed = await bench.placed("web")
    assert set(await records(bench.etcd, TOMBSTONES)) == {"n-1/web", "n-2/web"} - {f"{placed.node_id}/web"}


async def test_an_epoch_grows_over_delete_and_recreate(bench: Bench) -> None:
    """A copy of the first life can never pass for one of the second."""
    await put_workload(bench.store, spec())
    first = await bench.placed("web")
    await delete_workload(bench.store, "web")
    await put_workload(bench.store, spec())
    assert (await bench.placed("web")).epoch > first.epoch


async def test_explain_tells_where_why_or_why_not(bench: Bench) -> None:
    """Placed, placeable, not placeable, unknown."""
    with pytest.raises(NotFound, match='workload "web"'):
        bench.placer.explain("web")
    await put_workload(bench.store, spec())
    await put_workload(bench.store, spec("huge", cpu=99))
    await bench.synced()
    would = bench.placer.explain("web")
    assert isinstance(would, Placed)
    assert would.epoch == 0
    placed = await bench.placed("web")
    await bench.synced()
    told = bench.placer.explain("web")
    assert isinstance(told, Placed)
    assert (told.node_id, told.epoch, told.reason) == (placed.node_id, placed.epoch, placed.reason)
    assert would.node_id == placed.node_id
    assert isinstance(bench.placer.explain("huge"), Explanation)


async def test_measured_use_moves_work_to_the_idler_node(bench: Bench) -> None:
    """And use of a node that is not known is passed over."""
    await put_workload(bench.store, spec())
    bench.placer.measure({"n-1": Measured(2000, 2048), "gone": Measured(1, 1)})
    assert (await bench.placed("web")).node_id == "n-2"
    assert len(bench.placer._live.fleet) == 2


async def test_a_restored_etcd_is_believed_though_its_revisions_are_lower(bench: Bench) -> None:
    """After a restore from a backup the newest word has a lower revision than the last one known."""
    await put_workload(bench.store, spec(cpu=2))
    placed = await bench.placed("web")
    await bench.synced()
    restored = MemoryEtcd()
    await put_nodes(Store(restored), (node("n-1", total_cpu=4.0), node("n-2")))
    await bench.cache.close()
    bench.cache._etcd = restored
    await bench.cache.start()
    await bench.cache.ready(5)
    assert not bench.placer._live.holders(placed.node_id)
    assert bench.placer._live.fleet.free[0, :2].tolist() == [4000, 2000]
    await restored.close()
