"""The transactions of a hand-over, at every turn of what else may happen to the workload and its node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.convergence.drain import Pace
from scheduler.domain.ledger import left_by
from scheduler.domain.node import DrainJob
from scheduler.domain.report import Report
from scheduler.domain.workload import WorkloadStatus
from scheduler.placement.explain import Explanation
from scheduler.store import intent
from scheduler.store.assign import Placed, Vanished
from scheduler.store.handover import begin_vacate, end_vacate
from scheduler.store.intent import Wish
from scheduler.store.keys import LEDGERS, STATUSES, TOMBSTONES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from scheduler.store.tombstones import add_tombstone, clear_tombstone
from scheduler.store.workloads import apply_spec, finalize_delete, mark_deleted, record_report
from tests.support.placement import commitments, node, placer_on, put, put_nodes, records, spec
from tests.support.turns import Turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SLOWLY = Pace(1)
EXCLUSIVE = {"fleetbeat.exclusive": "true"}


async def running(store: Store, placer: Placer, *names: str, **fields: Any) -> None:
    """Have workloads run on n-1, then add n-2 and drain n-1."""
    await put_nodes(store, [node("n-1")])
    for name in names:
        await apply_spec(store, spec(name, **fields), now=NOW)
        assert isinstance(await placer.place(name), Placed)
        status = await status_of(store, name)
        report = Report(name, "Running", revision_id="r", epoch=status.epoch)
        await record_report(store, "n-1", report, now=NOW)
    await put_nodes(store, [node("n-2")])
    await intent.drain(store, "n-1", Wish(max_parallel=1), DrainJob(), total=len(names), now=NOW)


async def status_of(store: Store, name: str = "web") -> WorkloadStatus:
    """Read a status."""
    record = (await store.get(STATUSES, name)).record
    assert record
    return record


async def leaving(store: Store) -> list[str]:
    """Return who is on the way from n-1."""
    ledger = (await store.get(LEDGERS, "n-1")).record
    return ledger.leaving if ledger else []


async def hand_over(placer: Placer, name: str = "web") -> object:
    """Hand a workload over."""
    return await placer.hand_over(name, from_node="n-1", pace=SLOWLY)


async def test_F64_a_hand_over_keeps_what_the_old_copy_takes_up_until_it_is_gone() -> None:
    """The commitment stays under another name; clearing the tombstone releases it; capacity is never counted twice."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, cache):
        await running(store, placer, "web", ports=("80:80/tcp",))
        await cache.wait_revision(store.last_revision, 5)
        old = await status_of(store)
        placed = await hand_over(placer)
        assert isinstance(placed, Placed)
        assert placed.node_id == "n-2"
        ledger = (await store.get(LEDGERS, "n-1")).record
        assert ledger
        assert list(ledger.commitments) == [left_by("web")]
        assert (ledger.cpu_millicores, ledger.ports) == (100, {"80/tcp": "web~left"})
        owed = (await store.get(TOMBSTONES, "n-1/web")).record
        assert owed
        assert (owed.epoch, owed.after_epoch) == (old.epoch, placed.epoch)
        assert await add_tombstone(store, "n-1", "web", owed.epoch, now=NOW) is False
        await clear_tombstone(store, "n-1", "web", owed.epoch)
        assert await leaving(store) == []


async def test_F64_what_has_set_out_and_comes_back_takes_its_old_place_over() -> None:
    """Nothing is left behind, and nothing is owed any more."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, cache):
        await running(store, placer, "web")
        await cache.wait_revision(store.last_revision, 5)
        await hand_over(placer)
        await intent.undrain(store, "n-1")
        await intent.drain(store, "n-2", Wish(), DrainJob(), total=1, now=NOW)
        await cache.wait_revision(store.last_revision, 5)
        placed = await placer.hand_over("web", from_node="n-2", pace=SLOWLY)
        assert isinstance(placed, Placed)
        assert placed.node_id == "n-1"
        assert (await store.get(TOMBSTONES, "n-1/web")).record is None
        ledgers = await records(etcd, LEDGERS)
        assert list(ledgers["n-1"].commitments) == ["web"]
        assert list(ledgers["n-2"].commitments) == [left_by("web")]
        # The copy on n-2 has never run, so the one on n-1 is all there is: n-2 owes a stop that may wait for it.
        assert (await store.get(TOMBSTONES, "n-2/web")).record


async def test_F64_without_a_node_that_fits_nothing_is_written() -> None:
    """The reason is returned."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, cache):
        await running(store, placer, "web")
        await intent.set_schedulable(store, "n-2", schedulable=False)
        await cache.wait_revision(store.last_revision, 5)
        revision = etcd.revision
        outcome = await hand_over(placer)
        assert isinstance(outcome, Explanation)
        assert "Unschedulable" in outcome.summary
        assert etcd.revision == revision


async def test_F64_a_deleted_workload_is_not_handed_over() -> None:
    """Deletion wins."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, cache):
        await running(store, placer, "web")
        await mark_deleted(store, "web", now=NOW)
        await cache.wait_revision(store.last_revision, 5)
        assert isinstance(await hand_over(placer), Vanished)
        assert not await begin_vacate(store, await status_of(store), SLOWLY, now=NOW)


async def test_F64_a_workload_deleted_while_it_is_stopped_leaves_nothing_behind() -> None:
    """Neither a commitment nor a place among those on their way."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, _):
        await running(store, placer, "web", metadata=EXCLUSIVE)
        seen = await status_of(store)
        assert await begin_vacate(store, seen, SLOWLY, now=NOW)
        await mark_deleted(store, "web", now=NOW)
        assert not await end_vacate(store, seen, SLOWLY, "drained", now=NOW)
        assert await finalize_delete(store, "web", tombstone=False, now=NOW)
        assert (await records(etcd, LEDGERS))["n-1"].commitments == {}


async def test_F64_a_node_removed_while_its_copy_is_given_up_gets_no_ledger() -> None:
    """By force, between the read and the write: the workload is free, and nothing is kept for a node that is gone."""
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, _):
        await running(store, placer, "web", metadata=EXCLUSIVE)
        seen = await status_of(store)
        assert await begin_vacate(store, seen, SLOWLY, now=NOW)
        calls = 0

        async def pause() -> None:
            nonlocal calls
            calls += 1
            if calls == 2:  # the transaction, after what it rests on was read
                assert await intent.remove_node(store, "n-1", force=True)

        etcd.pause = pause
        assert await end_vacate(store, seen, SLOWLY, "drained", now=NOW)
        assert calls > 2
        assert "n-1" not in await records(etcd, LEDGERS)
        assert not await records(etcd, TOMBSTONES)
        assert (await status_of(store)).node_id == ""


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scenario_D4_two_workers_never_let_more_set_out_than_allowed(data: st.DataObject) -> None:
    """Each with its own, older view of the node: the transactions agree on who goes."""
    asyncio.run(_race(lambda count: data.draw(st.integers(0, count - 1)), metadata={}))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_scenario_D4_nor_stop_more_exclusive_ones(data: st.DataObject) -> None:
    """The place is taken before the stop is ordered."""
    asyncio.run(_race(lambda count: data.draw(st.integers(0, count - 1)), metadata=EXCLUSIVE))


async def _race(choose: Callable[[int], int], *, metadata: dict[str, str]) -> None:
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (one, store, cache), placer_on(etcd) as (two, other, cache2):
        await running(store, one, "a", "b", "c", metadata=metadata)
        for each in (cache, cache2):
            await each.wait_revision(store.last_revision, 5)
        seen = [await status_of(store, name) for name in "abc"]
        turns = Turns(choose)
        etcd.pause = turns.pause
        acts: list[Coroutine[Any, Any, object]]
        if metadata:
            stores = (store, other, store)
            acts = [begin_vacate(s, w, SLOWLY, now=NOW) for s, w in zip(stores, seen, strict=True)]
        else:
            acts = [hand_over(one, "a"), hand_over(two, "b"), hand_over(one, "c")]
        outcomes = await turns.run(acts)
        etcd.pause = lambda: asyncio.sleep(0)
        assert not [o for o in outcomes if isinstance(o, Exception)], outcomes
        assert len(await leaving(store)) == 1
        assert len(commitments((await records(etcd, LEDGERS)).values())) == 3


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_F65_an_undrain_at_any_turn_leaves_a_workload_with_one_node_and_one_commitment(data: st.DataObject) -> None:
    """It stays, or it has set out and its old copy is owed; a report and a new revision come in between."""
    asyncio.run(_undrained(lambda count: data.draw(st.integers(0, count - 1))))


async def _undrained(choose: Callable[[int], int]) -> None:
    etcd = MemoryEtcd()
    async with placer_on(etcd) as (placer, store, cache):
        await running(store, placer, "web")
        await cache.wait_revision(store.last_revision, 5)
        old = await status_of(store)
        report = Report("web", "Running", revision_id="r", epoch=old.epoch, message="still here")
        turns = Turns(choose)
        etcd.pause = turns.pause
        outcomes = await turns.run([
            hand_over(placer),
            intent.undrain(store, "n-1"),
            record_report(store, "n-1", report, now=NOW),
            apply_spec(store, spec("web", image="v2"), now=NOW),
        ])  # fmt: skip
        etcd.pause = lambda: asyncio.sleep(0)
        assert not [o for o in outcomes if isinstance(o, Exception)], outcomes
        status = await status_of(store)
        owed = (await store.get(TOMBSTONES, "n-1/web")).record
        held = commitments((await records(etcd, LEDGERS)).values())
        if status.node_id == "n-1":
            assert (status.epoch, owed, await leaving(store)) == (old.epoch, None, [])
        else:
            assert owed
            assert (owed.epoch, owed.after_epoch, await leaving(store)) == (old.epoch, status.epoch, ["web"])
        assert [(h, n) for h, n, _ in held] == [("web", status.node_id)]


@pytest.mark.parametrize("epoch", [0, 3])
async def test_F64_a_tombstone_that_waits_goes_on_waiting_when_it_is_raised(epoch: int) -> None:
    """A late word of an old copy must not have it stopped before its time."""
    store = Store(MemoryEtcd())
    await add_tombstone(store, "n-1", "web", 5, now=NOW)
    waits = (await store.get(TOMBSTONES, "n-1/web")).record
    assert waits
    await put(store, TOMBSTONES, "n-1/web", waits.replace(after_epoch=7))
    await add_tombstone(store, "n-1", "web", 5 + epoch, now=NOW)
    after = (await store.get(TOMBSTONES, "n-1/web")).record
    assert after
    assert (after.epoch, after.after_epoch) == (5 + epoch, 7)
