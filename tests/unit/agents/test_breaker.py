"""The breaker of a node."""

from __future__ import annotations

from scheduler.agents.breaker import Breaker


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        """Start at zero."""
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_F75_a_dead_agent_is_left_alone_for_longer_and_longer() -> None:
    """One, two, four … seconds, thirty at most; one probe after each."""
    clock = Clock()
    breaker = Breaker(clock)
    waits = []
    for _ in range(8):
        assert breaker.admit()
        breaker.failed()
        assert not breaker.admit()
        waits.append(breaker.open_seconds)
        clock.now += breaker.open_seconds
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_F75_one_probe_goes_out_at_a_time() -> None:
    """While it is under way, others are turned away; its answer lets all through."""
    clock = Clock()
    breaker = Breaker(clock)
    breaker.admit()
    breaker.failed()
    clock.now = 1.0
    assert breaker.admit()
    assert not breaker.admit()
    breaker.answered()
    assert breaker.admit()
    assert breaker.admit()


def test_F75_calls_that_fail_together_count_once() -> None:
    """Four calls in flight to a node that dies do not open the breaker for eight seconds."""
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(4):
        assert breaker.admit()
    for _ in range(4):
        breaker.failed()
    assert breaker.open_seconds == 1.0


def test_F75_a_probe_that_was_given_up_makes_room_for_the_next() -> None:
    """A cancelled caller does not keep the breaker shut for ever."""
    clock = Clock()
    breaker = Breaker(clock)
    breaker.admit()
    breaker.failed()
    clock.now = 1.0
    assert breaker.admit()
    breaker.abandoned()
    assert breaker.admit()
