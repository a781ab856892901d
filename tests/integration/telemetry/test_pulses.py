"""Pulses and usage on a real Redis: whose clock counts, what continuity means, what is never overwritten."""

from __future__ import annotations

import asyncio
import pathlib
import socket
import time

import pytest
from redis.asyncio import Redis

from scheduler.settings import Settings
from scheduler.telemetry.pulses import (
    FRONTS_KEY,
    PULSES_KEY,
    USAGE_PREFIX,
    USAGE_TTL_SECONDS,
    Heard,
    Pulses,
    Usage,
    Use,
)
from scheduler.telemetry.redis import TelemetryUnavailable, make_redis
from tests.support import servers

USE = Use(cpu_used_millicores=500, memory_used_mb=96, disk_used_gb=3)


@pytest.fixture
def pulses(redis: Redis) -> Pulses:
    """Pulses with a gap limit of a second."""
    return Pulses(redis, gap_limit_seconds=1.0)


async def clock(redis: Redis) -> float:
    """Return Redis's time."""
    seconds, micros = await redis.time()
    return float(seconds + micros / 1e6)


async def set_front(redis: Redis, front_id: str, since: float, at: float) -> None:
    """Store a front's pulse as it is."""
    await redis.hset(FRONTS_KEY, front_id, f"{since:.6f} {at:.6f}")


async def test_a_pulse_is_read_back_with_redis_time_and_what_the_node_uses(redis: Redis, pulses: Pulses) -> None:
    """The time is Redis's; the age that the front measured is subtracted."""
    before = await clock(redis)
    await pulses.flush("f1", {"n1": Heard(0.0, USE), "n2": Heard(5.0)})
    view = await pulses.read()
    assert before <= view.pulses["n1"].at <= view.now
    assert view.pulses["n2"].at == pytest.approx(view.pulses["n1"].at - 5.0, abs=0.5)
    n1 = view.pulses["n1"]
    assert (n1.node_id, n1.cpu_used_millicores, n1.memory_used_mb, n1.disk_used_gb) == ("n1", 500, 96, 3)


async def test_only_the_asked_for_are_read(pulses: Pulses) -> None:
    """By id; unknown ones are absent; no ids, no pulses, but the fronts all the same."""
    await pulses.flush("f1", {f"n{i}": Heard(0.0) for i in range(5)})
    assert set((await pulses.read(["n1", "n9"])).pulses) == {"n1"}
    nothing = await pulses.read([])
    assert (nothing.pulses, [f.front_id for f in nothing.fronts]) == ({}, ["f1"])


async def test_a_late_pulse_does_not_overwrite_a_newer_one(pulses: Pulses) -> None:
    """A front that kept pulses while Redis was away must not make a node look silent."""
    await pulses.flush("f2", {"n1": Heard(0.0, USE)})
    newer = (await pulses.read()).pulses["n1"].at
    await pulses.flush("f1", {"n1": Heard(60.0, Use())})
    again = (await pulses.read()).pulses["n1"]
    assert (again.at, again.cpu_used_millicores) == (newer, 500)


async def test_a_pulse_from_the_future_is_overwritten(redis: Redis, pulses: Pulses) -> None:
    """After a failover to a Redis whose clock is behind, nodes do not live on for hours."""
    await redis.hset(PULSES_KEY, "n1", f"{time.time() + 9999:017.6f}")
    await pulses.flush("f1", {"n1": Heard(0.0)})
    view = await pulses.read()
    assert view.pulses["n1"].at <= view.now


async def test_a_pulse_without_use_keeps_what_is_known(pulses: Pulses) -> None:
    """A heartbeat without a usage block leaves the measured use unchanged."""
    await pulses.flush("f1", {"n1": Heard(0.0, USE)})
    first = (await pulses.read()).pulses["n1"].at
    await pulses.flush("f1", {"n1": Heard(0.0)})
    after = (await pulses.read()).pulses["n1"]
    assert after.at > first
    assert after.cpu_used_millicores == 500


async def test_values_of_strangers_are_as_good_as_none(redis: Redis, pulses: Pulses) -> None:
    """What something else wrote there neither raises nor counts."""
    await redis.hset(PULSES_KEY, mapping={"n1": "nonsense", "n2": f"{1.0:017.6f}\xc1"})
    await redis.hset(FRONTS_KEY, "f9", "x")
    await pulses.flush("f1", {})
    view = await pulses.read()
    assert view.pulses == {}
    assert [front.front_id for front in view.fronts] == ["f1"]


async def test_a_front_that_pulses_in_time_has_listened_since_its_first_pulse(pulses: Pulses) -> None:
    """`since` stays, `at` moves on."""
    await pulses.flush("f1", {})
    first = (await pulses.read()).fronts[0]
    await pulses.flush("f1", {})
    second = (await pulses.read()).fronts[0]
    assert second.since == first.since
    assert second.at > first.at


async def test_a_gap_starts_the_listening_anew(redis: Redis, pulses: Pulses) -> None:
    """A pulse older than the gap limit, or from the future, proves nothing about the time between."""
    now = await clock(redis)
    await set_front(redis, "f1", now - 100, now - 2)
    await set_front(redis, "f2", now - 100, now + 500)
    await pulses.flush("f1", {})
    await pulses.flush("f2", {})
    assert all(front.since >= now for front in (await pulses.read()).fronts)


async def test_a_redis_that_lost_everything_starts_the_listening_anew(redis: Redis, pulses: Pulses) -> None:
    """With the pulses the proof of having listened is gone, too."""
    await pulses.flush("f1", {})
    first = (await pulses.read()).fronts[0].since
    await redis.flushdb()
    await pulses.flush("f1", {})
    assert (await pulses.read()).fronts[0].since > first


async def test_a_front_that_does_not_listen_writes_only_nodes(pulses: Pulses) -> None:
    """What it heard is true; that it listens is not claimed."""
    await pulses.flush("f1", {"n1": Heard(0.0)}, listening=False)
    view = await pulses.read()
    assert (list(view.pulses), view.fronts) == (["n1"], [])


async def test_fronts_leave_and_old_ones_are_pruned(redis: Redis, pulses: Pulses) -> None:
    """A stopped front signs off; one that died an hour ago is forgotten by the next flush of any other."""
    now = await clock(redis)
    await set_front(redis, "dead", now - 9000, now - 4000)
    await set_front(redis, "mute", now - 900, now - 400)
    await pulses.flush("f1", {})
    assert {front.front_id for front in (await pulses.read()).fronts} == {"f1", "mute"}
    await pulses.leave("f1")
    assert {front.front_id for front in (await pulses.read()).fronts} == {"mute"}


async def test_a_node_is_forgotten(pulses: Pulses) -> None:
    """Its pulse is gone."""
    await pulses.flush("f1", {"n1": Heard(0.0)})
    await pulses.forget("n1")
    assert (await pulses.read()).pulses == {}


async def test_ten_thousand_nodes_fit_into_one_flush(pulses: Pulses) -> None:
    """Flushes are cut into bounded calls; all arrive."""
    await pulses.flush("f1", {f"n{i}": Heard(0.0, USE) for i in range(10_000)})
    assert len((await pulses.read()).pulses) == 10_000


async def test_the_latest_usage_of_a_workload_is_kept_for_an_hour(redis: Redis, pulses: Pulses) -> None:
    """Written and read by workload id; what has none is absent; nonsense too."""
    samples = [Usage(workload_id=f"w{i}", node_id="n1", cpu_percent=i / 2, memory_bytes=2**40) for i in range(1200)]
    await pulses.flush_usage(samples)
    await pulses.flush_usage([Usage(workload_id="w7", cpu_percent=99.0)])
    await redis.set(USAGE_PREFIX + "odd", b"\xc1")
    found = await pulses.read_usage(["w7", "w8", "none", "odd"])
    assert found == {"w7": Usage(workload_id="w7", cpu_percent=99.0), "w8": samples[8]}
    assert 0 < await redis.ttl(USAGE_PREFIX + "w7") <= USAGE_TTL_SECONDS


async def test_a_redis_that_is_away_is_one_kind_of_error_and_quick(tmp_path: pathlib.Path) -> None:
    """Refused, killed in between, back again: TelemetryUnavailable meanwhile, and calls right after it fail at once."""
    with servers.running(servers.redis(tmp_path)) as server:
        redis = make_redis(Settings(redis_addr=server.address))
        assert redis
        pulses = Pulses(redis, gap_limit_seconds=1)
        await pulses.flush("f1", {"n1": Heard(0.0)})
        server.kill()
        for call in (pulses.read(), pulses.flush("f1", {}), pulses.leave("f1"), pulses.read_usage(["w"])):
            with pytest.raises(TelemetryUnavailable):
                await call
        server.start()
        deadline = time.monotonic() + 10
        while True:
            try:
                await pulses.flush("f1", {"n1": Heard(0.0)})
            except TelemetryUnavailable:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            else:
                break
        assert set((await pulses.read()).pulses) == {"n1"}
        await redis.aclose()


async def test_a_redis_that_hangs_is_given_up_after_its_time_out() -> None:
    """A server that accepts and says nothing does not hold a pump for ever."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        redis = make_redis(Settings(redis_addr=f"127.0.0.1:{mute.getsockname()[1]}"))
        assert redis
        with pytest.raises(TelemetryUnavailable):
            async with asyncio.timeout(10):
                await Pulses(redis, gap_limit_seconds=1).read()
        await redis.aclose()


async def test_without_a_redis_by_configuration_every_call_says_so() -> None:
    """No REDIS_ADDR and a broker that is none: the error names the setting."""
    assert make_redis(Settings()) is None
    with pytest.raises(TelemetryUnavailable, match="REDIS_ADDR"):
        await Pulses(None, gap_limit_seconds=1).read()
