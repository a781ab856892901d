"""The worker's consumer: what ended workers, and no longer does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous.semaphore import DummyLock

from scheduler.queues.app import make_app
from scheduler.queues.consumer import Consumer
from scheduler.settings import Settings


class Hub:
    """Runs at once what shall run soon."""

    timer = SimpleNamespace(_queue=[])

    def call_soon(self, callback: Callable[[], Any]) -> Any:
        """Call it."""
        return callback()


def made(**attributes: Any) -> Consumer:
    """A consumer that never connects."""
    consumer = Consumer.__new__(Consumer)
    consumer.app = make_app(Settings(broker_url="memory://"))
    consumer.qos_global = False
    consumer.pool = SimpleNamespace(num_processes=2)
    consumer.prefetch_multiplier = 1
    for name, value in attributes.items():
        setattr(consumer, name, value)
    return consumer


class Broken:
    """A connection that fails however it is closed, as kombu's does after `collect`."""

    closed = 0

    def collect(self, socket_timeout: float) -> None:
        """Fail."""
        raise OSError(socket_timeout)

    def close(self) -> None:
        """Fail with what is not a connection error."""
        self.closed += 1
        raise AttributeError("'NoneType' object has no attribute 'hostname'")


def test_B7_a_broken_connection_is_got_rid_of_whatever_it_says() -> None:
    """Else the error ends the worker."""
    connection = Broken()
    consumer = made(connection=connection)
    consumer.on_connection_error_after_connected(ConnectionError("lost"))
    assert connection.closed == 1
    assert consumer.connection is None


def test_B7_an_acknowledgement_through_a_closed_connection_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Else the error ends the worker; the message comes back by itself."""
    caplog.set_level(logging.INFO)

    def ack(_logger: logging.Logger, _errors: tuple[type[Exception], ...]) -> None:
        raise AttributeError("'NoneType' object has no attribute 'hostname'")

    made(hub=Hub()).call_soon_ack(ack, logging.getLogger(), (OSError,))
    assert "not acknowledged" in caplog.text


def test_other_errors_of_acknowledging_are_not_forgiven() -> None:
    """A broken pipe makes Celery reconnect, and must reach it."""

    def ack() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        made(hub=Hub()).call_soon_ack(ack)


def test_an_acknowledgement_goes_through() -> None:
    """With its arguments, with an event loop and without."""
    seen: list[object] = []
    made(hub=Hub()).call_soon_ack(lambda *a: seen.append(a), 1, 2)
    made(hub=None).call_soon_ack(lambda *a: seen.append(a), 3)
    assert seen == [(1, 2), (3,)]


def test_pauses_between_attempts_to_connect_are_capped() -> None:
    """Kombu's own grow to 30 s."""
    asked: dict[str, float] = {}

    class Connection:
        """Notes how it is asked."""

        def ensure_connection(self, *_args: Any, **options: Any) -> Connection:
            """Note it."""
            asked.update({k: v for k, v in options.items() if k.startswith("interval")})
            return self

    made().ensure_connected(Connection())
    assert asked["interval_max"] <= 2
    assert asked["interval_start"] < 1


def test_the_watchdog_counts_what_waits_in_the_consumed_queues() -> None:
    """Nothing while the worker stops, or serves no queue."""
    consumer = made(_mutex=DummyLock())
    assert consumer._waiting() == 0
    consumer.app.amqp.queues.select(["shard-0"])
    consumer.app.send_task("tasks.chunk", kwargs={"shard": 0})
    assert consumer._waiting() == 1
    with consumer.app.connection_for_write() as connection:
        consumer.app.amqp.queues["shard-0"](connection.channel()).purge()
