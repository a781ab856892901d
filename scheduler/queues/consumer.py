"""The worker's consumer: reconnects within seconds, keeps no company with other workers, and never goes deaf.

The type stubs are those of celery 5.5, which is why some lines tell mypy to look away.
"""

from __future__ import annotations

import functools
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

from celery.concurrency.asynpool import AsynPool
from celery.exceptions import CPendingDeprecationWarning
from celery.worker import consumer, heartbeat, state
from celery.worker.consumer import heart
from kombu import Connection, Message
from vine import promise

from scheduler.queues.config import backlog
from scheduler.queues.watchdog import Watchdog

_log = logging.getLogger(__name__)
_DEAF_MARGIN_SECONDS = 10.0
_EXIT_CODE = 70  # EX_SOFTWARE


class _Heartbeat(heartbeat.Heart):
    def _send(self, event: str, retry: bool = False) -> Any:  # noqa: ARG002 - Celery's signature
        # What cannot be sent is kept by the dispatcher, and sent after the next connection.
        return super()._send(event, retry=False)  # type: ignore[misc]


class Heart(heart.Heart):
    """The step that sends heartbeats."""

    def start(self, c: Any) -> None:
        """Begin to send."""
        c.heart = _Heartbeat(c.timer, c.event_dispatcher, self.heartbeat_interval)  # type: ignore[attr-defined]
        c.heart.start()


class Consumer(consumer.Consumer):
    """Celery's consumer, changed in six things.

    * kombu's pauses between attempts to connect grow to 30 s: after an outage of 20 s a worker
      needed 17.6 s to come back. Capped at 2 s it needs 2.8 s.
    * At start, Celery asks all other workers which tasks were revoked, expired ones included,
      and listens to their events from then on (mingle, gossip): a second at each start, and
      traffic that grows with the square of the workers. Nothing here needs it.
    * When the connection breaks while an acknowledgement is on its way, the worker ends with an
      AttributeError: celery 5.7 closes the connection twice, or sends the acknowledgement
      through the closed one. Both are forgiven; Redis gives the message to somebody again.
    * Its heartbeats to Flower are tried again until they succeed, in the main thread: while the
      broker is away, the worker neither reconnects in its own way nor obeys SIGTERM.
    * A watchdog ends the worker when it consumes nothing although messages wait for it.
    * A worker that ends forgets the tasks whose beginning its processes have not confirmed yet,
      although they run them: it waits 30 s for a process that waits for it, and the finished task
      comes to another worker once more. Ours waits for all that its processes were given.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[misc, valid-type]
        """The steps of the consumer."""

        default_steps: ClassVar[list[str]] = [
            step.replace("celery.worker.consumer.heart:", f"{__name__}:")
            for step in consumer.Consumer.Blueprint.default_steps
        ]

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Take what Celery passes."""
        kwargs["worker_options"] = {**(worker_options or {}), "without_mingle": True, "without_gossip": True}
        super().__init__(*args, **kwargs)
        # Longer than any task, so that a worker whose processes are all busy is not taken for deaf.
        patience = self.app.conf.task_time_limit + _DEAF_MARGIN_SECONDS
        self._watchdog = Watchdog(self._waiting, _end, patience_seconds=patience)

    def ensure_connected(self, conn: Any) -> Connection:
        """Connect, however long it takes, with short pauses between the attempts."""
        conn.ensure_connection = functools.partial(
            conn.ensure_connection, interval_start=0.2, interval_step=0.4, interval_max=2.0
        )
        return super().ensure_connected(conn)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Get rid of a broken connection, whatever it says to that."""
        connection: Any = self.connection
        if connection:
            connection.close = functools.partial(_close_anyway, connection.close)
        with warnings.catch_warnings():
            # Celery explains at each loss that running tasks are not cancelled by default. They are not, on purpose.
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)

    def on_close(self) -> None:
        """Forget what came over this connection; when the worker ends, not what its processes have been given."""
        pool: Any = getattr(self.pool, "_pool", None)
        if state.should_stop is None or not isinstance(pool, AsynPool):
            super().on_close()
            return
        jobs = pool._cache  # noqa: SLF001 - there is no other way to them
        given = {number: job for number, job in jobs.items() if _is_given(pool, job)}
        super().on_close()
        jobs.update(given)

    def call_soon_ack(self, p: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        """Acknowledge or reject a message in the event loop, unless its connection is gone."""
        hub: Any = getattr(self, "hub", None)
        if not hub:
            return super().call_soon_ack(p, *args, **kwargs)  # type: ignore[misc]
        return hub.call_soon(promise(p, args, kwargs, on_error=_forgive_closed))

    def on_ready(self) -> None:
        """Start the watchdog once the worker consumes."""
        super().on_ready()
        self._watchdog.start()

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Message], Any]:
        """Tell the watchdog of each message, also of those that turn out to be expired."""
        handle = super().create_task_handler(*args, **kwargs)

        def on_message(message: Message) -> Any:
            self._watchdog.received()
            return handle(message)

        return on_message

    def _waiting(self) -> int:
        queues = list(self.app.amqp.queues.consume_from.values())
        if not queues or state.should_stop is not None or state.should_terminate is not None:
            return 0
        with self.app.connection_for_read() as connection:
            return sum(backlog(connection.channel(), queues))


def _is_given(pool: Any, job: Any) -> bool:
    # What could not be written to a process is put back to the buffer, and keeps the name of the process.
    return job._scheduled_for is not None and job not in pool.outbound_buffer  # noqa: SLF001


def _forgive_closed(*details: Any) -> None:
    error = details[-1]
    if not isinstance(error, AttributeError):
        raise error
    _log.info("a message was not acknowledged, its connection is gone: %r", error)


def _close_anyway(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:  # noqa: BLE001 - it is broken, and what is left of it goes with it
        _log.debug("a broken connection was not closed: %r", error)


def _end() -> None:
    # The main thread may hang for good, so nobody is asked. Redis gives unacknowledged messages to others.
    os._exit(_EXIT_CODE)
