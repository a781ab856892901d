"""Counters of the whole cluster: sums over processes that come and go, shown by any of them."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from scheduler.settings import Settings
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.redis import TelemetryUnavailable, make_redis
from scheduler.telemetry.shared import KEY, SharedMetrics
from tests.support import servers

RESULTS = "persys_scheduler_reconciliation_results_total"
SECONDS = "persys_scheduler_agent_rpc_duration_seconds"


def samples(exposition: bytes) -> dict[tuple[str, str], float]:
    """Return the values by name and by the labels in one line."""
    return {
        (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition.decode())
        for sample in family.samples
    }


async def test_sums_over_processes_survive_their_end(redis: Redis) -> None:
    """Two workers count, one ends, a third begins: a front shows the sum of all three, and so does another."""
    fronts = [SharedMetrics(redis, Metrics(process=False)) for _ in range(2)]
    for count in (1, 2, 4):
        metrics = Metrics(process=False)
        worker = SharedMetrics(redis, metrics)
        for _ in range(count):
            metrics.reconciled("Apply", success=True)
            await worker.push()
    for front in fronts:
        await front.push()
        await front.read()
        assert samples(front.exposition())[RESULTS, "action=Apply,success=true"] == 7


async def test_histograms_are_whole_and_in_order(redis: Redis) -> None:
    """Every bucket is there, also the empty ones; cumulative; count and sum fit."""
    metrics = Metrics(process=False)
    for seconds in (0.02, 3.0):
        metrics.agent_call("ApplyWorkload", "OK", seconds)
    shared = SharedMetrics(redis, metrics)
    await shared.push()
    await shared.read()
    text = shared.exposition().decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{SECONDS}_bucket")]
    values = [float(line.rsplit(" ", 1)[1]) for line in lines]
    assert len(lines) == 15
    assert values == sorted(values)
    assert 'le="+Inf"' in lines[-1]
    found = samples(text.encode())
    assert found[f"{SECONDS}_count", "code=OK,rpc=ApplyWorkload"] == 2
    assert found[f"{SECONDS}_sum", "code=OK,rpc=ApplyWorkload"] == pytest.approx(3.02)


async def test_what_nobody_has_counted_is_there_with_0(redis: Redis) -> None:
    """Metrics without labels exist from the start, as dashboards expect."""
    shared = SharedMetrics(redis, Metrics(process=False))
    await shared.read()
    assert samples(shared.exposition())["persys_scheduler_reconciliation_cycle_duration_seconds_count", ""] == 0


async def test_values_of_strangers_are_not_shown(redis: Redis) -> None:
    """What something else wrote there neither raises nor appears."""
    await redis.hset(KEY, mapping={"nonsense": 1, '["other_total",[]]': 2})
    shared = SharedMetrics(redis, Metrics(process=False))
    await shared.read()
    assert b"other" not in shared.exposition()


async def test_counts_wait_while_redis_is_away(tmp_path: pathlib.Path) -> None:
    """Nothing is lost, nothing counted twice; what was read last stays."""
    server = servers.redis(tmp_path)
    redis = make_redis(Settings(redis_addr=server.address))
    assert redis
    metrics = Metrics(process=False)
    shared = SharedMetrics(redis, metrics)
    metrics.reconciled("Apply", success=True)
    for call in (shared.push, shared.read):
        with pytest.raises(TelemetryUnavailable):
            await call()
    metrics.reconciled("Apply", success=True)
    with servers.running(server):
        await shared.push()
        await shared.push()
        await shared.read()
        assert samples(shared.exposition())[RESULTS, "action=Apply,success=true"] == 2
    with pytest.raises(TelemetryUnavailable):
        await shared.read()
    assert samples(shared.exposition())[RESULTS, "action=Apply,success=true"] == 2
    await redis.aclose()


async def test_a_process_sends_what_is_left_when_it_ends(redis: Redis) -> None:
    """The last seconds count, too."""
    metrics = Metrics(process=False)
    shared = SharedMetrics(redis, metrics)
    shared.start(show=False)
    assert metrics.sums is None
    metrics.reconciled("Delete", success=False)
    await shared.close()
    front_metrics = Metrics(process=False)
    front = SharedMetrics(redis, front_metrics)
    front.start(show=True)
    await front.read()
    assert samples(front_metrics.exposition())[RESULTS, "action=Delete,success=false"] == 1
    await front.close()


async def test_without_redis_a_process_counts_for_itself() -> None:
    """Its exposition shows its own counters, at once."""
    metrics = Metrics(process=False)
    shared = SharedMetrics(None, metrics)
    shared.start(show=True)
    metrics.reconciled("Apply", success=True)
    assert samples(metrics.exposition())[RESULTS, "action=Apply,success=true"] == 1
    await shared.close()


async def test_a_process_ends_whatever_its_connection_is_doing(redis_server: servers.Server) -> None:
    """Also in the middle of the handshake, where redis-py loses a cancellation."""
    for turns in range(30):
        redis: Redis = Redis.from_url(f"redis://{redis_server.address}/0")
        shared = SharedMetrics(redis, Metrics(process=False))
        shared.start(show=True)
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await shared.close()
        await redis.aclose()
