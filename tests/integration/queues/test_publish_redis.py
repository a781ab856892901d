"""Publishing through a real Redis: whole batches or nothing, and never a hang."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest
import redis

from scheduler.queues.app import make_app
from scheduler.queues.publish import Publisher, PublishRefused
from scheduler.settings import Settings
from tests.support import servers
from tests.support.celery_processes import a_cycle

PATIENCE_SECONDS = 15.0


@pytest.fixture
def broker(tmp_path: pathlib.Path) -> Iterator[servers.Server]:
    """A Redis that the test may kill."""
    with servers.running(servers.redis(tmp_path / "redis")) as server:
        yield server


@pytest.fixture
def publisher(broker: servers.Server) -> Publisher:
    """What is tested."""
    return Publisher(make_app(Settings(redis_addr=broker.address)))


def test_a_batch_reaches_every_shard(publisher: Publisher, broker: servers.Server) -> None:
    """Also shards that nobody has declared; each message once, in one list a shard."""
    publisher.send([a_cycle(7, shard=shard) for shard in range(100)])
    assert publisher.backlog(range(101)) == [1] * 100 + [0]
    keys = redis.Redis.from_url(f"redis://{broker.address}/1").keys("shard-*")
    assert sorted(keys) == sorted(f"shard-{k}".encode() for k in range(100))  # type: ignore[arg-type]


def test_B4_a_batch_whose_sender_is_no_longer_entitled_leaves_nothing_behind(publisher: Publisher) -> None:
    """The answer changes in the last moment: all of the batch is thrown away, not its second half."""
    answers = iter([True] * 64 + [False])
    with pytest.raises(PublishRefused):
        publisher.send([a_cycle(7, shard=shard) for shard in range(64)], entitled=lambda: next(answers))
    assert sum(publisher.backlog(range(64))) == 0


def test_B8_a_broker_that_is_down_fails_fast_and_is_used_again(publisher: Publisher, broker: servers.Server) -> None:
    """With and without a connection from before."""
    publisher.send([a_cycle(1)])
    broker.kill()
    for _ in range(3):
        fails_within_patience(publisher)
    broker.start()
    works_again(publisher)


def test_B8_a_broker_that_hangs_fails_fast_and_is_used_again(publisher: Publisher, broker: servers.Server) -> None:
    """A frozen Redis accepts connections and says nothing."""
    publisher.send([a_cycle(1)])
    broker.pause()
    fails_within_patience(publisher)
    broker.resume()
    works_again(publisher)


def fails_within_patience(publisher: Publisher) -> None:
    """Send, and see it fail before long."""
    before = time.monotonic()
    with pytest.raises(Exception, match=r".*"):
        publisher.send([a_cycle(2)])
    assert time.monotonic() - before < PATIENCE_SECONDS


def works_again(publisher: Publisher) -> None:
    """Send until it works, before long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return publisher.send([a_cycle(3)])
        except Exception:  # noqa: BLE001 - a connection from before
            assert time.monotonic() < deadline
