"""The worker's consumer: reconnects within seconds, keeps no company with other workers, and never goes deaf."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from celery.worker import consumer, state
from kombu import Connection, Message

from scheduler.queues.config import backlog
from scheduler.queues.watchdog import Watchdog

_log = logging.getLogger(__name__)
_DEAF_MARGIN_SECONDS = 10.0
_EXIT_CODE = 70  # EX_SOFTWARE


class Consumer(consumer.Consumer):
    """Celery's consumer, changed in four things.

    * kombu's pauses between attempts to connect grow to 30 s: after an outage of 20 s a worker
      needed 17.6 s to come back. Capped at 2 s it needs 2.8 s.
    * At start, Celery asks all other workers which tasks were revoked, expired ones included,
      and listens to their events from then on (mingle, gossip): a second at each start, and
      traffic that grows with the square of the workers. Nothing here needs it.
    * When the connection breaks while an acknowledgement is on its way, celery 5.7 closes the
      connection twice, and the second time kombu's AttributeError ends the worker.
    * A watchdog ends the worker when it consumes nothing although messages wait for it.
    """

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
        super().on_connection_error_after_connected(exc)

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


def _close_anyway(close: Callable[[], None]) -> None:
    try:
        close()
    except Exception as error:  # noqa: BLE001 - it is broken, and what is left of it goes with it
        _log.debug("a broken connection was not closed: %r", error)


def _end() -> None:
    # The main thread may hang for good, so nobody is asked. Redis gives unacknowledged messages to others.
    os._exit(_EXIT_CODE)
