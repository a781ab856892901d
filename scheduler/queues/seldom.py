"""Logging of what may repeat many times a second while something is down."""

from __future__ import annotations

import logging
import time


class Seldom:
    """Writes at most one warning per interval, and says how many it kept to itself."""

    def __init__(self, log: logging.Logger, *, seconds: float = 30.0) -> None:
        """Take the logger and the interval."""
        self._log = log
        self._seconds = seconds
        self._next = 0.0
        self._kept = 0

    def warning(self, text: str, *args: object) -> None:
        """Log this, unless a warning of this kind was logged a moment ago."""
        now = time.monotonic()
        if now < self._next:
            self._kept += 1
            return
        more = f" ({self._kept} more like this in between)" if self._kept else ""
        self._next, self._kept = now + self._seconds, 0
        self._log.warning(text + more, *args)
