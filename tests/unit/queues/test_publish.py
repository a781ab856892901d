"""Publishing: all at once or not at all, quickly or not at all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest
from celery import Celery

from scheduler.domain.shard import ShardMap, shard_of
from scheduler.queues.app import make_app
from scheduler.queues.messages import CycleMessage, WorkloadMessage
from scheduler.queues.publish import Publisher, PublishRefused, WakeUps
from scheduler.settings import Settings
from tests.support.waiting import eventually

MAP = ShardMap(generation=4, count=3)


@pytest.fixture
def app() -> Celery:
    """An app with a broker in memory, which all apps of a process share, and empty queues."""
    made = make_app(Settings(broker_url="memory://", max_shards=4))
    with made.connection_for_write() as connection:
        for queue in made.amqp.queues.values():
            queue(connection.channel()).declare()
            queue(connection.channel()).purge()
    return made


def cycle(shard: int) -> CycleMessage:
    """A cycle that expires in a minute."""
    return CycleMessage(loop="reconcile", shard=shard, slot=5, term=9, generation=4, expires=time.time() + 60)


def test_a_message_lies_in_the_queue_of_its_shard_and_tells_flower_what_it_is(app: Celery) -> None:
    """Queue, task, expiry, words for people."""
    Publisher(app).send([cycle(2)])
    with app.connection_for_read() as connection:
        message = connection.SimpleQueue("shard-2").get(timeout=1)
    assert message.headers["task"] == "tasks.reconcile"
    assert message.headers["kwargsrepr"] == "shard=2 slot=5 term=9"
    assert message.headers["expires"]
    assert message.headers["ignore_result"] is True
    kwargs = message.payload[1]
    assert (kwargs["shard"], kwargs["slot"], kwargs["term"]) == (2, 5, 9)
    assert "nodes" not in kwargs


def test_who_is_not_entitled_sends_nothing_more(app: Celery) -> None:
    """The question is asked before each message."""
    answers = iter([True, True, False])
    publisher = Publisher(app)
    with pytest.raises(PublishRefused):
        publisher.send([cycle(0), cycle(1), cycle(2)], entitled=lambda: next(answers))
    assert publisher.backlog([2]) == [0]


def test_the_backlog_counts_each_queue(app: Celery) -> None:
    """One number a shard, in order."""
    publisher = Publisher(app)
    publisher.send([cycle(1), cycle(1), cycle(3)])
    assert publisher.backlog([0, 1, 2, 3]) == [0, 2, 0, 1]


class Sink:
    """Takes wake-ups; blocks or fails on request."""

    def __init__(self) -> None:
        """Take everything."""
        self.taken: list[WorkloadMessage] = []
        self.calls = 0
        self.open = threading.Event()
        self.open.set()
        self.fails = False

    def send(self, messages: Sequence[WorkloadMessage]) -> None:
        """Take a batch, as Publisher.send does."""
        self.calls += 1
        if not self.open.wait(10):
            raise TimeoutError
        if self.fails:
            raise ConnectionError("away")
        self.taken += messages


@pytest.fixture
def sink() -> Sink:
    """A broker that takes everything."""
    return Sink()


async def test_a_wake_up_goes_to_the_shard_of_the_node_or_of_the_workload(sink: Sink) -> None:
    """With the generation of the map that this was computed from."""
    wakes = WakeUps(sink.send, lambda: MAP)
    wakes.wake("web", "n-1")
    wakes.wake("db")
    wakes.start()
    await wakes.close()
    assert {(m.workload_id, m.shard, m.generation) for m in sink.taken} == {
        ("web", shard_of("n-1", MAP), 4),
        ("db", shard_of("db", MAP), 4),
    }


async def test_a_workload_waits_in_the_buffer_once(sink: Sink) -> None:
    """A thousand events of one workload are one message, and the last node counts."""
    wakes = WakeUps(sink.send, lambda: MAP)
    for i in range(1000):
        wakes.wake("web", f"n-{i}")
    wakes.start()
    await wakes.close()
    assert [m.shard for m in sink.taken] == [shard_of("n-999", MAP)]


async def test_wake_ups_are_sent_in_batches(sink: Sink) -> None:
    """What came in between is one call of the broker."""
    wakes = WakeUps(sink.send, lambda: MAP)
    for i in range(400):
        wakes.wake(f"w-{i}")
    wakes.start()
    await wakes.close()
    assert (len(sink.taken), sink.calls) == (400, 1)


async def test_B8_a_broker_that_hangs_blocks_nobody(sink: Sink) -> None:
    """The loop goes on; the buffer fills up to its bound and then drops, counted."""
    sink.open.clear()
    wakes = WakeUps(sink.send, lambda: MAP, capacity=100)
    wakes.start()
    wakes.wake("first")
    await eventually(lambda: sink.calls == 1)
    before = time.monotonic()
    for i in range(500):
        wakes.wake(f"w-{i}")
        await asyncio.sleep(0)
    assert time.monotonic() - before < 5
    assert wakes.counts["full"] == 400
    sink.open.set()
    await wakes.close()
    assert wakes.counts["sent"] == 101


async def test_B8_a_broker_that_is_away_costs_the_wake_ups_only(sink: Sink) -> None:
    """They are counted, nothing rises, and later ones arrive."""
    sink.fails = True
    wakes = WakeUps(sink.send, lambda: MAP)
    wakes.start()
    wakes.wake("web")
    await eventually(lambda: wakes.counts["failed"] == 1)
    sink.fails = False
    wakes.wake("db")
    await eventually(lambda: wakes.counts["sent"] == 1)
    await wakes.close()


async def test_without_a_shard_map_wake_ups_are_dropped(sink: Sink) -> None:
    """Nobody knows where they belong."""
    wakes = WakeUps(sink.send, lambda: None)
    wakes.start()
    wakes.wake("web")
    await eventually(lambda: wakes.counts["no_map"] == 1)
    await wakes.close()
    assert sink.calls == 0


async def test_close_does_not_wait_long_for_a_hanging_broker(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """A front must stop within its grace."""
    monkeypatch.setattr("scheduler.queues.publish._CLOSE_SECONDS", 0.1)
    sink.open.clear()
    wakes = WakeUps(sink.send, lambda: MAP)
    wakes.start()
    wakes.wake("web")
    await eventually(lambda: sink.calls == 1)
    async with asyncio.timeout(5):
        await wakes.close()
        await wakes.close()
    sink.open.set()
