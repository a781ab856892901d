"""The watch cache over both clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import CLUSTER, FENCES, SHARD_MAP, SLOTS, Table
from scheduler.store.kv import Delete, EtcdApi, Put
from scheduler.store.write import Ref
from tests.support.records import COUNTER, OTHER, SLOT, fence, slot
from tests.support.waiting import eventually

TABLES: list[Table[Any]] = [FENCES, SHARD_MAP, CLUSTER, SLOTS]


@contextlib.asynccontextmanager
async def running(cache: Cache) -> AsyncIterator[Cache]:
    """Run a cache for a block."""
    await cache.start()
    try:
        await cache.ready(20)
        yield cache
    finally:
        await cache.close()


class Journal:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.calls: list[dict[str, object]] = []

    def __call__(self, changes: Sequence[Change]) -> None:
        """Take a call."""
        self.calls.append({change.table.key(change.id): change.after.record for change in changes})


async def test_a_cache_lists_and_then_follows(api: EtcdApi) -> None:
    """What was there before and what comes later is there by id, deleted records are not."""
    await api.txn((), [Put(COUNTER.key, fence(1).to_json()), Put(OTHER.key, fence(2).to_json())])
    async with running(Cache(api, TABLES)) as cache:
        assert cache.get(FENCES, COUNTER.id).record == fence(1)
        result = await api.txn((), [Put(COUNTER.key, fence(3).to_json()), Delete(OTHER.key)])
        await cache.wait_revision(result.revision, 20)
        assert cache.get(FENCES, COUNTER.id).record == fence(3)
        assert cache.get(FENCES, COUNTER.id).mod_revision == result.revision
        assert cache.get(FENCES, OTHER.id).record is None
        assert cache.get(FENCES, OTHER.id).mod_revision == 0
        assert list(cache.all(FENCES)) == [COUNTER.id]
        assert cache.revision == result.revision


async def test_scenario_E2_listeners_are_called_once_a_revision_with_all_of_it(api: EtcdApi) -> None:
    """A listener gets what is there, then each revision whole, with the cache already at it."""
    revision = (await api.txn((), [Put(COUNTER.key, fence(1).to_json())])).revision
    async with running(Cache(api, TABLES)) as cache:
        journal = Journal()
        cache.subscribe(journal)
        for number in range(2, 30):
            changes = [Put(COUNTER.key, fence(number).to_json()), Put(SLOT.key, slot(number).to_json())]
            revision = (await api.txn((), changes)).revision
        await cache.wait_revision(revision, 20)
        assert journal.calls[0] == {COUNTER.key: fence(1)}
        assert journal.calls[1:] == [{COUNTER.key: fence(n), SLOT.key: slot(n)} for n in range(2, 30)]


async def test_a_change_tells_what_was_before(api: EtcdApi) -> None:
    """Created, changed and deleted records come with the record before and after."""
    seen: list[tuple[int | None, int | None]] = []

    def listen(changes: Sequence[Change]) -> None:
        for change in changes:
            before = change.before.record.slot if change.before and change.before.record else None
            seen.append((before, change.after.record.slot if change.after.record else None))

    async with running(Cache(api, TABLES)) as cache:
        cache.subscribe(listen)
        await api.txn((), [Put(COUNTER.key, fence(1).to_json())])
        await api.txn((), [Put(COUNTER.key, fence(2).to_json())])
        result = await api.txn((), [Delete(COUNTER.key)])
        await cache.wait_revision(result.revision, 20)
    assert seen == [(None, 1), (1, 2), (2, None)]


async def test_a_failing_listener_harms_nobody(api: EtcdApi) -> None:
    """It is counted; the cache and the other listeners go on."""

    def fail(_changes: Sequence[Change]) -> None:
        raise RuntimeError("listener")

    async with running(Cache(api, TABLES)) as cache:
        journal = Journal()
        cache.subscribe(fail)
        cache.subscribe(journal)
        failures = cache.failures
        result = await api.txn((), [Put(COUNTER.key, fence(1).to_json())])
        await cache.wait_revision(result.revision, 20)
        assert journal.calls[-1] == {COUNTER.key: fence(1)}
        assert cache.failures == failures + 1


async def test_persys_9_7_a_value_that_is_no_record_is_skipped_and_the_last_good_one_stays(api: EtcdApi) -> None:
    """At the list and in the watch; the cache then does not vouch for that key until it is good again."""
    await api.txn((), [Put(COUNTER.key, b"not json"), Put(OTHER.key, fence(1).to_json())])
    async with running(Cache(api, TABLES)) as cache:
        assert cache.get(FENCES, COUNTER.id).record is None
        assert cache.undecodable == 1
        assert cache.view([COUNTER]) is None
        result = await api.txn((), [Put(COUNTER.key, fence(2).to_json()), Put(OTHER.key, b"[]")])
        await cache.wait_revision(result.revision, 20)
        assert cache.get(FENCES, COUNTER.id).record == fence(2)
        assert cache.get(FENCES, OTHER.id).record == fence(1)
        assert cache.undecodable == 2
        assert cache.view([COUNTER]) is not None
        assert cache.view([COUNTER, OTHER]) is None
        result = await api.txn((), [Delete(OTHER.key)])
        await cache.wait_revision(result.revision, 20)
        assert cache.view([OTHER]) is not None


async def test_keys_of_other_layouts_are_left_alone(api: EtcdApi) -> None:
    """The shard map is no fence, deeper and shallower keys are no records, and nothing is counted as broken."""
    await api.txn(
        (),
        [
            Put("/shards/map", b'{"generation":3,"count":2}'),
            Put("/shards/0/reconcile/extra", b"x"),
            Put("/shards/map/x/y", b"x"),
            Put("/persys/scheduler/slots/a/b", b"x"),
            Put("/cluster-of-others", b"x"),
            Put("/cluster", b'{"clusterId":"c","layoutVersion":1}'),
        ],
    )
    async with running(Cache(api, TABLES)) as cache:
        assert list(cache.all(FENCES)) == []
        assert list(cache.all(SHARD_MAP)) == ["map"]
        assert list(cache.all(CLUSTER)) == ["cluster"]
        assert list(cache.all(SLOTS)) == []
        assert cache.undecodable == 0


async def test_a_view_needs_every_table_to_be_mirrored(api: EtcdApi) -> None:
    """The cache gives no view with a record that it does not hold; an absent one counts as revision 0."""
    async with running(Cache(api, [FENCES])) as cache:
        view = cache.view([COUNTER])
        assert view is not None
        assert view.at(COUNTER.key).mod_revision == 0
        assert cache.view([COUNTER, Ref(SLOTS, "x")]) is None


async def test_freshness_tells_whether_there_is_anything_and_how_old_it_is(api: EtcdApi) -> None:
    """Before the first list nothing is known; afterwards signs of life keep an idle cache young."""
    cache = Cache(api, TABLES)
    assert cache.freshness().synced is False
    assert cache.freshness().age_seconds == float("inf")
    async with running(cache):
        assert cache.freshness().synced is True
        await eventually(lambda: cache.freshness().age_seconds > 0.5, what="it has been idle for a while")
        await eventually(lambda: cache.freshness().age_seconds < 0.2, what="a sign of life came")
    assert cache.freshness().synced is False


async def test_waiting_for_a_revision_has_a_deadline(api: EtcdApi) -> None:
    """What does not come is unavailable, with both revisions."""
    async with running(Cache(api, TABLES)) as cache:
        with pytest.raises(StoreUnavailable, match="not yet at"):
            await cache.wait_revision(cache.revision + 1000, 0.05)


async def test_many_can_wait_for_revisions_in_any_order(api: EtcdApi) -> None:
    """Each waiter goes on when its revision has come."""
    async with running(Cache(api, TABLES)) as cache:
        start = (await api.txn((), [Put(COUNTER.key, fence(1).to_json())])).revision
        await cache.wait_revision(start, 20)
        waits = [asyncio.create_task(cache.wait_revision(start + n, 20)) for n in (3, 1, 2, 3)]
        last = start
        while last < start + 3:
            last = (await api.txn((), [Put(COUNTER.key, fence(last).to_json())])).revision
        await asyncio.gather(*waits)
        assert cache.revision >= start + 3
