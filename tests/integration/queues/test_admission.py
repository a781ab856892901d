"""Admission over a real Redis: one atomic script, and Redis's own clock."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from scheduler.domain.shard import Cycle
from scheduler.queues.admission import Admission, Verdict, read_cycles
from tests.support import servers

LEASE = 5.0
_shards = itertools.count()


@pytest.fixture
async def redis(redis_server: servers.Server) -> AsyncIterator[Redis]:
    """A connection to the session's Redis, in a database of this module."""
    client: Redis = Redis.from_url(f"redis://{redis_server.address}/7")
    yield client
    await client.aclose()


@pytest.fixture
def admission(redis: Redis) -> Admission:
    """What is tested."""
    return Admission(redis)


@pytest.fixture
def shard() -> int:
    """A shard that no other test uses."""
    return next(_shards)


def cycle(shard: int, slot: int, term: int = 1, generation: int = 1) -> Cycle:
    """A cycle of reconcile."""
    return Cycle(term, slot, "reconcile", shard, generation)


async def run_whole(admission: Admission, one: Cycle, chunks: int = 1) -> None:
    """Run a cycle from its opening to its end."""
    assert await admission.admit_cycle(one, chunks, LEASE) is Verdict.OK
    for chunk in range(chunks):
        assert await admission.admit_chunk(one, chunk) is Verdict.OK
        end = await admission.finish_chunk(one, failed=False)
        assert end is (Verdict.DONE if chunk == chunks - 1 else Verdict.OK)


async def test_a_slot_runs_once(admission: Admission, shard: int) -> None:
    """A second delivery of the same message is a duplicate, during the run and after it."""
    one = cycle(shard, 10)
    assert await admission.admit_cycle(one, 1, LEASE) is Verdict.OK
    assert await admission.admit_cycle(one, 1, LEASE) is Verdict.DUPLICATE
    await admission.admit_chunk(one, 0)
    await admission.finish_chunk(one, failed=False)
    assert await admission.admit_cycle(one, 1, LEASE) is Verdict.DUPLICATE
    assert await admission.admit_cycle(cycle(shard, 11), 1, LEASE) is Verdict.OK


async def test_B2_a_slot_sent_again_by_a_new_leader_does_not_run_again(admission: Admission, shard: int) -> None:
    """It was published, and its leader died before it was recorded."""
    await run_whole(admission, cycle(shard, 10, term=5))
    assert await admission.admit_cycle(cycle(shard, 10, term=9), 1, LEASE) is Verdict.DUPLICATE


async def test_B2_a_deposed_leader_is_not_heard_once_a_newer_term_was_seen(admission: Admission, shard: int) -> None:
    """Even when all that was seen of the newer term was a duplicate."""
    await run_whole(admission, cycle(shard, 10, term=5))
    assert await admission.admit_cycle(cycle(shard, 10, term=9), 1, LEASE) is Verdict.DUPLICATE
    assert await admission.admit_cycle(cycle(shard, 11, term=5), 1, LEASE) is Verdict.STALE


async def test_an_older_slot_of_the_same_term_is_stale(admission: Admission, shard: int) -> None:
    """Messages may overtake each other."""
    await run_whole(admission, cycle(shard, 10))
    assert await admission.admit_cycle(cycle(shard, 9), 1, LEASE) is Verdict.STALE


async def test_a_new_term_may_begin_with_any_slot(admission: Admission, shard: int) -> None:
    """After a change of the period, slot numbers are others."""
    await run_whole(admission, cycle(shard, 10, term=5))
    assert await admission.admit_cycle(cycle(shard, 3, term=6), 1, LEASE) is Verdict.OK


async def test_a_cycle_cut_for_an_older_shard_map_is_stale(admission: Admission, shard: int) -> None:
    """Even with a newer slot, and for chunks too."""
    old = cycle(shard, 10, generation=1)
    assert await admission.admit_cycle(old, 2, LEASE) is Verdict.OK
    assert await admission.admit_cycle(cycle(shard, 11, generation=2), 1, LEASE) is Verdict.BUSY
    assert await admission.admit_cycle(cycle(shard, 12, generation=1), 1, LEASE) is Verdict.STALE


async def test_cycles_of_a_loop_and_shard_do_not_overlap(admission: Admission, shard: int) -> None:
    """The next slot is busy until the last chunk has ended."""
    one = cycle(shard, 10)
    assert await admission.admit_cycle(one, 2, LEASE) is Verdict.OK
    await admission.admit_chunk(one, 0)
    await admission.finish_chunk(one, failed=False)
    assert await admission.admit_cycle(cycle(shard, 11), 1, LEASE) is Verdict.BUSY
    await admission.admit_chunk(one, 1)
    await admission.finish_chunk(one, failed=False)
    assert await admission.admit_cycle(cycle(shard, 12), 1, LEASE) is Verdict.OK


async def test_other_loops_and_shards_are_free(admission: Admission, shard: int) -> None:
    """Each loop and shard has its own state."""
    other = next(_shards)
    assert await admission.admit_cycle(cycle(shard, 10), 1, LEASE) is Verdict.OK
    assert await admission.admit_cycle(cycle(other, 10), 1, LEASE) is Verdict.OK
    assert await admission.admit_cycle(Cycle(1, 10, "detect_drift", shard, 1), 1, LEASE) is Verdict.OK


async def test_a_chunk_runs_once_and_only_in_its_own_cycle(admission: Admission, shard: int) -> None:
    """Also chunk 1 of 12 is not chunk 12 of 12."""
    one = cycle(shard, 10)
    assert await admission.admit_chunk(one, 0) is Verdict.STALE
    await admission.admit_cycle(one, 13, LEASE)
    assert await admission.admit_chunk(one, 12) is Verdict.OK
    assert await admission.admit_chunk(one, 1) is Verdict.OK
    assert await admission.admit_chunk(one, 1) is Verdict.DUPLICATE
    assert await admission.admit_chunk(cycle(shard, 10, term=2), 2) is Verdict.STALE


async def test_a_late_chunk_of_a_replaced_cycle_does_nothing(admission: Admission, shard: int) -> None:
    """Neither can it start, nor does its end free the shard for a third cycle."""
    old, new = cycle(shard, 10), cycle(shard, 11)
    await admission.admit_cycle(old, 2, 0.05)
    await admission.admit_chunk(old, 0)
    await eventually_admitted(admission, new, chunks=2)
    assert await admission.admit_chunk(old, 1) is Verdict.STALE
    assert await admission.finish_chunk(old, failed=False) is Verdict.STALE
    assert await admission.renew(old) is Verdict.STALE
    assert await admission.release(old) is Verdict.STALE
    assert await admission.admit_cycle(cycle(shard, 12), 1, LEASE) is Verdict.BUSY


async def test_a_silent_cycle_is_replaced_when_its_lease_ends(admission: Admission, shard: int) -> None:
    """A worker that died holds its shard no longer than the lease."""
    dead = cycle(shard, 10)
    await admission.admit_cycle(dead, 1, 0.3)
    await admission.admit_chunk(dead, 0)
    assert await admission.admit_cycle(cycle(shard, 11), 1, 0.3) is Verdict.BUSY
    await eventually_admitted(admission, cycle(shard, 12))


async def test_a_cycle_that_is_renewed_keeps_its_shard(admission: Admission, shard: int) -> None:
    """However long it takes."""
    long = cycle(shard, 10)
    await admission.admit_cycle(long, 1, 0.6)
    await admission.admit_chunk(long, 0)
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        assert await admission.renew(long) is Verdict.OK
        assert await admission.admit_cycle(cycle(shard, 11), 1, LEASE) is Verdict.BUSY
        await asyncio.sleep(0.05)


async def test_a_renewal_that_arrives_after_the_end_does_not_hold_the_shard(admission: Admission, shard: int) -> None:
    """It was on its way when the last chunk ended."""
    one = cycle(shard, 10)
    await run_whole(admission, one)
    await admission.renew(one)
    assert await admission.admit_cycle(cycle(shard, 11), 1, LEASE) is Verdict.OK


async def test_a_cycle_whose_chunks_could_not_be_sent_gives_the_shard_back(admission: Admission, shard: int) -> None:
    """The next slot need not wait for the lease."""
    one = cycle(shard, 10)
    await admission.admit_cycle(one, 3, LEASE)
    await admission.release(one)
    assert await admission.admit_cycle(cycle(shard, 11), 1, LEASE) is Verdict.OK


async def test_the_last_finished_cycle_is_known_by_loop_and_shard(redis: Redis, admission: Admission) -> None:
    """Only a cycle whose chunks all went well counts."""
    shard = 900
    assert (await read_cycles(redis, shard + 1)).get(("reconcile", shard)) is None
    good, bad = cycle(shard, 10, term=3), cycle(shard, 11, term=3)
    await admission.admit_cycle(good, 2, LEASE)
    await admission.finish_chunk(good, failed=False)
    assert (await read_cycles(redis, shard + 1))["reconcile", shard] == (10, 3, 0)
    await admission.finish_chunk(good, failed=False)
    state = (await read_cycles(redis, shard + 1))["reconcile", shard]
    assert abs(state.finished_at - time.time()) < 60
    await admission.admit_cycle(bad, 2, LEASE)
    assert await admission.finish_chunk(bad, failed=True) is Verdict.OK
    assert await admission.finish_chunk(bad, failed=False) is Verdict.FAILED
    after = (await read_cycles(redis, shard + 1))["reconcile", shard]
    assert (after.slot, after.finished_at) == (11, state.finished_at)
    assert await admission.admit_cycle(cycle(shard, 12, term=3), 1, LEASE) is Verdict.OK


async def test_of_many_at_once_one_is_admitted(redis_server: servers.Server, shard: int) -> None:
    """Fifty workers that got the same cycle, and fifty that got the same chunk."""
    clients: list[Redis] = [Redis.from_url(f"redis://{redis_server.address}/7") for _ in range(10)]
    admissions = [Admission(client) for client in clients]
    one = cycle(shard, 10)
    verdicts = await asyncio.gather(*(a.admit_cycle(one, 1, LEASE) for a in admissions * 5))
    assert sorted(verdicts) == [Verdict.DUPLICATE] * 49 + [Verdict.OK]
    verdicts = await asyncio.gather(*(a.admit_chunk(one, 0) for a in admissions * 5))
    assert sorted(verdicts) == [Verdict.DUPLICATE] * 49 + [Verdict.OK]
    for client in clients:
        await client.aclose()


async def test_state_does_not_stay_for_ever(redis: Redis, admission: Admission, shard: int) -> None:
    """Shards that are gone leave nothing, and an etcd restored from a backup is obeyed in time."""
    await admission.admit_cycle(cycle(shard, 10), 1, LEASE)
    assert 0 < await redis.ttl(f"scheduler:cycle:reconcile:{shard}") <= 900


async def test_without_redis_everything_is_admitted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The fence in etcd gives safety; a log line, not one a message, tells."""
    server = servers.redis(tmp_path)
    with servers.running(server):
        client: Redis = Redis.from_url(f"redis://{server.address}/0", socket_timeout=0.5, socket_connect_timeout=0.5)
        admission = Admission(client)
        assert await admission.admit_cycle(cycle(0, 10), 1, LEASE) is Verdict.OK
        assert await admission.admit_cycle(cycle(0, 11), 1, LEASE) is Verdict.BUSY
    for _ in range(3):
        assert await admission.admit_cycle(cycle(0, 12), 1, LEASE) is Verdict.OK
    assert admission.verdicts["unknown"] == 3
    assert len([r for r in caplog.records if "without admission" in r.getMessage()]) == 1
    with servers.running(server):
        assert await admission.admit_cycle(cycle(0, 13), 1, LEASE) is Verdict.OK
        assert await admission.admit_cycle(cycle(0, 14), 1, LEASE) is Verdict.BUSY
    await client.aclose()


async def eventually_admitted(admission: Admission, one: Cycle, chunks: int = 1) -> None:
    """Wait until a cycle is admitted."""
    deadline = time.monotonic() + 10
    while (verdict := await admission.admit_cycle(one, chunks, LEASE)) is not Verdict.OK:
        assert verdict is Verdict.BUSY
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
