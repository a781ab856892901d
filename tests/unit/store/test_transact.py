"""The write path against an etcd in memory whose calls go wrong on purpose."""

from __future__ import annotations

import pytest

from scheduler.domain.errors import Conflict, Fenced, StoreUnavailable
from scheduler.domain.shard import FenceRecord
from scheduler.store.keys import FENCES
from scheduler.store.kv import Compacted, Put, UnknownOutcome
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write
from tests.support.records import COUNTER, OTHER, add_one, count_of, fence, set_to


class Script:
    """Mishaps for the transactions to come, one each; then none."""

    def __init__(self, etcd: MemoryEtcd, *mishaps: Mishap | None) -> None:
        """Take over the etcd's mishaps."""
        self._mishaps = list(mishaps)
        etcd.mishap = self

    def __call__(self, call: str) -> Mishap | None:
        """Give the next."""
        return self._mishaps.pop(0) if call == "txn" and self._mishaps else None


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


@pytest.fixture
def store(etcd: MemoryEtcd) -> Store:
    """A store on it."""
    return Store(etcd)


async def test_persys_9_6_an_applied_write_with_a_lost_answer_is_found(etcd: MemoryEtcd, store: Store) -> None:
    """The answer is lost, the read finds the write: its result is returned, and it is counted with its revision."""
    Script(etcd, Mishap.ANSWER_LOST)
    assert await store.transact([COUNTER], add_one) == 1
    assert store.writes[FENCES.prefix] == 1
    assert store.last_revision == etcd.revision == 2


async def test_persys_9_6_a_write_that_never_arrived_is_decided_and_sent_again(etcd: MemoryEtcd, store: Store) -> None:
    """The answer is lost and so was the request (it stays on its way): counted once."""
    Script(etcd, Mishap.LATE)
    assert await store.transact([COUNTER], add_one) == 1
    etcd.apply_late()
    assert count_of(await store.read([COUNTER])) == 1


async def test_persys_9_6_a_write_that_arrives_late_is_found_by_the_next_try(etcd: MemoryEtcd, store: Store) -> None:
    """The first request arrives just before the second: the second fails, and the first is recognised."""

    class LateThenNow(Script):
        """Applies the delayed request when the next transaction comes."""

        def __call__(self, call: str) -> Mishap | None:
            """Give the next."""
            if call == "txn":
                etcd.apply_late()
            return super().__call__(call)

    LateThenNow(etcd, Mishap.LATE)
    assert await store.transact([COUNTER], add_one) == 1
    assert count_of(await store.read([COUNTER])) == 1


async def test_persys_9_6_an_applied_write_is_found_under_what_others_wrote_since(
    etcd: MemoryEtcd, store: Store
) -> None:
    """Others have changed and even deleted the record since: the history tells."""
    for later in ([Put(COUNTER.key, fence(50).to_json())], None):
        await store.transact([COUNTER], set_to(10))
        Script(etcd, Mishap.ANSWER_LOST)
        overwritten = Overwriting(etcd, later)
        assert await Store(overwritten).transact([COUNTER], add_one) == 11  # type: ignore[arg-type]
        assert count_of(await store.read([COUNTER])) == (50 if later else 0)


class Overwriting:
    """A client between whose lost answer and next read somebody else writes, or deletes everything."""

    def __init__(self, etcd: MemoryEtcd, later: list[Put] | None) -> None:
        """Take what happens later."""
        self._etcd = etcd
        self._later = later

    def __getattr__(self, name: str) -> object:
        """Be the client otherwise."""
        return getattr(self._etcd, name)

    async def txn(self, *args: object) -> object:
        """Send it, and have the record changed before the caller learns anything."""
        try:
            return await self._etcd.txn(*args)  # type: ignore[arg-type]
        except UnknownOutcome:
            if self._later:
                await self._etcd.txn((), self._later)
            else:
                await Store(self._etcd).transact([COUNTER], _delete)
            raise


def _delete(_view: View) -> Write[None]:
    write = Write(None)
    write.delete(FENCES, COUNTER.id)
    return write


async def test_persys_9_6_when_nobody_can_tell_that_is_what_is_said(etcd: MemoryEtcd, store: Store) -> None:
    """The write is overwritten and the history compacted: UnknownOutcome, and nothing is written again."""
    await store.transact([COUNTER], set_to(1))
    Script(etcd, Mishap.ANSWER_LOST)

    class Forgetting(Overwriting):
        """Compacts, too."""

        async def txn(self, *args: object) -> object:
            """Send it."""
            try:
                return await super().txn(*args)
            except UnknownOutcome:
                etcd.compact(etcd.revision)
                raise

    forgetting = Forgetting(etcd, [Put(COUNTER.key, fence(9).to_json())])
    with pytest.raises(UnknownOutcome):
        await Store(forgetting).transact([COUNTER], add_one)  # type: ignore[arg-type]
    assert count_of(await store.read([COUNTER])) == 9


async def test_persys_9_6_a_lost_answer_and_then_no_etcd_is_unknown_not_unavailable(
    etcd: MemoryEtcd, store: Store
) -> None:
    """The caller must not believe that nothing was written."""

    def mishap(call: str) -> Mishap | None:
        if call == "txn":
            etcd.mishap = lambda _call: Mishap.UNAVAILABLE
            return Mishap.ANSWER_LOST
        return None

    etcd.mishap = mishap
    with pytest.raises(UnknownOutcome):
        await store.transact([COUNTER], add_one)


async def test_no_etcd_is_unavailable(etcd: MemoryEtcd, store: Store) -> None:
    """Nothing was sent: unavailable, certainly not written."""
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    with pytest.raises(StoreUnavailable) as raised:
        await store.transact([COUNTER], add_one)
    assert not isinstance(raised.value, UnknownOutcome)


async def test_scenario_E4_a_lost_answer_whose_guard_moved_afterwards_was_applied_all_the_same(
    etcd: MemoryEtcd, store: Store
) -> None:
    """The write was in before the fence moved: success, not Fenced."""
    Script(etcd, Mishap.ANSWER_LOST)
    moved = Overwriting(etcd, [Put(OTHER.key, fence(2).to_json())])
    result = await Store(moved).transact([COUNTER], add_one, guards=[Guard(OTHER.key, 0)])  # type: ignore[arg-type]
    assert result == 1
    with pytest.raises(Fenced):
        await store.transact([COUNTER], add_one, guards=[Guard(OTHER.key, 0)])


async def test_a_batch_that_etcd_would_refuse_is_refused_before(store: Store) -> None:
    """128 records and guards fit; 129 are a mistake of the caller, named as such."""
    refs = [Ref(FENCES, f"{n}/x") for n in range(127)]

    def put_all(_view: View) -> Write[None]:
        write = Write(None)
        for ref in refs:
            write.put(FENCES, ref.id, fence(1))
        return write

    await store.transact(refs, put_all, guards=[Guard("/absent", 0)])
    assert store.writes[FENCES.prefix] == 127
    with pytest.raises(ValueError, match="129 records and guards"):
        await store.transact([*refs, COUNTER], put_all, guards=[Guard("/absent", 0)])


async def test_a_record_that_was_not_named_cannot_be_written(store: Store) -> None:
    """It could not be compared: no blind writes."""
    with pytest.raises(ValueError, match="not among the refs"):
        await store.transact([OTHER], set_to(1))


async def test_a_record_named_twice_counts_once(store: Store) -> None:
    """Callers may join lists of refs without care."""
    assert await store.transact([COUNTER, COUNTER], add_one) == 1
    assert store.writes[FENCES.prefix] == 1


async def test_putting_and_deleting_the_same_record_is_a_mistake(store: Store) -> None:
    """Etcd would refuse it; we say which key."""

    def both(_view: View) -> Write[None]:
        write = Write(None)
        write.put(FENCES, COUNTER.id, fence(1))
        write.delete(FENCES, COUNTER.id)
        return write

    await store.transact([COUNTER], set_to(5))
    with pytest.raises(ValueError, match="both put and deleted"):
        await store.transact([COUNTER], both)


async def test_deletes_are_compared_and_counted_too(etcd: MemoryEtcd, store: Store) -> None:
    """A delete whose answer is lost is recognised as ours by etcd's history."""
    await store.transact([COUNTER], set_to(1))
    Script(etcd, Mishap.ANSWER_LOST)
    await store.transact([COUNTER], _delete)
    assert (await store.get(FENCES, COUNTER.id)).record is None
    assert store.writes[FENCES.prefix] == 2
    assert store.last_revision == etcd.revision


async def test_an_equal_record_in_another_spelling_is_not_written_again(etcd: MemoryEtcd, store: Store) -> None:
    """What the reference system wrote with spaces and another order of fields is the same record."""
    await etcd.txn((), [Put(COUNTER.key, b'{ "slot": 4, "term": 1 }')])
    revision = etcd.revision
    assert await store.transact([COUNTER], set_to(4)) == "set"
    assert etcd.revision == revision


async def test_unknown_fields_of_a_newer_writer_survive(etcd: MemoryEtcd, store: Store) -> None:
    """A rewrite keeps what this version does not know."""
    await etcd.txn((), [Put(COUNTER.key, b'{"term":1,"slot":4,"newer":{"a":1}}')])

    def raise_it(view: View) -> Write[None]:
        record = view.get(FENCES, COUNTER.id).record
        assert isinstance(record, FenceRecord)
        write = Write(None)
        write.put(FENCES, COUNTER.id, record.replace(slot=5))
        return write

    await store.transact([COUNTER], raise_it)
    kv, _ = await etcd.get(COUNTER.key)
    assert kv
    assert kv.value == b'{"term":1,"slot":5,"newer":{"a":1}}'


async def test_hooks_are_told_of_writes_and_conflicts_by_table(etcd: MemoryEtcd, store: Store) -> None:
    """One call a key written, one a record that had changed, with the prefix of its table."""
    told: list[str] = []
    store.on_write = lambda category: told.append("write " + category)
    store.on_conflict = lambda category: told.append("conflict " + category)

    class Interfering(Overwriting):
        """Somebody writes before the first transaction."""

        async def txn(self, *args: object) -> object:
            """Let that happen once."""
            if self._later:
                await etcd.txn((), self._later)
                self._later = None
            return await etcd.txn(*args)  # type: ignore[arg-type]

    store.etcd = Interfering(etcd, [Put(COUNTER.key, fence(7).to_json())])  # type: ignore[assignment]
    assert await store.transact([COUNTER], add_one) == 8
    assert told == ["conflict /shards/", "write /shards/"]


async def test_a_compacted_read_is_an_error_of_its_own(etcd: MemoryEtcd) -> None:
    """Whoever pages through history learns that it is gone."""
    await etcd.txn((), [Put("/a", b"")])
    await etcd.txn((), [Put("/a", b"")])
    etcd.compact(3)
    with pytest.raises(Compacted):
        await etcd.scan("/", revision=2)


async def test_a_decision_may_ask_for_the_records_that_it_learns_of(store: Store) -> None:
    """They are read and compared like those that were named; one that never stops asking is a conflict."""

    def decide(view: View) -> Write[int]:
        view.require([COUNTER, OTHER])
        return add_one(view)

    assert await store.transact([COUNTER], decide) == 1
    asked = iter(range(1000))

    def insatiable(view: View) -> Write[int]:
        view.require([Ref(FENCES, f"0/{next(asked)}")])
        return Write(0)

    with pytest.raises(Conflict):
        await store.transact([COUNTER], insatiable)


async def test_a_decision_that_asks_for_more_while_a_write_is_in_doubt_says_so(etcd: MemoryEtcd, store: Store) -> None:
    """Nobody could tell any more whether it was applied."""
    Script(etcd, Mishap.LATE)
    rounds = iter(range(10))

    def decide(view: View) -> Write[int]:
        if next(rounds):
            view.require([OTHER])
        return add_one(view)

    with pytest.raises(UnknownOutcome):
        await store.transact([COUNTER], decide)
