"""What every client of etcd must do, in memory and for real."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.etcd import Etcd
from scheduler.store.kv import (
    Batch,
    Delete,
    EtcdApi,
    Get,
    LeaseNotFound,
    Put,
    StoreRefused,
    created_at,
    mod_is,
)
from tests.support.waiting import eventually


async def put(api: EtcdApi, key: str, value: bytes = b"v", lease: int = 0) -> int:
    """Store a value; return its revision."""
    return (await api.txn((), [Put(key, value, lease)])).revision


async def collect(api: EtcdApi, prefixes: list[str], start: int, events: int) -> list[Batch]:
    """Take batches from a watch until they hold so many events."""
    batches: list[Batch] = []
    async with asyncio.timeout(10), contextlib.aclosing(api.watch(prefixes, start)) as watch:
        async for batch in watch:
            if batch.events:
                batches.append(batch)
            if sum(len(b.events) for b in batches) >= events:
                break
    return batches


async def test_a_key_is_read_with_its_revisions(api: EtcdApi) -> None:
    """A put makes a revision; the key tells when it was made, last changed, and how often."""
    first = await put(api, "/a", b"1")
    second = await put(api, "/a", b"2")
    kv, revision = await api.get("/a")
    assert kv is not None
    assert (kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version) == ("/a", b"2", first, second, 2)
    assert revision >= second


async def test_an_absent_key_is_none(api: EtcdApi) -> None:
    """An absent key is the answer None, with the revision at which it was absent."""
    await put(api, "/a")
    kv, revision = await api.get("/b")
    assert kv is None
    assert revision > 0


async def test_a_key_is_read_as_it_was_at_a_revision(api: EtcdApi) -> None:
    """A read at an older revision shows the value of then."""
    then = await put(api, "/a", b"old")
    await put(api, "/a", b"new")
    kv, _ = await api.get("/a", revision=then)
    assert kv is not None
    assert kv.value == b"old"


async def test_many_keys_are_read_at_one_revision_beyond_the_limit_of_a_transaction(api: EtcdApi) -> None:
    """300 keys come back complete; absent ones are left out."""
    for start in range(0, 300, 100):
        await api.txn((), [Put(f"/k{i:03}", str(i).encode()) for i in range(start, start + 100)])
    found, revision = await api.get_many([f"/k{i:03}" for i in range(300)] + ["/absent"])
    assert [int(found[f"/k{i:03}"].value) for i in range(300)] == list(range(300))
    assert "/absent" not in found
    assert revision >= max(kv.mod_revision for kv in found.values())


async def test_no_keys_are_read_as_nothing(api: EtcdApi) -> None:
    """An empty list of keys is allowed."""
    assert (await api.get_many([]))[0] == {}


async def test_a_scan_returns_the_keys_under_a_prefix_in_order_page_by_page(api: EtcdApi) -> None:
    """Pages of 7 over 100 keys give the same as one page; neighbours of the prefix stay out."""
    await api.txn((), [Put(f"/n/{i:03}", b"") for i in range(100)])
    await api.txn((), [Put("/m", b""), Put("/n", b""), Put("/n0", b"")])
    found, revision = await api.scan("/n/", page=7)
    assert [kv.key for kv in found] == [f"/n/{i:03}" for i in range(100)]
    assert (await api.scan("/n/", revision=revision)) == (found, revision)


async def test_pages_are_of_one_revision_while_others_write(api: EtcdApi) -> None:
    """A writer moves a token between two keys; no paged scan ever sees two tokens or none."""
    await api.txn((), [Put("/t/a", b"1"), Put("/t/b", b"0")])
    stop = asyncio.Event()

    async def move() -> None:
        tokens = [b"0", b"1"]
        while not stop.is_set():
            await api.txn((), [Put("/t/a", tokens[0]), Put("/t/b", tokens[1])])
            tokens.reverse()

    mover = asyncio.create_task(move())
    for _ in range(30):
        found, _ = await api.scan("/t/", page=1)
        assert sorted(kv.value for kv in found) == [b"0", b"1"]
    stop.set()
    await mover


async def test_an_old_picture_can_be_scanned_again(api: EtcdApi) -> None:
    """A scan at a revision shows what was there then, deleted keys included."""
    then = await put(api, "/n/a")
    await api.txn((), [Delete("/n/a")])
    assert [kv.key for kv in (await api.scan("/n/", revision=then))[0]] == ["/n/a"]
    assert (await api.scan("/n/"))[0] == []


async def test_a_transaction_writes_only_when_every_compare_holds(api: EtcdApi) -> None:
    """One compare that fails leaves all keys untouched and runs the other branch."""
    a = await put(api, "/a", b"1")
    lost = await api.txn([mod_is("/a", a), mod_is("/b", 5)], [Put("/a", b"2"), Put("/b", b"2")], [Get("/a"), Get("/b")])
    assert not lost.succeeded
    found, absent = lost.responses
    assert found is not None
    assert (found.value, absent) == (b"1", None)
    won = await api.txn([mod_is("/a", a), mod_is("/b", 0)], [Put("/a", b"2"), Put("/b", b"2")])
    assert won.succeeded
    values, _ = await api.get_many(["/a", "/b"])
    assert {kv.mod_revision for kv in values.values()} == {won.revision}


async def test_a_transaction_can_compare_when_a_key_was_created(api: EtcdApi) -> None:
    """The create revision stays over updates and changes when the key is made anew."""
    created = await put(api, "/a")
    await put(api, "/a")
    assert (await api.txn([created_at("/a", created)], [Put("/b", b"")])).succeeded
    await api.txn((), [Delete("/a")])
    await put(api, "/a")
    assert not (await api.txn([created_at("/a", created)], [Put("/b", b"")])).succeeded
    assert not (await api.txn([created_at("/a", 0)], [Put("/b", b"")])).succeeded


async def test_a_transaction_that_changes_nothing_makes_no_revision(api: EtcdApi) -> None:
    """Deleting what is absent is no change."""
    before = await put(api, "/a")
    result = await api.txn((), [Delete("/absent")])
    assert result.succeeded
    assert result.revision == before


async def test_a_request_that_can_never_succeed_is_refused(api: EtcdApi) -> None:
    """Too many operations, one key twice, and a value that is too large: refused, nothing stored."""
    with pytest.raises(StoreRefused, match="too many operations"):
        await api.txn((), [Put(f"/x{i}", b"") for i in range(129)])
    with pytest.raises(StoreRefused, match="duplicate key"):
        await api.txn((), [Put("/x", b"1"), Put("/x", b"2")])
    with pytest.raises(StoreRefused, match="too large"):
        await api.txn((), [Put("/x", bytes(1_600_000))])
    assert (await api.scan("/x"))[0] == []


async def test_a_read_of_the_future_is_unavailable(api: EtcdApi) -> None:
    """A revision that is not there yet is no answer, rather than a wrong one."""
    if isinstance(api, Etcd):
        api._timeout = 0.5
    with pytest.raises(StoreUnavailable):
        await api.get("/a", revision=10**9)


async def test_a_lease_takes_its_keys_along_when_it_is_revoked(api: EtcdApi) -> None:
    """A revoked lease deletes its keys and cannot be renewed or bound; ending it twice is no error."""
    lease = await api.grant(30)
    await put(api, "/leased", lease=lease)
    await put(api, "/free")
    assert await api.keepalive(lease) == 30
    await api.revoke(lease)
    await api.revoke(lease)
    assert [kv.key for kv in (await api.scan("/"))[0]] == ["/free"]
    assert await api.keepalive(lease) == 0
    with pytest.raises(LeaseNotFound):
        await put(api, "/leased", lease=lease)


async def test_a_lease_that_nobody_renews_ends(api: EtcdApi) -> None:
    """After its time the keys are gone, and a watch tells."""
    lease = await api.grant(1)
    revision = await put(api, "/leased", lease=lease)
    (batch,) = await collect(api, ["/leased"], revision + 1, 1)
    assert [(e.key, e.value) for e in batch.events] == [("/leased", None)]


async def test_scenario_E2_a_watch_brings_every_revision_as_a_whole_across_prefixes(api: EtcdApi) -> None:
    """One transaction over three prefixes is one batch, in history as in the present."""
    start = await put(api, "/before")
    written = [
        await api.txn((), [Put("/a/1", b"x"), Put("/m/other", b""), Put("/n/1", b"y"), Put("/z/1", b"z")]),
        await api.txn((), [Delete("/a/1"), Put("/z/1", b"zz")]),
    ]
    past = await collect(api, ["/a/", "/n/", "/z/"], start + 1, 5)
    task = asyncio.create_task(collect(api, ["/a/", "/n/", "/z/"], start + 1, 7))
    written.append(await api.txn((), [Put("/a/2", b""), Put("/n/2", b"")]))
    batches = await task
    assert [(b.revision, b.events) for b in batches[:2]] == [(b.revision, b.events) for b in past]
    assert [b.revision for b in batches] == [w.revision for w in written]
    changes = [{e.key: e.value for e in b.events} for b in batches]
    assert changes[0] == {"/a/1": b"x", "/n/1": b"y", "/z/1": b"z"}
    assert changes[1] == {"/a/1": None, "/z/1": b"zz"}
    assert changes[2] == {"/a/2": b"", "/n/2": b""}
    assert all(e.mod_revision == b.revision for b in batches for e in b.events)


async def test_an_idle_watch_gives_signs_of_life(api: EtcdApi) -> None:
    """Without any change a batch without events comes, within seconds."""
    revision = await put(api, "/a")
    async with asyncio.timeout(5), contextlib.aclosing(api.watch(["/b"], revision + 1)) as watch:
        lives = [await anext(watch), await anext(watch)]
    assert all(batch.events == () and batch.current for batch in lives)


async def test_many_writers_compare_and_none_is_lost(api: EtcdApi) -> None:
    """20 tasks add one to the same key by compare-and-swap: it ends at 20."""
    await put(api, "/n", b"0")

    async def add() -> None:
        while True:
            kv, _ = await api.get("/n")
            assert kv
            new = str(int(kv.value) + 1).encode()
            if (await api.txn([mod_is("/n", kv.mod_revision)], [Put("/n", new)])).succeeded:
                return

    await asyncio.gather(*(add() for _ in range(20)))
    kv, _ = await api.get("/n")
    assert kv
    assert kv.value == b"20"


async def test_a_watch_can_be_closed_while_it_waits(api: EtcdApi) -> None:
    """Cancelling the reader ends the watch; nothing is left running."""
    revision = await put(api, "/a")
    seen: list[Batch] = []

    async def follow() -> None:
        async with contextlib.aclosing(api.watch(["/a"], revision + 1)) as watch:
            async for batch in watch:
                seen.append(batch)  # noqa: PERF401 - it never ends

    before = asyncio.all_tasks()
    task = asyncio.create_task(follow())
    await eventually(lambda: seen)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await eventually(lambda: asyncio.all_tasks() <= before, what="the watch's tasks have ended")
