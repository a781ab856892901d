"""GetWorkloadHistory over a real Redis that goes and comes back, and over etcd."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import grpc
from redis.asyncio import Redis

from scheduler.domain.reconciliation import Outcome, Reconciliation
from scheduler.pb import fleetbeat_pb2 as fb
from scheduler.settings import Settings
from scheduler.store.keys import RECONCILIATIONS
from scheduler.store.kv import EtcdApi
from scheduler.telemetry.history import STREAM, History
from scheduler.telemetry.history_store import HistoryStore
from scheduler.telemetry.redis import make_redis
from tests.support import servers
from tests.support.fronts import Rig, eventually, front_on, refused


@contextlib.asynccontextmanager
async def worker_of(rig: Rig, redis: Redis | None) -> AsyncIterator[History]:
    """What a worker beside this front sends its outcomes with."""
    store = HistoryStore(rig.parts.etcd, rig.parts.store, ttl_seconds=60)
    history = History(redis, max_entries=1000, ttl_seconds=60, store=store)
    yield history
    await history.close()


async def sent(history: History) -> None:
    """Wait until nothing waits."""
    await eventually(lambda: not history._waiting)


async def read(rig: Rig, workload_id: str = "web", limit: int = 0) -> fb.GetWorkloadHistoryResponse:
    """Ask for a history."""
    request = fb.GetWorkloadHistoryRequest(workload_id=workload_id, limit=limit)
    answer: fb.GetWorkloadHistoryResponse = await rig.fleet.GetWorkloadHistory(request)
    return answer


def reasons(answer: fb.GetWorkloadHistoryResponse) -> list[str]:
    """Return the reasons as they come."""
    return [one.reason for one in answer.outcomes]


async def test_F70_a_history_is_read_newest_first_and_bounded(etcd: EtcdApi, redis: Redis) -> None:
    """Of one workload only, also one named history; 0 means the default limit."""
    async with front_on(etcd, redis=redis) as rig, worker_of(rig, redis) as history:
        for number in range(60):
            history.record("web", "ReapplyRunning", success=number % 2 == 0, reason=str(number), anew=True)
            history.record("history", "Assign", success=True, reason=f"h{number}")
        await sent(history)
        answer = await read(rig)
        assert reasons(answer) == [str(number) for number in range(59, 9, -1)]
        newest = answer.outcomes[0]
        assert (answer.workload_id, newest.action, newest.success) == ("web", "ReapplyRunning", False)
        assert abs(newest.attempted_at.ToDatetime(UTC) - datetime.now(UTC)) < timedelta(minutes=1)
        assert not answer.partial
        assert reasons(await read(rig, limit=2)) == ["59", "58"]
        assert len(reasons(await read(rig, limit=1000))) == 60
        assert reasons(await read(rig, "history", limit=1)) == ["h59"]


async def test_F70_a_workload_without_history_has_an_empty_one_and_none_is_not_found(redis: Redis) -> None:
    """One that is gone is found as long as something is kept of it."""
    async with front_on(redis=redis) as rig, worker_of(rig, redis) as history:
        await rig.apply()
        assert reasons(await read(rig)) == []
        with refused(grpc.StatusCode.NOT_FOUND, "nobody"):
            await read(rig, "nobody")
        history.record("gone", "FinalizeDelete", success=True)
        await sent(history)
        assert [one.action for one in (await read(rig, "gone")).outcomes] == ["FinalizeDelete"]


async def test_F70_what_is_older_than_its_time_is_not_shown(redis: Redis) -> None:
    """The stream lives as long as its youngest entry; and the reference system's records in etcd have no lease."""
    async with front_on(redis=redis, redis_reconcile_ttl_seconds=60.0) as rig, worker_of(rig, redis) as history:
        await rig.apply()
        old = datetime.now(UTC) - timedelta(seconds=61)
        record = Reconciliation(workload_id="web", action="Assign", success=True, reason="old", attempted_at=old)
        await history._to_redis([Outcome(record, anew=True)])
        await rig.put_key(RECONCILIATIONS.key("web"), record.to_json())
        assert reasons(await read(rig)) == []
        history.record("web", "ReapplyRunning", success=True, reason="new")
        await sent(history)
        assert reasons(await read(rig)) == ["new"]


async def test_F70_what_was_sent_twice_is_shown_once(redis: Redis) -> None:
    """A sender that got no answer sends again; and what etcd has too is the same."""
    async with front_on(redis=redis) as rig, worker_of(rig, redis) as history:
        now = datetime.now(UTC)
        record = Reconciliation(workload_id="web", action="Assign", success=True, reason="1", attempted_at=now)
        for _ in range(2):
            await history._to_redis([Outcome(record, anew=True)])
        await rig.put_key(RECONCILIATIONS.key("web"), record.to_json())
        assert await redis.xlen(STREAM) == 2
        assert reasons(await read(rig)) == ["1"]


async def test_F70_F71_without_redis_the_last_outcome_is_shown(etcd: EtcdApi) -> None:
    """And the answer says that there is no more than that."""
    async with front_on(etcd) as rig, worker_of(rig, None) as history:
        for reason in ("1", "2"):
            history.record("web", "ReapplyRunning", success=True, reason=reason, anew=True)
        await sent(history)
        answer = await read(rig)
        assert reasons(answer) == ["2"]
        assert answer.partial


async def test_F70_F71_a_history_goes_over_an_outage_of_redis(tmp_path: pathlib.Path) -> None:
    """Redis is killed and comes back: what was done meanwhile stands between what was before and after."""
    server = servers.redis(tmp_path, "--appendonly", "yes", "--appendfsync", "always")
    redis = make_redis(Settings(redis_addr=server.address))
    assert redis
    with servers.running(server):
        async with front_on(redis=redis) as rig, worker_of(rig, redis) as history:
            history.record("web", "Assign", success=True, reason="before", anew=True)
            await sent(history)
            server.kill()
            history.record("web", "ReapplyRunning", success=True, reason="meanwhile", anew=True)
            await sent(history)
            answer = await read(rig)
            assert (reasons(answer), answer.partial) == (["meanwhile"], True)
            server.start()

            async def is_back() -> bool:
                history.record("other", "ReapplyRunning", success=True, anew=True)
                await sent(history)
                return bool(await redis.exists("reconciliation:other"))

            await eventually(is_back, 20)
            history.record("web", "ReapplyRunning", success=True, reason="after", anew=True)
            await sent(history)
            answer = await read(rig)
            assert reasons(answer)[:2] == ["after", "meanwhile"]
            assert not answer.partial
    await redis.aclose()
