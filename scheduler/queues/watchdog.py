"""Ends a worker that is alive but consumes nothing, so that its supervisor starts a fresh one.

Celery reconnects by itself in every failure we could provoke. This is for the ones we could
not: messages wait in this worker's queues, it has room to run them, and none arrives.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_CHECKS = 6
"""So many looks in a row must find it deaf. Counting looks, not seconds, forgives a worker that was paused itself."""

_log = logging.getLogger(__name__)


class Watchdog:
    """Compares what waits with what arrives, from a thread of its own: the main one may be the one that hangs."""

    def __init__(self, waiting: Callable[[], int], end: Callable[[], None], *, patience_seconds: float = 30.0) -> None:
        """Take what counts waiting messages (it may raise when the broker is away), and what ends the worker."""
        self._waiting = waiting
        self._end = end
        self._patience = patience_seconds
        self._heard = False
        self._strikes = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def received(self) -> None:
        """Note that a message arrived."""
        self._heard = True

    def start(self) -> None:
        """Begin to watch; only the first call counts."""
        if self._thread:
            return
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stopped.set()

    def check(self) -> bool:
        """Look once; return whether the worker is deaf: for many looks, something waited and nothing arrived."""
        heard, self._heard = self._heard, False
        self._strikes = 0 if heard or not self._something_waits() else self._strikes + 1
        return self._strikes >= _CHECKS

    def _something_waits(self) -> bool:
        try:
            return self._waiting() > 0
        except Exception as error:  # noqa: BLE001 - without a broker nobody can be deaf
            _log.debug("the watchdog cannot see the queues: %r", error)
            return False

    def _run(self) -> None:
        while not self._stopped.wait(self._patience / _CHECKS):
            if self.check():
                _log.critical(
                    "nothing arrived for %.0f s although messages wait: this worker ends, to be started anew",
                    self._patience,
                )
                self._end()
                return
