"""Outcomes of reconciling in a real Redis, and in etcd while it is away."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from scheduler.domain.reconciliation import Outcome, Reconciliation
from scheduler.settings import Settings
from scheduler.store.etcd import Etcd
from scheduler.store.keys import RECONCILIATIONS
from scheduler.store.kv import Put
from scheduler.store.store import Store
from scheduler.telemetry.history import STREAM, History, key_of
from scheduler.telemetry.history_reader import PAGE, read_outcomes
from scheduler.telemetry.history_store import HistoryStore
from scheduler.telemetry.redis import make_redis
from tests.support import servers
from tests.support.fronts import eventually

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def etcd(etcd_server: servers.Server, etcd_prefix: str) -> AsyncIterator[Etcd]:
    """A real etcd, empty."""
    client = Etcd([etcd_server.address], prefix=etcd_prefix)
    yield client
    await client.close()


def stored_by(etcd: Etcd, ttl_seconds: float = 60) -> HistoryStore:
    """Return the fallback."""
    return HistoryStore(etcd, Store(etcd), ttl_seconds=ttl_seconds)


async def sent(history: History) -> None:
    """Wait until nothing waits."""
    await eventually(lambda: not history._waiting)


async def in_stream(redis: Redis) -> list[Reconciliation]:
    """Return the whole history, oldest first."""
    return [Reconciliation.from_json(fields[b"data"]) for _, fields in await redis.xrange(STREAM)]


async def last_of(redis: Redis, workload_id: str) -> Reconciliation | None:
    """Return the last outcome of a workload."""
    text = await redis.get(key_of(workload_id))
    return Reconciliation.from_json(text) if text else None


async def test_F70_the_last_outcome_and_the_history_are_kept_with_their_time_to_live(redis: Redis) -> None:
    """A JSON string a workload, and all in one stream."""
    history = History(redis, max_entries=100, ttl_seconds=60)
    history.record("web", "Assign", success=True, reason="to n-1", anew=True)
    history.record("web", "ReapplyRunning", success=False, reason="E: no such image", anew=True)
    await sent(history)
    last = await last_of(redis, "web")
    assert last
    assert (last.action, last.success, last.reason) == ("ReapplyRunning", False, "E: no such image")
    assert [one.action for one in await in_stream(redis)] == ["Assign", "ReapplyRunning"]
    assert 0 < await redis.ttl(key_of("web")) <= 60
    assert 0 < await redis.ttl(STREAM) <= 60
    await history.close()


async def test_F70_a_workload_named_history_does_no_harm(redis: Redis) -> None:
    """Also where the reference system has left its list under the key of such a workload."""
    await redis.lpush("reconciliation:history", "{}")
    assert await read_outcomes(redis, "history", 10, LONG_AGO) == []
    history = History(redis, max_entries=100, ttl_seconds=60)
    for workload_id in ("history", "web", "history"):
        history.record(workload_id, "ReapplyRunning", success=True, anew=True)
    await sent(history)
    assert [one.workload_id for one in await in_stream(redis)] == ["history", "web", "history"]
    assert await redis.type(key_of("history")) == b"string"
    assert {one.workload_id for one in await read_outcomes(redis, "history", 10, LONG_AGO)} == {"history"}
    await history.close()


async def test_F70_the_history_is_capped_exactly_and_the_last_outcome_outlives_it(redis: Redis) -> None:
    """A restless workload pushes others out of the history, not out of their own keys."""
    history = History(redis, max_entries=50, ttl_seconds=60)
    history.record("quiet", "Assign", success=True)
    for number in range(200):
        history.record("restless", "ReapplyRunning", success=True, reason=str(number), anew=True)
    await sent(history)
    kept = await in_stream(redis)
    assert [one.reason for one in kept] == [str(number) for number in range(150, 200)]
    assert [one.action for one in await read_outcomes(redis, "quiet", 10, LONG_AGO)] == ["Assign"]
    await history.close()


async def test_F70_old_entries_expire_although_pushes_go_on(redis: Redis) -> None:
    """The stream's own time to live is renewed by each push; entries go by their age, to the millisecond."""
    seconds, micros = await redis.time()
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    old = Reconciliation(workload_id="web", action="Assign", success=True, attempted_at=LONG_AGO).to_json()
    await redis.xadd(STREAM, {"data": old}, id=f"{now_ms - 61_000}-0")
    await redis.xadd(STREAM, {"data": old}, id=f"{now_ms - 30_000}-0")
    history = History(redis, max_entries=100, ttl_seconds=60)
    history.record("web", "ReapplyRunning", success=True)
    await sent(history)
    ids = [int(identifier.decode().split("-")[0]) for identifier, _ in await redis.xrange(STREAM)]
    assert len(ids) == 2
    assert ids[0] == now_ms - 30_000
    since = datetime.now(UTC) - timedelta(seconds=60)
    assert [one.action for one in await read_outcomes(redis, "web", 10, since)] == ["ReapplyRunning"] * 2, "once by key"
    await history.close()


async def test_F70_what_another_process_has_said_already_is_not_said_again(redis: Redis) -> None:
    """Workers of a shard take turns at a workload: its repeats are found in Redis, orders are all kept."""
    one, other = (History(redis, max_entries=100, ttl_seconds=60) for _ in range(2))
    for history in (one, other):
        history.record("web", "Assign", success=False, reason="full")
        await sent(history)
    assert len(await in_stream(redis)) == 1
    for history in (one, other):
        history.record("web", "ReapplyRunning", success=True, anew=True)
        await sent(history)
    assert len(await in_stream(redis)) == 3
    await one.close()
    await other.close()


async def test_F70_a_later_outcome_is_not_replaced_by_one_that_arrives_late(redis: Redis) -> None:
    """A process that could not send for a while does not rewrite what is known since."""
    history = History(redis, max_entries=100, ttl_seconds=60)
    history.record("web", "ReapplyRunning", success=True)
    await sent(history)
    late = Reconciliation(workload_id="web", action="Assign", success=True, attempted_at=LONG_AGO)
    await history._to_redis([Outcome(late, anew=True)])
    last = await last_of(redis, "web")
    assert last
    assert last.action == "ReapplyRunning"
    assert len(await in_stream(redis)) == 2
    await history.close()


async def test_F70_the_end_of_a_workload_takes_its_entry_and_leaves_the_history(redis: Redis) -> None:
    """A new workload of that name begins without the old one's last word; what became of the old one is still told."""
    history = History(redis, max_entries=100, ttl_seconds=60)
    history.record("web", "Delete", success=True)
    history.record("web", "FinalizeDelete", success=True)
    await sent(history)
    assert await redis.exists(key_of("web")) == 0
    assert [one.action for one in await in_stream(redis)] == ["Delete", "FinalizeDelete"]
    await history.close()


async def test_F70_a_long_history_is_read_in_pages_until_there_is_enough(redis: Redis) -> None:
    """The newest of a workload are found behind more than a page of others."""
    history = History(redis, max_entries=2000, ttl_seconds=60, buffer=2000)
    history.record("web", "Assign", success=True)
    history.record("web", "Reschedule", success=True)
    for number in range(PAGE + 100):
        history.record("restless", "ReapplyRunning", success=True, reason=str(number), anew=True)
    await sent(history)
    found = await read_outcomes(redis, "web", 10, LONG_AGO)
    assert {one.action for one in found} == {"Assign", "Reschedule"}
    await redis.xadd(STREAM, {"data": b"not JSON"})
    await redis.xadd(STREAM, {"other": b"x"})
    assert len(await read_outcomes(redis, "web", 10, LONG_AGO)) == len(found), "what is no outcome is passed over"
    await history.close()


async def test_F70_F71_without_redis_the_last_outcome_is_in_etcd_under_a_lease(etcd: Etcd) -> None:
    """One key a workload, whatever happened; it goes with the workload."""
    history = History(None, max_entries=100, ttl_seconds=60, store=stored_by(etcd))
    history.record("history", "Assign", success=True)
    for number in range(100):
        history.record("web", "ReapplyRunning", success=True, reason=str(number), anew=True)
    await sent(history)
    kvs, _ = await etcd.scan(RECONCILIATIONS.prefix)
    assert {kv.key for kv in kvs} == {"/reconciliation/history", "/reconciliation/web"}
    assert all(kv.lease for kv in kvs)
    web = next(Reconciliation.from_json(kv.value) for kv in kvs if kv.key.endswith("web"))
    assert web.reason == "99"
    history.record("web", "FinalizeDelete", success=True)
    await sent(history)
    kvs, revision = await etcd.scan(RECONCILIATIONS.prefix)
    assert {kv.key for kv in kvs} == {"/reconciliation/history"}
    other = History(None, max_entries=100, ttl_seconds=60, store=stored_by(etcd))
    other.record("history", "Assign", success=True)
    await sent(other)
    assert (await etcd.scan(RECONCILIATIONS.prefix))[1] == revision, "a repeat writes nothing"
    await history.close()
    await other.close()


async def test_F70_F71_what_is_in_etcd_is_gone_after_its_time_and_never_older_than_what_was_there(etcd: Etcd) -> None:
    """The lease is never renewed; a late outcome does not replace a later one."""
    future = datetime.now(UTC) + timedelta(hours=1)
    later = Reconciliation(workload_id="web", action="Reschedule", success=True, attempted_at=future)
    await etcd.txn((), [Put(RECONCILIATIONS.key("web"), later.to_json())])
    history = History(None, max_entries=100, ttl_seconds=1, store=stored_by(etcd, ttl_seconds=1))
    history.record("web", "Assign", success=True, anew=True)
    history.record("db", "Assign", success=True)
    await sent(history)
    kv, _ = await etcd.get(RECONCILIATIONS.key("web"))
    assert kv
    assert Reconciliation.from_json(kv.value).action == "Reschedule"

    async def is_gone() -> bool:
        return (await etcd.get(RECONCILIATIONS.key("db")))[0] is None

    await eventually(is_gone, 15)
    await history.close()


async def test_F70_F71_redis_is_killed_and_comes_back(etcd: Etcd, tmp_path: pathlib.Path) -> None:
    """Meanwhile outcomes go to etcd, and recording never waits; afterwards Redis is used again, and etcd is not."""
    server = servers.redis(tmp_path)
    redis = make_redis(Settings(redis_addr=server.address))
    assert redis
    history = History(redis, max_entries=100, ttl_seconds=60, store=stored_by(etcd))
    with servers.running(server):
        history.record("web", "Assign", success=True)
        await sent(history)
        assert (await etcd.scan(RECONCILIATIONS.prefix))[0] == []
        server.kill()
        history.record("web", "ReapplyRunning", success=False, reason="E")
        await sent(history)
        kv, _ = await etcd.get(RECONCILIATIONS.key("web"))
        assert kv
        assert Reconciliation.from_json(kv.value).action == "ReapplyRunning"
        server.start()

        async def is_used_again() -> bool:
            history.record("db", "ReapplyRunning", success=True, anew=True)
            await sent(history)
            return bool(await redis.exists(key_of("db")))

        await eventually(is_used_again, 20)
        _, revision = await etcd.scan(RECONCILIATIONS.prefix)
        history.record("web", "ReapplyRunning", success=True, anew=True)
        await sent(history)
        assert (await etcd.scan(RECONCILIATIONS.prefix))[1] == revision
        await history.close()
    await redis.aclose()


async def test_F70_closing_sends_what_waits_and_does_not_wait_for_a_dead_redis(redis: Redis) -> None:
    """A worker that ends says what it has to say."""
    history = History(redis, max_entries=100, ttl_seconds=60)
    history.record("web", "Assign", success=True)
    await history.close()
    assert len(await in_stream(redis)) == 1
    dead = make_redis(Settings(redis_addr="127.0.0.1:1"))
    assert dead
    lost = History(dead, max_entries=100, ttl_seconds=60)
    lost.record("web", "Assign", success=True)
    async with asyncio.timeout(5):
        await lost.close()
    await dead.aclose()


async def test_F70_F71_a_record_that_cannot_be_read_stops_no_other(etcd: Etcd) -> None:
    """Its outcome is dropped and counted; those before and after it are written."""
    dropped: list[None] = []
    await etcd.txn((), [Put(RECONCILIATIONS.key("bad"), b"no JSON")])
    history = History(
        None, max_entries=100, ttl_seconds=60, store=stored_by(etcd), on_drop=lambda: dropped.append(None)
    )
    for workload_id in ("web", "bad", "db"):
        history.record(workload_id, "Assign", success=True)
    await sent(history)
    history.record("later", "Assign", success=True)
    await sent(history)
    stored = {RECONCILIATIONS.id_of(kv.key) for kv in (await etcd.scan(RECONCILIATIONS.prefix))[0]}
    assert stored == {"web", "bad", "db", "later"}
    assert len(dropped) == 1
    await history.close()
