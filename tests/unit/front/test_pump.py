"""The pump: newest value wins, one writer a key, bounded, and nothing lost while etcd is away."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import structlog

from scheduler.domain.errors import Conflict, Refused, StoreUnavailable
from scheduler.front import pump as module
from scheduler.front.pump import Key, Pump


class Sink:
    """A writer that the test opens and closes."""

    def __init__(self) -> None:
        """Start open."""
        self.written: list[tuple[str, int]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.errors: list[Exception] = []
        self.results: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.most_at_once = 0

    async def write(self, key: Key, value: int) -> None:
        """Take a value."""
        name = key[1]
        self.busy[name] += 1
        assert self.busy[name] == 1, "two writers of one key"
        self.most_at_once = max(self.most_at_once, self.busy.total())
        try:
            await self.open.wait()
            await asyncio.sleep(0)
            if self.errors:
                raise self.errors.pop(0)
            self.written.append((name, value))
        finally:
            self.busy[name] -= 1

    def pump(self, in_flight: int = 4, capacity: int = 100) -> Pump[int]:
        """Return a pump into here."""

        def count(result: str) -> None:
            self.results[result] += 1

        return Pump(self.write, in_flight=in_flight, capacity=capacity, on_result=count)


async def drained(pump: Pump[int]) -> None:
    """Wait until everything is written."""
    async with asyncio.timeout(5):
        while len(pump):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.001)


async def test_every_key_is_written_even_by_a_single_writer() -> None:
    """Also values that come at the moment when the writer is about to go home."""
    sink = Sink()
    pump = sink.pump(in_flight=1)
    for number in range(50):
        assert pump.offer(("n", f"w{number}"), number)
        await asyncio.sleep(0)
    await drained(pump)
    assert sorted(value for _, value in sink.written) == list(range(50))
    assert sink.results == {"written": 50}


async def test_a_value_that_is_overtaken_while_it_waits_is_never_written() -> None:
    """The one being written is followed by the newest, not by those between."""
    sink = Sink()
    pump = sink.pump()
    sink.open.clear()
    pump.offer(("n", "w"), 1)
    await asyncio.sleep(0)
    for value in (2, 3, 4):
        pump.offer(("n", "w"), value)
    assert len(pump) == 1
    assert ("n", "w") in pump
    sink.open.set()
    await drained(pump)
    assert sink.written == [("w", 1), ("w", 4)]
    assert ("n", "w") not in pump


async def test_so_many_keys_at_a_time_and_no_more() -> None:
    """The bound on writers holds."""
    sink = Sink()
    pump = sink.pump(in_flight=3)
    for number in range(20):
        pump.offer(("n", f"w{number}"), number)
    await drained(pump)
    assert sink.most_at_once == 3


async def test_beyond_its_capacity_values_are_dropped_and_counted() -> None:
    """But a newer value of a key that waits always finds its place."""
    sink = Sink()
    pump = sink.pump(in_flight=1, capacity=2)
    sink.open.clear()
    pump.offer(("n", "a"), 1)
    await asyncio.sleep(0)
    assert pump.offer(("n", "b"), 1)
    assert pump.offer(("n", "c"), 1)
    assert not pump.offer(("n", "d"), 1)
    assert pump.offer(("n", "b"), 2)
    sink.open.set()
    await drained(pump)
    assert sink.written == [("a", 1), ("b", 2), ("c", 1)]
    assert sink.results["dropped"] == 1


async def test_what_fails_because_etcd_is_away_or_somebody_else_writes_is_tried_again() -> None:
    """And when something newer has come meanwhile, that is what is written."""
    sink = Sink()
    sink.errors = [StoreUnavailable(), Conflict()]
    pump = sink.pump()
    pump.offer(("n", "w"), 1)
    await drained(pump)
    assert sink.written == [("w", 1)]
    assert sink.results == {"retried": 2, "written": 1}
    sink.errors = [StoreUnavailable()]
    sink.open.clear()
    pump.offer(("n", "w"), 2)
    await asyncio.sleep(0)
    pump.offer(("n", "w"), 3)
    sink.open.set()
    await drained(pump)
    assert sink.written == [("w", 1), ("w", 3)]


async def test_one_bad_value_does_not_stop_the_others() -> None:
    """Refused: logged and dropped. A defect: logged with its traceback and dropped."""
    sink = Sink()
    sink.errors = [Refused("no"), ZeroDivisionError("oh")]
    pump = sink.pump(in_flight=1)
    with structlog.testing.capture_logs() as logs:
        for number in range(3):
            pump.offer(("n", f"w{number}"), number)
        await drained(pump)
    assert sink.written == [("w2", 2)]
    assert sink.results == {"failed": 2, "written": 1}
    assert [log["log_level"] for log in logs] == ["warning", "error"]


async def test_closing_writes_what_it_can_and_says_what_is_left() -> None:
    """Within the time given; afterwards no task is left."""
    sink = Sink()
    pump = sink.pump()
    pump.offer(("n", "a"), 1)
    assert await pump.close(1.0) == 0
    sink.open.clear()
    pump.offer(("n", "b"), 1)
    pump.offer(("n", "c"), 1)
    assert await pump.close(0.01) == 2
    assert sink.written == [("a", 1)]
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
