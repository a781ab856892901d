"""Pulses in etcd: ages without comparing clocks, pages, and what may be concluded from them (F71)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.convergence.liveness import silence_seconds, silent_nodes
from scheduler.domain.heard import HeardPage
from scheduler.domain.node import Node
from scheduler.domain.record import utc
from scheduler.store.cache import Change
from scheduler.store.keys import PULSES
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.pulses import PAGE_NODES, PulsePages, PulseWriter
from scheduler.store.store import Store
from scheduler.store.write import Versioned
from scheduler.telemetry.redis import TelemetryUnavailable
from scheduler.telemetry.spare_pulses import SparedPulses


def node(name: str) -> Node:
    """Return a node that has been Ready for long."""
    return Node(node_id=name, status="Ready", status_updated_at=utc(time.time() - 3600))


def ticking() -> Callable[[], float]:
    """Return a clock that goes on by two milliseconds with each look."""
    looks = itertools.count(1)
    return lambda: time.monotonic() + 0.002 * next(looks)


async def shown(pages: PulsePages, etcd: MemoryEtcd) -> None:
    """Wait until the reader has seen all."""
    await pages._cache.wait_revision(etcd.revision, 5)


async def test_what_fronts_write_is_read_with_its_age_and_goes_when_they_end() -> None:
    """Two fronts; the latest word counts; a stretch is known only after some pages; nothing is left at the end."""
    etcd = MemoryEtcd()
    pages = PulsePages(etcd)
    await pages.start()
    await pages._cache.ready(5)
    one, two = (PulseWriter(Store(etcd), name, lease_seconds=3, clock=ticking()) for name in ("f1", "f2"))
    for _ in range(3):
        await one.write({"a": 5.0, "b": 1.0}, listening_seconds=100.0)
        await two.write({"a": 2.0}, listening_seconds=None)
        await shown(pages, etcd)
    there, now = pages.read(), time.monotonic()
    assert {n: round(now - at) for n, at in there.nodes.items()} == {"a": 2, "b": 1}
    assert list(there.fronts) == ["f1"]
    assert round(there.fronts["f1"][1] - there.fronts["f1"][0]) == 100
    for writer in (one, two):
        await writer.end()
    await shown(pages, etcd)
    assert (pages.read().nodes, pages.read().fronts) == ({}, {})
    assert await etcd.scan("/pulses/") == ([], etcd.revision)
    await pages.close()


async def test_a_large_fleet_goes_into_pages_and_a_smaller_one_takes_pages_away() -> None:
    """No record comes near etcd's limit."""
    etcd = MemoryEtcd()
    writer = PulseWriter(Store(etcd), "f", lease_seconds=3, clock=ticking())
    await writer.write({f"n{i}": 1.0 for i in range(2 * PAGE_NODES + 1)}, listening_seconds=1)
    found, _ = await etcd.scan("/pulses/")
    assert len(found) == 3
    assert max(len(kv.value) for kv in found) < 200_000
    await writer.write({"n1": 1.0}, listening_seconds=1)
    assert len((await etcd.scan("/pulses/"))[0]) == 1
    await writer.end()


@given(
    delays=st.lists(st.floats(0, 30), min_size=3, max_size=12),
    skew=st.floats(-1e6, 1e6),
    age=st.floats(0, 60),
)
def test_F71_silence_is_never_taken_for_longer_than_it_was_whatever_the_delays(
    delays: list[float], skew: float, age: float
) -> None:
    """Pages of one front, each late by its own delay, its clock off by anything: within a front nothing is invented."""
    clock = [0.0]
    pages = PulsePages(MemoryEtcd(), clock=lambda: clock[0])
    records: dict[str, Versioned[HeardPage]] = {}
    pages._cache._records[PULSES] = records
    arrived = 0.0
    for number, delay in enumerate(delays):
        written = 10.0 * number
        arrived = max(arrived, written + delay)
        clock[0] = arrived
        page = HeardPage(
            run_id="r", clock_ms=round((written + skew) * 1000), listening_ms=3_600_000, nodes=("a",),
            ages_ms=(round(age * 1000),),
        )  # fmt: skip
        records["f/0"] = Versioned("f/0", page, number + 1)
        pages._take([Change(PULSES, "f/0", None, records["f/0"])])
    there = pages.read()
    end = there.fronts["f"][1]
    assert end - there.nodes["a"] == pytest.approx(age, abs=0.01)
    assert end <= arrived + 0.01


async def test_F71_without_redis_a_silent_node_is_found_and_no_other() -> None:
    """A view from etcd feeds the same decisions; before the clock of a front is set nobody is judged."""
    etcd = MemoryEtcd()
    pages = PulsePages(etcd)
    await pages.start()
    await pages._cache.ready(5)
    pulses = SparedPulses(None, pages, gap_limit_seconds=1, lease_seconds=3)
    writer = PulseWriter(Store(etcd), "f", lease_seconds=3, clock=ticking())
    await writer.write({"dead": 10.0, "alive": 0.5}, listening_seconds=60.0)
    await shown(pages, etcd)
    first = await pulses.read(["dead", "alive"])
    assert silent_nodes([node("dead"), node("alive")], first, lease_seconds=3) == {}
    for _ in range(2):
        await writer.write({"dead": 10.0, "alive": 0.5}, listening_seconds=60.0)
        await shown(pages, etcd)
    view = await pulses.read(["dead", "alive"])
    assert not view.from_redis
    assert silent_nodes([node("dead"), node("alive")], view, lease_seconds=3).keys() == {"dead"}
    assert silence_seconds(node("dead"), view, 0.75) == pytest.approx(10.0, abs=0.5)
    await writer.end()
    await shown(pages, etcd)
    assert silent_nodes([node("dead")], await pulses.read(["dead"]), lease_seconds=3) == {}
    await pages.close()


async def test_F71_with_neither_redis_nor_etcd_nobody_can_tell() -> None:
    """The read fails, so that nobody is judged."""
    etcd = MemoryEtcd()
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    pages = PulsePages(etcd)
    await pages.start()
    await asyncio.sleep(0)
    with pytest.raises(TelemetryUnavailable):
        await SparedPulses(None, pages, gap_limit_seconds=1, lease_seconds=3).read()
    await pages.close()
