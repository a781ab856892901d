"""One etcd that is killed, paused, compacted and cut off. Each test has a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.pb import etcdmin_pb2 as pb
from scheduler.store.cache import Cache
from scheduler.store.etcd import Etcd
from scheduler.store.keys import FENCES
from scheduler.store.kv import Batch, Compacted, Put, TxnResult, UnknownOutcome, mod_is
from scheduler.store.lease import Lease
from scheduler.store.store import Store
from scheduler.store.watch import Watch
from tests.support import servers
from tests.support.records import COUNTER, add_one, count_of, fence
from tests.support.tcp_proxy import TcpProxy, proxied
from tests.support.waiting import eventually


@pytest.fixture
async def server(tmp_path: pathlib.Path) -> AsyncIterator[servers.Server]:
    """An etcd that answers, and that the test may harm."""
    with servers.running(servers.etcd(tmp_path)) as server:
        first = Etcd([server.address])
        await eventually_answers(first)
        await first.close()
        yield server


@pytest.fixture
async def client(server: servers.Server) -> AsyncIterator[Etcd]:
    """A client that goes straight to it."""
    client = Etcd([server.address])
    yield client
    await client.close()


@pytest.fixture
async def proxy(server: servers.Server) -> AsyncIterator[TcpProxy]:
    """A wire to it that can be cut."""
    async with proxied(server.port) as proxy:
        yield proxy


@pytest.fixture
async def far_client(proxy: TcpProxy) -> AsyncIterator[Etcd]:
    """A client behind the wire."""
    client = Etcd([proxy.address])
    yield client
    await client.close()


async def put(client: Etcd, key: str, value: bytes = b"v") -> int:
    """Store a value; return its revision."""
    return (await client.txn((), [Put(key, value)])).revision


async def put_again_and_again(client: Etcd, key: str, value: bytes) -> int:
    """Store a value as soon as etcd takes it."""
    while True:
        with contextlib.suppress(StoreUnavailable):
            return await put(client, key, value)


async def compact(server: servers.Server, revision: int) -> None:
    """Forget the history before a revision."""
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = channel.unary_unary(
            "/etcdserverpb.KV/Compact",
            pb.CompactionRequest.SerializeToString,
            pb.CompactionResponse.FromString,
        )
        await call(pb.CompactionRequest(revision=revision, physical=True), timeout=5)


class Follower:
    """Collects what a watch brings, in the background."""

    def __init__(self, client: Etcd, prefix: str, start: int) -> None:
        """Begin to watch."""
        self.batches: list[Batch] = []
        self.signs = 0
        self.error: Exception | None = None
        self._task = asyncio.create_task(self._run(client, prefix, start))

    async def _run(self, client: Etcd, prefix: str, start: int) -> None:
        try:
            async with contextlib.aclosing(client.watch([prefix], start)) as watch:
                async for batch in watch:
                    self.signs += 1
                    if batch.events:
                        self.batches.append(batch)
        except Compacted as error:
            self.error = error

    @property
    def values(self) -> list[str]:
        """All values so far, in order."""
        return [(e.value or b"-").decode() for batch in self.batches for e in batch.events]

    async def stop(self) -> None:
        """Stop watching."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


@contextlib.asynccontextmanager
async def following(client: Etcd, prefix: str, start: int) -> AsyncIterator[Follower]:
    """Watch for a block."""
    follower = Follower(client, prefix, start)
    try:
        yield follower
    finally:
        await follower.stop()


async def test_components_F1_a_watch_survives_a_kill_and_restart_without_loss(
    server: servers.Server, client: Etcd
) -> None:
    """Events before the kill, right after the restart and later: all, in order, none twice."""
    start = await put(client, "/w/0", b"0")
    async with following(client, "/w/", start) as follower:
        for n in (1, 2, 3):
            await put(client, f"/w/{n}", str(n).encode())
        await eventually(lambda: len(follower.values) == 4)
        server.kill()
        server.start()
        for n in (4, 5, 6):
            await put_again_and_again(client, f"/w/{n}", str(n).encode())
        await eventually(lambda: len(follower.values) >= 7)
        await put(client, "/w/7", b"7")
        await eventually(lambda: len(follower.values) >= 8)
        assert follower.values == [str(n) for n in range(8)]


@pytest.mark.parametrize("cut_after", [2_000, 60_000, 250_000])
async def test_components_F7_a_watch_cut_in_the_middle_of_history_loses_and_repeats_nothing(
    client: Etcd, proxy: TcpProxy, far_client: Etcd, cut_after: int
) -> None:
    """4,000 events are replayed, the connection is cut on the way: 4,000 arrive, each once."""
    start = await put(client, "/start")
    for chunk in range(40):
        await asyncio.gather(*(put(client, f"/h/{chunk * 100 + n:04}", b"x" * 40) for n in range(100)))
    await far_client.get("/start")
    proxy.cut()
    await eventually(lambda: not proxy._writers)
    proxy.cut_after = cut_after
    async with following(far_client, "/h/", start + 1) as follower:
        await eventually(lambda: len(follower.values) >= 4000, 20)
    assert proxy.cut_after is None, "the cut has happened"
    keys = [e.key for batch in follower.batches for e in batch.events]
    assert len(keys) == len(set(keys)) == 4000
    revisions = [batch.revision for batch in follower.batches]
    assert revisions == sorted(set(revisions))


@pytest.mark.parametrize("cut_after", [1_000_000, 2_600_000, 5_000_000])
async def test_scenario_E2_revisions_in_fragments_that_are_cut_arrive_whole(
    client: Etcd, proxy: TcpProxy, far_client: Etcd, monkeypatch: pytest.MonkeyPatch, cut_after: int
) -> None:
    """Six revisions of 1.2 MB are replayed in fragments of 2 MB; the wire is cut in one; each arrives once, whole."""
    fragments = 0

    def count(self: Watch, response: Any, token: str) -> None:
        nonlocal fragments
        fragments += response.fragment
        check(self, response, token)

    check = Watch._check
    monkeypatch.setattr(Watch, "_check", count)
    start = await put(client, "/start")
    written = [(await client.txn((), [Put(f"/b/{n}", bytes(100_000)) for n in range(12)])).revision for _ in range(6)]
    proxy.cut_after = cut_after
    async with following(far_client, "/b/", start + 1) as follower:
        await eventually(lambda: len(follower.batches) >= 6, 20)
    assert proxy.cut_after is None, "the cut has happened"
    assert fragments > 0
    assert [batch.revision for batch in follower.batches] == written
    assert all(len(batch.events) == 12 for batch in follower.batches)


async def test_scenario_E1_components_F3_a_compacted_start_is_told_at_once(
    server: servers.Server, client: Etcd
) -> None:
    """A watch from a revision that is gone raises Compacted, with where history begins; it does not hang."""
    for _ in range(5):
        last = await put(client, "/a")
    await compact(server, last - 1)
    async with following(client, "/a", 2) as follower:
        await eventually(lambda: follower.error)
    assert isinstance(follower.error, Compacted)
    assert follower.error.compact_revision == last - 1
    with pytest.raises(Compacted):
        await client.scan("/a", revision=2)


async def test_scenario_E1_a_cache_that_missed_a_compaction_lists_again(
    server: servers.Server, client: Etcd, proxy: TcpProxy, far_client: Etcd
) -> None:
    """Cut off, it misses changes, deletions and their history; back again it is right and its listeners know."""
    await client.txn((), [Put(FENCES.key(f"{n}/x"), fence(1).to_json()) for n in range(5)])
    cache = Cache(far_client, [FENCES])
    told: dict[str, int | None] = {}
    cache.subscribe(lambda changes: told.update({c.id: c.after.record and c.after.record.slot for c in changes}))
    await cache.start()
    await cache.ready(20)
    await proxy.stop()
    for n in range(10):
        await client.txn((), [Put(FENCES.key("1/x"), fence(10 + n).to_json())])
    last = (await client.txn((), [Put(FENCES.key("9/x"), fence(2).to_json())])).revision
    await compact(server, last)
    assert cache.get(FENCES, "1/x").record == fence(1)
    await proxy.start()
    await cache.wait_revision(last, 20)
    assert told == {"0/x": 1, "1/x": 19, "2/x": 1, "3/x": 1, "4/x": 1, "9/x": 2}
    assert {i: v.record.slot for i, v in cache.all(FENCES).items() if v.record} == told
    last = (await client.txn((), [Put(FENCES.key("9/x"), fence(3).to_json())])).revision
    await cache.wait_revision(last, 20)
    assert cache.freshness().synced
    await cache.close()


async def test_a_cache_without_etcd_grows_old_and_stays_readable(server: servers.Server, client: Etcd) -> None:
    """While etcd is away the records stay and the age grows; when it is back the cache goes on by itself."""
    await client.txn((), [Put(COUNTER.key, fence(1).to_json())])
    cache = Cache(client, [FENCES])
    await cache.start()
    await cache.ready(20)
    server.kill()
    await eventually(lambda: cache.freshness().age_seconds > 1)
    assert cache.get(FENCES, COUNTER.id).record == fence(1)
    server.start()
    await put_again_and_again(client, COUNTER.key, fence(2).to_json())
    await eventually(lambda: cache.get(FENCES, COUNTER.id).record == fence(2))
    assert cache.freshness().age_seconds < 5
    await cache.close()


async def test_persys_9_8_a_store_that_was_set_back_is_noticed(server: servers.Server, client: Etcd) -> None:
    """Etcd comes back with older data, as after a restore: the cache takes its word instead of waiting for ever."""
    for number in range(1, 6):
        await client.txn((), [Put(COUNTER.key, fence(number).to_json())])
    cache = Cache(client, [FENCES])
    await cache.start()
    await cache.ready(20)
    server.kill()
    shutil.rmtree(server.folder / "data")
    server.start()
    revision = await put_again_and_again(client, COUNTER.key, fence(1).to_json())
    assert revision < cache.revision
    await eventually(lambda: cache.get(FENCES, COUNTER.id).record == fence(1), 20)
    assert cache.revision == revision
    await cache.close()


async def test_a_cache_starts_before_etcd_does(tmp_path: pathlib.Path) -> None:
    """Nothing listens: ready() times out; once etcd is there the cache fills by itself."""
    server = servers.etcd(tmp_path)
    client = Etcd([server.address], timeout_seconds=0.5)
    cache = Cache(client, [FENCES])
    await cache.start()
    with pytest.raises(StoreUnavailable):
        await cache.ready(0.3)
    with servers.running(server):
        await cache.ready(10)
    await cache.close()
    await client.close()


async def test_every_call_has_a_deadline_when_the_server_hangs(server: servers.Server) -> None:
    """SIGSTOP: reads are unavailable, a write's outcome unknown, in the time given; SIGCONT: all is well."""
    client = Etcd([server.address])
    await put(client, "/a")
    client._timeout = 0.5
    server.pause()
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.get("/a"),
        lambda: client.scan("/"),
        lambda: client.get_many(["/a"]),
        lambda: client.grant(5),
        lambda: client.keepalive(1),
    ]
    for call in calls:
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailable):
                await call()
    with pytest.raises(UnknownOutcome):
        await put(client, "/a")
    server.resume()
    await eventually_answers(client)
    await client.close()


async def eventually_answers(client: Etcd) -> None:
    """Wait until etcd answers a read."""
    for _ in range(20):
        with contextlib.suppress(StoreUnavailable):
            await client.get("/a")
            return
    raise AssertionError("etcd does not answer")


async def test_a_write_to_a_server_that_is_down_is_certainly_not_applied(server: servers.Server) -> None:
    """Without a connection nothing is sent: unavailable, not unknown."""
    client = Etcd([server.address])
    await put(client, "/a")
    client._timeout = 0.5
    server.kill()
    with pytest.raises(StoreUnavailable):
        await client.get("/a")  # from here on, the channel knows that its connection is gone
    with pytest.raises(StoreUnavailable) as raised:
        await put(client, "/b")
    assert not isinstance(raised.value, UnknownOutcome)
    await client.close()


async def test_components_F10_a_lost_answer_is_unknown_and_never_sent_twice(
    client: Etcd, proxy: TcpProxy, far_client: Etcd
) -> None:
    """Etcd applies a compare-and-swap, the answer is lost: UnknownOutcome; the write is there once."""
    revision = await put(far_client, "/a", b"1")
    proxy.mute = True
    task = asyncio.create_task(far_client.txn([mod_is("/a", revision)], [Put("/a", b"2")]))
    await eventually_value(client, "/a", b"2")
    proxy.cut()
    with pytest.raises(UnknownOutcome):
        await task
    proxy.mute = False
    kv, _ = await far_client.get("/a")
    assert kv
    assert kv.version == 2


async def eventually_value(client: Etcd, key: str, value: bytes) -> None:
    """Wait until a key has a value."""
    async with asyncio.timeout(10):
        while True:
            kv, _ = await client.get(key)
            if kv and kv.value == value:
                return


def lose_next_answer(client: Etcd, proxy: TcpProxy) -> None:
    """Have the wire swallow what comes back from the next transaction."""
    txn = client.txn

    async def mute_and_send(*args: Any) -> TxnResult:
        client.txn = txn  # type: ignore[method-assign]
        proxy.mute = True
        return await txn(*args)

    client.txn = mute_and_send  # type: ignore[method-assign,assignment]


async def test_persys_9_6_transact_resolves_a_lost_answer_by_reading(
    client: Etcd, proxy: TcpProxy, far_client: Etcd
) -> None:
    """The counter was raised, the answer lost, the connection cut: transact finds out and does not count twice."""
    store = Store(far_client)
    assert await store.transact([COUNTER], add_one) == 1
    lose_next_answer(far_client, proxy)
    task = asyncio.create_task(store.transact([COUNTER], add_one))
    await eventually_value(client, COUNTER.key, fence(2).to_json())
    proxy.mute = False
    proxy.cut()
    assert await task == 2
    assert count_of(await Store(client).read([COUNTER])) == 2


async def test_persys_9_6_transact_resolves_a_lost_answer_although_others_wrote_since(
    client: Etcd, proxy: TcpProxy, far_client: Etcd
) -> None:
    """As before, but another process has counted on meanwhile: etcd's history tells that ours was applied."""
    store, other = Store(far_client), Store(client)
    assert await store.transact([COUNTER], add_one) == 1
    lose_next_answer(far_client, proxy)
    task = asyncio.create_task(store.transact([COUNTER], add_one))
    await eventually_value(client, COUNTER.key, fence(2).to_json())
    assert await other.transact([COUNTER], add_one) == 3
    proxy.mute = False
    proxy.cut()
    assert await task == 2
    assert count_of(await other.read([COUNTER])) == 3


async def test_components_F4_a_lease_is_lost_by_its_own_deadline_when_etcd_hangs(
    server: servers.Server, client: Etcd
) -> None:
    """K2: no renewal gets through; before etcd can have ended the lease it is invalid, and stays so."""
    lease = Lease(client, 2)
    await lease.start()
    assert lease.valid()
    await client.txn((), [Put("/leader", b"me", lease.id)])
    server.pause()
    await asyncio.wait_for(lease.lost.wait(), 10)
    assert not lease.valid()
    server.resume()
    await eventually_answers(client)
    assert not lease.valid()
    await lease.close()


async def test_a_lease_is_lost_when_etcd_has_ended_it(client: Etcd) -> None:
    """Somebody revokes it: the next renewal is answered with no time left."""
    lease = Lease(client, 2)
    await lease.start()
    await client.revoke(lease.id)
    await asyncio.wait_for(lease.lost.wait(), 5)
    assert not lease.valid()
    await lease.close()


async def test_a_lease_lives_for_as_long_as_it_is_kept(client: Etcd) -> None:
    """It outlives its time to live while it is renewed; revoking it takes its key along at once."""
    lease = Lease(client, 2)
    await lease.start()
    await client.txn((), [Put("/leader", b"me", lease.id)])
    end = time.monotonic() + 4.5
    await eventually(lambda: time.monotonic() > end or not lease.valid(), 20)
    assert lease.valid()
    assert (await client.get("/leader"))[0]
    await lease.revoke()
    assert not lease.valid()
    assert lease.lost.is_set()
    assert (await client.get("/leader"))[0] is None


async def test_a_range_of_more_than_4_MiB_comes_in_one_page_and_in_many(client: Etcd) -> None:
    """5,000 keys of 1 KB: over gRPC's default limit in one answer, and page by page."""
    for chunk in range(50):
        await client.txn((), [Put(f"/big/{chunk:02}{n:02}", bytes(1000)) for n in range(100)])
    one_page, revision = await client.scan("/big/", page=5000)
    pages, _ = await client.scan("/big/", page=1000, revision=revision)
    assert len(one_page) == 5000
    assert pages == one_page


@pytest.mark.slow
async def test_components_F9_an_idle_channel_is_not_told_to_calm_down(proxy: TcpProxy, far_client: Etcd) -> None:
    """Idle for longer than it takes etcd to hang up on a client that pings: the connection is still the same one."""
    await put(far_client, "/a")
    await asyncio.sleep(45)
    await put(far_client, "/a")
    assert proxy.connections == 1
