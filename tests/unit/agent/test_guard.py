"""When an agent may start exclusive work, by what it has heard."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from agent import guard as module
from agent.guard import Guard
from agent.guardian import Guarded, Stopped, grace_of, over_at
from agent.records import ContainerSpec, Desired, Order
from agent.shelf import Shelf


class Clock:
    """Seconds since boot, set by hand."""

    def __init__(self) -> None:
        """Start some time after boot."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The guard's clock."""
    clock = Clock()
    monkeypatch.setattr(module, "boot_seconds", clock)
    return clock


def order(stop_after_ms: int = 20_000) -> Order:
    """Return an order; not exclusive without a stop_after."""
    spec = ContainerSpec(image="host", command=("run",))
    return Order(
        "w", "container", "r1", 1, Desired.RUNNING, spec, exclusive=stop_after_ms > 0, stop_after_ms=stop_after_ms
    )


async def opened(folder: pathlib.Path) -> Guard:
    """Return a guard that is needed by nothing yet."""
    shelf = Shelf(folder)
    shelf.open("n-1")
    shelf.close()
    guard = Guard(shelf, grace_seconds=10, default_stop_after_seconds=60)
    await guard.open(needed=False)
    return guard


async def test_scenario_L15_exclusive_work_starts_only_while_it_need_not_end_at_once(
    tmp_path: pathlib.Path, clock: Clock
) -> None:
    """From a heartbeat that was heard until the grace before its stop_after; other work always."""
    guard = await opened(tmp_path)
    assert not guard.may_run(order())
    assert guard.may_run(order(0))
    guard.heard(clock.now)
    assert guard.may_run(order())
    assert guard.not_after(order()) == 1000 + 20 - 5
    clock.now = 1014.9
    assert guard.may_run(order())
    clock.now = 1015.0
    assert not guard.may_run(order())
    assert guard.may_run(order(60_000))


async def test_scenario_L15_a_new_agent_does_not_forget_when_the_old_one_was_heard(
    tmp_path: pathlib.Path, clock: Clock
) -> None:
    """The time comes from the file; an older heartbeat never puts it back."""
    guard = await opened(tmp_path)
    guard.heard(clock.now)
    guard.heard(clock.now - 5)
    again = await opened(tmp_path)
    assert again.not_after(order()) == guard.not_after(order()) == 1015
    contact = Guarded(tmp_path).contact()
    assert contact
    assert contact.heard_at == 1000


async def test_scenario_L15_after_a_gap_no_order_of_before_is_taken(tmp_path: pathlib.Path, clock: Clock) -> None:
    """For a lease after the node is heard again."""
    guard = await opened(tmp_path)
    guard.lease_seconds = 3
    for _ in range(3):
        guard.heard(clock.now)
        assert guard.is_settled()
        clock.now += 1
    clock.now += 5
    guard.heard(clock.now)
    assert not guard.is_settled()
    clock.now += 2.9
    guard.heard(clock.now)
    assert not guard.is_settled()
    clock.now += 0.1
    assert guard.is_settled()


async def test_marks_of_ended_workloads_stay_until_they_are_ordered_anew(tmp_path: pathlib.Path) -> None:
    """Written by the guardian, forgotten by the agent."""
    guard, files = await opened(tmp_path), Guarded(tmp_path)
    files.mark("w", Stopped(3, done=False))
    assert guard.stopped("w") == Stopped(3, done=False)
    assert files.unfinished() == ["w"]
    files.mark("w", Stopped(3, done=True))
    assert not files.unfinished()
    guard.forget("w")
    assert guard.stopped("w") is None


@pytest.mark.parametrize(("stop_after", "grace", "expected"), [(60, 10, 10), (20, 10, 5), (2, 10, 0.5), (60, 0, 0)])
def test_a_copy_is_asked_to_end_before_its_time_is_over(stop_after: float, grace: float, expected: float) -> None:
    """The agent's grace, but at most a quarter of stop_after."""
    assert grace_of(stop_after, grace) == expected


def test_who_was_never_heard_is_over_at_once() -> None:
    """Since this boot."""
    assert over_at(None, 60) == 0
    assert over_at(100, 60) == 160
