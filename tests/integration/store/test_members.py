"""Three etcd members: one is killed, one hangs, two are gone."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.cache import Cache
from scheduler.store.etcd import Etcd
from scheduler.store.keys import FENCES
from scheduler.store.lease import Lease
from scheduler.store.store import Store
from tests.support.etcd_members import three_members
from tests.support.records import COUNTER, add_one, count_of, set_to
from tests.support.servers import Server
from tests.support.waiting import eventually


@pytest.fixture
def members(tmp_path: pathlib.Path) -> Iterator[list[Server]]:
    """Three members that the test may harm."""
    with three_members(tmp_path) as members:
        yield members


@pytest.fixture
async def client(members: list[Server]) -> AsyncIterator[Etcd]:
    """A client that knows them all."""
    client = Etcd([member.address for member in members], timeout_seconds=2.0)
    await _leader(client, members)
    yield client
    await client.close()


async def _leader(client: Etcd, members: list[Server]) -> Server:
    async with asyncio.timeout(20):
        while True:
            leaders = [address for address, status in (await client.status()).items() if status.leads]
            if leaders:
                return next(member for member in members if member.address == leaders[0])
            await asyncio.sleep(0.05)


async def _count_on(client: Etcd, times: int) -> int:
    """Count up so often, whatever goes wrong meanwhile; return the count of those whose outcome is certain."""
    store, done = Store(client), 0
    async with asyncio.timeout(60):
        while done < times:
            with contextlib.suppress(StoreUnavailable):
                await store.transact([COUNTER], add_one, timeout_seconds=10)
                done += 1
    return done


@pytest.mark.parametrize("harm", ["kill", "pause"])
async def test_components_F2_scenario_K1_writes_go_on_when_the_leader_is_killed_or_hangs(
    client: Etcd, members: list[Server], harm: str
) -> None:
    """The leader, which also is the member in use, dies or stops answering: counting goes on, and each counts once."""
    leader = await _leader(client, members)
    client._endpoints._current = members.index(leader)
    assert await _count_on(client, 5) == 5
    getattr(leader, harm)()
    assert await _count_on(client, 20) == 20
    assert client._endpoints.current.address != leader.address
    assert count_of(await Store(client).read([COUNTER])) == 25


async def test_scenario_K1_a_read_turns_to_another_member_within_its_deadline(
    client: Etcd, members: list[Server]
) -> None:
    """The member in use hangs: a read is answered by another one in the same call."""
    leader = await _leader(client, members)
    follower = next(i for i, member in enumerate(members) if member is not leader)
    client._endpoints._current = follower
    await client.get("/a")
    members[follower].pause()
    await client.get("/a")
    assert client._endpoints._current != follower


async def test_components_F6a_a_watch_on_a_hung_member_moves_to_another(client: Etcd, members: list[Server]) -> None:
    """The member that serves the cache hangs: after the silence limit another one delivers what was missed."""
    leader = await _leader(client, members)
    follower = next(i for i, member in enumerate(members) if member is not leader)
    client._endpoints._current = follower
    cache = Cache(client, [FENCES])
    await cache.start()
    await cache.ready(20)
    other = Etcd([leader.address])
    store = Store(other)
    members[follower].pause()
    for number in range(1, 6):
        await store.transact([COUNTER], set_to(number))
    await cache.wait_revision(store.last_revision, 20)
    assert cache.get(FENCES, COUNTER.id).mod_revision == store.last_revision
    await cache.close()
    await other.close()


async def test_components_F6b_a_lost_quorum_is_noticed_and_a_regained_one_too(
    client: Etcd, members: list[Server]
) -> None:
    """Two of three are gone: nothing is written, the cache grows old; one returns: both go on, nothing was applied."""
    store = Store(client)
    await store.transact([COUNTER], set_to(1))
    cache = Cache(client, [FENCES])
    await cache.start()
    await cache.ready(20)
    for member in members[1:]:
        member.kill()
    with pytest.raises(StoreUnavailable):
        await store.transact([COUNTER], set_to(2))
    await eventually(lambda: cache.freshness().age_seconds > 5, 15)
    assert cache.get(FENCES, COUNTER.id).mod_revision == store.last_revision
    members[1].start()
    await _leader(client, members)
    await _count_on(client, 1)
    await cache.wait_revision((await store.read([COUNTER])).at(COUNTER.key).mod_revision, 20)
    assert cache.freshness().synced
    await cache.close()


async def test_scenario_K1_a_lease_is_kept_over_the_loss_of_the_member_in_use(
    client: Etcd, members: list[Server]
) -> None:
    """The member that carries the renewals hangs: they go on at another one before the lease has run out."""
    lease = Lease(client, 4)
    await lease.start()
    leader = await _leader(client, members)
    follower = next(i for i, member in enumerate(members) if member is not leader)
    client._endpoints._current = follower
    members[follower].pause()
    end = time.monotonic() + 5
    await eventually(lambda: time.monotonic() > end or not lease.valid(), 10)
    assert lease.valid()
    await lease.revoke()
