"""The write path under any interleaving of any writers, with answers lost and writes delayed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import Fenced, StoreUnavailable
from scheduler.domain.shard import FenceRecord
from scheduler.store import transact
from scheduler.store.keys import FENCES
from scheduler.store.kv import Put, UnknownOutcome
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write
from tests.support.records import COUNTER, OTHER, count_of, fence
from tests.support.turns import Turns

EXAMPLES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
MISHAPS = st.sampled_from([None, None, None, *Mishap])


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back off for no time: the test decides who goes on."""
    monkeypatch.setattr(transact, "_BACKOFF_SECONDS", 0)


def memory(data: st.DataObject, *, mishaps: bool = True) -> tuple[MemoryEtcd, Turns]:
    """Make an etcd whose calls wait for turns, and go wrong, as hypothesis likes."""
    etcd = MemoryEtcd()
    turns = Turns(lambda count: data.draw(st.integers(0, count - 1), "turn"))
    etcd.pause = turns.pause

    def mishap(call: str) -> Mishap | None:
        if call == "watch":
            return None
        if data.draw(st.integers(0, 5), "late") == 0:
            etcd.apply_late()
        return data.draw(MISHAPS, f"mishap of {call}") if call == "txn" else None

    if mishaps:
        etcd.mishap = mishap
    return etcd, turns


def add_one_as(writer: int) -> Callable[[View], Write[int]]:
    """Count up, and leave the writer's name: writes of different writers must differ."""

    def decide(view: View) -> Write[int]:
        new = count_of(view) + 1
        write = Write(new)
        write.put(FENCES, COUNTER.id, FenceRecord(term=writer, slot=new))
        return write

    return decide


@EXAMPLES
@given(data=st.data(), writers=st.integers(1, 5))
def test_scenario_P2_no_update_is_lost_and_none_is_applied_twice(data: st.DataObject, writers: int) -> None:
    """Writers add one each. Who returns has counted once, who failed has not, who does not know has at most once."""

    async def scenario() -> None:
        etcd, turns = memory(data)
        outcomes = await turns.run(
            [Store(etcd).transact([COUNTER], add_one_as(n), timeout_seconds=60) for n in range(writers)]
        )
        etcd.mishap, etcd.pause = lambda _call: None, lambda: asyncio.sleep(0)
        etcd.apply_late()
        numbers = [outcome for outcome in outcomes if isinstance(outcome, int)]
        unknown = sum(isinstance(outcome, UnknownOutcome) for outcome in outcomes)
        assert all(isinstance(outcome, int | StoreUnavailable) for outcome in outcomes), outcomes
        assert len(set(numbers)) == len(numbers)
        total = count_of(await Store(etcd).read([COUNTER]))
        assert len(numbers) <= total <= len(numbers) + unknown

    asyncio.run(scenario())


A, B = Ref(FENCES, "a/balance"), Ref(FENCES, "b/balance")


def withdraw(ref: Ref[FenceRecord]) -> Callable[[View], Write[bool]]:
    """Take 2 from one account if both together hold at least 2: writes one record, rests on two."""

    def decide(view: View) -> Write[bool]:
        if count_of(view, A) + count_of(view, B) < 2:
            return Write(result=False)
        write = Write(result=True)
        write.put(FENCES, ref.id, fence(count_of(view, ref) - 2))
        return write

    return decide


@EXAMPLES
@given(data=st.data(), takers=st.lists(st.sampled_from([A, B]), min_size=1, max_size=4), start=st.integers(0, 5))
def test_what_was_only_read_is_compared_too(data: st.DataObject, takers: list[Ref[FenceRecord]], start: int) -> None:
    """At no revision do the accounts together fall below zero, although each writer changes only one of them."""

    async def scenario() -> None:
        etcd, turns = memory(data)
        sums = [start]
        balances = {A.key: start, B.key: 0}
        await _put_undisturbed(etcd, {A.key: fence(start).to_json(), B.key: fence(0).to_json()})
        await turns.run([Store(etcd).transact([A, B], withdraw(ref), timeout_seconds=60) for ref in takers])
        etcd.apply_late()
        for batch in etcd._history:
            for event in batch.events:
                assert event.value is not None
                balances[event.key] = FENCES.model.from_json(event.value).slot
            sums.append(sum(balances.values()))
        assert min(sums) >= 0

    asyncio.run(scenario())


async def _put_undisturbed(etcd: MemoryEtcd, values: dict[str, bytes]) -> int:
    pause, mishap = etcd.pause, etcd.mishap
    etcd.pause, etcd.mishap = lambda: asyncio.sleep(0), lambda _call: None
    revision = (await etcd.txn((), [Put(key, value) for key, value in values.items()])).revision
    etcd.pause, etcd.mishap = pause, mishap
    return revision


@EXAMPLES
@given(data=st.data(), writers=st.integers(1, 4))
def test_scenario_E4_nothing_is_written_after_the_guard_has_changed(data: st.DataObject, writers: int) -> None:
    """The fence goes from term 1 to term 2 at some time: after that revision no write of term 1 appears, ever."""

    async def scenario() -> None:
        etcd, turns = memory(data)
        fence_at = await _put_undisturbed(etcd, {OTHER.key: fence(1).to_json()})

        async def take_over() -> None:
            while not isinstance(await _outcome(Store(etcd).transact([OTHER], take)), str):
                pass

        def take(_view: View) -> Write[str]:
            write = Write("taken")
            write.put(FENCES, OTHER.id, fence(2))
            return write

        guarded = [
            Store(etcd).transact([COUNTER], add_one_as(n), guards=[Guard(OTHER.key, fence_at)], timeout_seconds=60)
            for n in range(writers)
        ]
        outcomes = (await turns.run([*guarded, take_over()]))[:-1]
        etcd.apply_late()
        keys = [event.key for batch in etcd._history for event in batch.events]
        moved = keys.index(OTHER.key, 1)
        assert COUNTER.key not in keys[moved:]
        done = sum(isinstance(outcome, int) for outcome in outcomes)
        unknown = sum(isinstance(outcome, UnknownOutcome) for outcome in outcomes)
        assert done <= keys.count(COUNTER.key) <= done + unknown
        assert all(isinstance(outcome, int | Fenced | StoreUnavailable) for outcome in outcomes)

    asyncio.run(scenario())


async def _outcome(awaitable: object) -> object:
    try:
        return await awaitable  # type: ignore[misc]
    except StoreUnavailable as error:
        return error


@EXAMPLES
@given(data=st.data(), writers=st.integers(2, 5), records=st.integers(2, 4))
def test_scenario_C3_a_write_of_several_records_is_applied_whole_or_not_at_all(
    data: st.DataObject, writers: int, records: int
) -> None:
    """Every writer raises all records by one: at each revision they are equal, and no raise is lost."""
    refs = [Ref(FENCES, f"{n}/x") for n in range(records)]

    def raise_all(view: View) -> Write[int]:
        new = count_of(view, refs[0]) + 1
        write = Write(new)
        for ref in refs:
            assert count_of(view, ref) == new - 1
            write.put(FENCES, ref.id, fence(new))
        return write

    async def scenario() -> None:
        etcd, turns = memory(data, mishaps=False)
        results = await turns.run([Store(etcd).transact(refs, raise_all, timeout_seconds=60) for _ in range(writers)])
        assert sorted(results) == list(range(1, writers + 1))
        assert [len(batch.events) for batch in etcd._history] == [records] * writers

    asyncio.run(scenario())
