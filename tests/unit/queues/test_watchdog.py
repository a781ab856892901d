"""B7: a worker that is alive but consumes nothing ends; all others stay."""

from __future__ import annotations

import logging
import threading

import pytest

from scheduler.queues.seldom import Seldom
from scheduler.queues.watchdog import Watchdog


class Scene:
    """A queue and a worker's watchdog."""

    def __init__(self) -> None:
        """Start with an empty queue."""
        self.queued = 0
        self.broker_up = True
        self.dog = Watchdog(self.waiting, lambda: None, patience_seconds=30)

    def waiting(self) -> int:
        """Count the messages, when the broker is up."""
        if not self.broker_up:
            raise ConnectionError
        return self.queued

    def deaf_within(self, looks: int) -> bool:
        """Look so many times; tell whether the dog barked by then."""
        return any(self.dog.check() for _ in range(looks))


def test_B7_messages_wait_and_none_arrives() -> None:
    """The worker is deaf."""
    scene = Scene()
    scene.queued = 3
    assert not scene.deaf_within(5)
    assert scene.deaf_within(1)


def test_an_idle_worker_is_not_deaf() -> None:
    """Nothing waits, so nothing can arrive."""
    assert not Scene().deaf_within(1000)


def test_a_busy_worker_is_not_deaf() -> None:
    """Messages wait, but one arrives now and then."""
    scene = Scene()
    scene.queued = 1000
    for _ in range(20):
        assert not scene.deaf_within(5)
        scene.dog.received()


def test_an_outage_of_the_broker_is_not_the_workers_fault() -> None:
    """The patience starts anew when the broker is back."""
    scene = Scene()
    scene.queued = 3
    assert not scene.deaf_within(5)
    scene.broker_up = False
    assert not scene.deaf_within(100)
    scene.broker_up = True
    assert not scene.deaf_within(5)
    assert scene.deaf_within(1)


def test_a_worker_that_was_paused_itself_gets_its_chance() -> None:
    """After SIGSTOP or a sleep of the machine, one look is no proof, however long ago the last message was."""
    scene = Scene()
    scene.dog.received()
    scene.queued = 100
    assert not scene.deaf_within(2)
    scene.dog.received()
    assert not scene.deaf_within(5)


def test_B7_the_watch_ends_the_worker() -> None:
    """The thread does what check says."""
    ended = threading.Event()
    dog = Watchdog(lambda: 1, ended.set, patience_seconds=0.06)
    dog.start()
    dog.start()
    assert ended.wait(5)


def test_a_stopped_watch_ends_nothing() -> None:
    """A worker that shuts down in peace is left alone."""
    ended = threading.Event()
    dog = Watchdog(lambda: 1, ended.set, patience_seconds=0.3)
    dog.start()
    dog.stop()
    assert not ended.wait(0.5)


def test_what_repeats_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An outage does not fill the disk."""
    seldom = Seldom(logging.getLogger("test"), seconds=3600)
    for _ in range(1000):
        seldom.warning("down: %s", "x")
    assert [r.getMessage() for r in caplog.records] == ["down: x"]


def test_what_was_kept_back_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """The next line says how many there were."""
    seldom = Seldom(logging.getLogger("test"), seconds=3600)
    for _ in range(5):
        seldom.warning("down")
    seldom._next = 0.0
    seldom.warning("down")
    assert caplog.records[-1].getMessage() == "down (4 more like this in between)"
