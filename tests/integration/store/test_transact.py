"""The write path over both clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from scheduler.domain.errors import Conflict, Fenced, NotFound
from scheduler.store.cache import Cache
from scheduler.store.cluster import ensure_shard_map, join_cluster
from scheduler.store.decode import CorruptRecord
from scheduler.store.keys import CLUSTER, FENCES, SHARD_MAP, SLOTS
from scheduler.store.kv import Delete, EtcdApi, Put
from scheduler.store.store import Store
from scheduler.store.write import Guard, View, Write
from tests.support.records import COUNTER, OTHER, SLOT, add_one, count_of, fence, set_to, slot


@pytest.fixture
async def cache(api: EtcdApi) -> AsyncIterator[Cache]:
    """A cache that has everything."""
    cache = Cache(api, [FENCES, SHARD_MAP, CLUSTER, SLOTS])
    await cache.start()
    await cache.ready(20)
    yield cache
    await cache.close()


@pytest.fixture
def store(api: EtcdApi, cache: Cache) -> Store:
    """A store that may use the cache."""
    return Store(api, cache=cache)


async def test_scenario_P2_C3_no_update_is_lost_between_many_writers(api: EtcdApi, store: Store) -> None:
    """Two stores count up 30 times at once, from the cache and from reads: the sum is right, each result given once."""
    other = Store(api)
    results = await asyncio.gather(
        *(store.transact([COUNTER], add_one, from_cache=True) for _ in range(15)),
        *(other.transact([COUNTER], add_one) for _ in range(15)),
    )
    assert sorted(results) == list(range(1, 31))
    assert count_of(await store.read([COUNTER])) == 30
    assert store.writes[FENCES.prefix] + other.writes[FENCES.prefix] == 30


async def test_what_was_written_is_seen_in_the_cache_at_its_revision(store: Store, cache: Cache) -> None:
    """last_revision is what the cache must reach to show one's own write."""
    await store.transact([COUNTER], set_to(7))
    await cache.wait_revision(store.last_revision, 20)
    assert cache.get(FENCES, COUNTER.id).record == fence(7)
    assert cache.get(FENCES, COUNTER.id).mod_revision == store.last_revision


async def test_the_whole_view_is_compared_not_only_what_is_written(api: EtcdApi, store: Store) -> None:
    """A record that was only read has changed: the decision is made again with the new one."""
    seen: list[int] = []

    def follow_slot(view: View) -> Write[int]:
        record = view.get(SLOTS, SLOT.id).record
        seen.append(record.slot if record else 0)
        write = Write(seen[-1])
        write.put(FENCES, COUNTER.id, fence(seen[-1]))
        return write

    await api.txn((), [Put(SLOT.key, slot(5).to_json())])
    stale = Store(api, cache=Frozen(await store.read([COUNTER, SLOT])))  # type: ignore[arg-type]
    await api.txn((), [Put(SLOT.key, slot(6).to_json())])
    assert await stale.transact([COUNTER, SLOT], follow_slot, from_cache=True) == 6
    assert seen == [5, 6]
    assert count_of(await store.read([COUNTER])) == 6


class Frozen:
    """A cache that stands still."""

    rewinds = 0

    def __init__(self, view: View) -> None:
        """Take what it shows."""
        self._view = view

    def view(self, _refs: object) -> View:
        """Return the old picture."""
        return self._view

    def mirrors(self, _table: object) -> bool:
        """Say yes."""
        return True


async def test_a_stale_cache_costs_one_more_try_and_never_a_wrong_write(api: EtcdApi, store: Store) -> None:
    """The transaction compares with what the cache showed; the failed one brings the fresh records along."""
    await store.transact([COUNTER], set_to(1))
    stale = Store(api, cache=Frozen(await store.read([COUNTER])))  # type: ignore[arg-type]
    await store.transact([COUNTER], set_to(10))
    assert await stale.transact([COUNTER], add_one, from_cache=True) == 11
    assert stale.conflicts[FENCES.prefix] == 1


async def test_not_found_is_never_said_on_the_word_of_the_cache(api: EtcdApi, store: Store) -> None:
    """A record that the cache does not have yet is looked up before "not found" is said."""
    stale = Store(api, cache=Frozen(await store.read([COUNTER])))  # type: ignore[arg-type]

    def must_exist(view: View) -> Write[int]:
        if not count_of(view):
            raise NotFound("no counter")
        return Write(count_of(view))

    with pytest.raises(NotFound):
        await stale.transact([COUNTER], must_exist, from_cache=True)
    await store.transact([COUNTER], set_to(3))
    assert await stale.transact([COUNTER], must_exist, from_cache=True) == 3


async def test_scenario_E4_a_guard_that_moved_fences_the_write_off(api: EtcdApi, store: Store) -> None:
    """A holder that has been overtaken writes nothing, whether the guard was changed or removed."""
    await store.transact([OTHER], lambda _view: put_other(1))
    fence_at = (await store.read([OTHER])).at(OTHER.key).mod_revision
    guard = Guard(OTHER.key, fence_at)
    await store.transact([COUNTER], set_to(1), guards=[guard])
    await store.transact([OTHER], lambda _view: put_other(2))
    with pytest.raises(Fenced, match="shards/1/reconcile"):
        await store.transact([COUNTER], set_to(2), guards=[guard])
    await api.txn((), [Delete(OTHER.key)])
    with pytest.raises(Fenced):
        await store.transact([COUNTER], set_to(3), guards=[guard])
    assert count_of(await store.read([COUNTER])) == 1
    await store.transact([COUNTER], set_to(4), guards=[Guard(OTHER.key, 0)])


def put_other(number: int) -> Write[None]:
    """Change the record that stands for a fence."""
    write = Write(None)
    write.put(FENCES, OTHER.id, fence(number))
    return write


async def test_nothing_new_is_not_written(api: EtcdApi, store: Store) -> None:
    """A put of what is stored, and a delete of what is absent, make no revision; the rest of the write is stored."""
    await store.transact([COUNTER], set_to(1))
    revision = (await api.get(COUNTER.key))[1]
    assert await store.transact([COUNTER], set_to(1)) == "set"
    assert (await api.get(COUNTER.key))[1] == revision

    def both(_view: View) -> Write[None]:
        write = put_other(1)
        write.put(FENCES, COUNTER.id, fence(1))
        write.delete(SLOTS, SLOT.id)
        return write

    await store.transact([COUNTER, OTHER, SLOT], both)
    view = await store.read([COUNTER, OTHER])
    assert view.at(COUNTER.key).mod_revision == revision
    assert view.at(OTHER.key).mod_revision > revision


async def test_a_conflict_that_does_not_end_is_reported_with_both_revisions(api: EtcdApi, store: Store) -> None:
    """Somebody changes the record under every try: Conflict after the deadline, naming the key and the revisions."""
    other = Store(api)
    number = 100

    async def interfere() -> None:
        nonlocal number
        number += 1
        await other.transact([COUNTER], set_to(number))

    racing = Store(Interfering(api, interfere))  # type: ignore[arg-type]
    with pytest.raises(Conflict, match=r"/shards/0/reconcile went from revision \d+ to \d+"):
        await racing.transact([COUNTER], add_one, timeout_seconds=0.3)
    assert racing.conflicts[FENCES.prefix] > 1
    assert count_of(await store.read([COUNTER])) == number


class Interfering:
    """A client before whose transactions something else happens."""

    def __init__(self, api: EtcdApi, before: object) -> None:
        """Take the client and what happens."""
        self._api = api
        self._before = before

    def __getattr__(self, name: str) -> object:
        """Be the client otherwise."""
        return getattr(self._api, name)

    async def txn(self, *args: object) -> object:
        """Let it happen, then go on."""
        await self._before()  # type: ignore[operator]
        return await self._api.txn(*args)  # type: ignore[arg-type]


async def test_a_corrupt_record_is_an_error_not_an_absence(api: EtcdApi, store: Store, cache: Cache) -> None:
    """A value that is no record stops the decision, names the key, and is left as it is."""
    revision = (await api.txn((), [Put(COUNTER.key, b'{"term": "x"}'), Put(OTHER.key, fence(1).to_json())])).revision
    await cache.wait_revision(revision, 20)
    for from_cache in (False, True):
        with pytest.raises(CorruptRecord, match=r"/shards/0/reconcile .* term"):
            await store.transact([COUNTER], add_one, from_cache=from_cache)
    kv, _ = await api.get(COUNTER.key)
    assert kv
    assert kv.value == b'{"term": "x"}'


async def test_the_first_process_names_the_cluster_and_the_others_join_it(api: EtcdApi) -> None:
    """Ten processes start at once: all are in the same cluster, with the same shard map."""
    clusters = await asyncio.gather(*(join_cluster(Store(api)) for _ in range(10)))
    assert len({c.cluster_id for c in clusters}) == 1
    maps = await asyncio.gather(*(ensure_shard_map(Store(api), n, "jump") for n in range(1, 11)))
    assert len({(m.generation, m.count) for m in maps}) == 1
    assert maps[0].generation == 1
