"""A breaker for one node: a dead agent costs one deadline, not one a workload."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_OPEN_SECONDS = 1.0
MAX_OPEN_SECONDS = 30.0
_MAX_DOUBLINGS = 10


class Breaker:
    """Opens when the agent does not answer; lets one call through now and then to find out whether it does again.

    It stays open 1 s, then 2, 4 … up to 30 s with each failed probe. Any answer, also a
    refusal, closes it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed."""
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._probing = False

    @property
    def open_seconds(self) -> float:
        """How long it stays open; 0 when it is closed or a probe is due."""
        return max(0.0, self._open_until - self._clock()) if self._failures else 0.0

    def admit(self) -> bool:
        """Say whether a call may go out now. One that was admitted must end in answered, failed or abandoned."""
        if not self._failures:
            return True
        if self._probing or self.open_seconds:
            return False
        self._probing = True
        return True

    def answered(self) -> None:
        """Take note that the agent answered."""
        self._failures = 0
        self._probing = False

    def failed(self) -> bool:
        """Take note that it did not; return whether that opened a breaker that was closed.

        Calls that were under way when it opened do not count again.
        """
        self._probing = False
        if self.open_seconds:
            return False
        self._failures += 1
        seconds = min(FIRST_OPEN_SECONDS * 2.0 ** min(self._failures - 1, _MAX_DOUBLINGS), MAX_OPEN_SECONDS)
        self._open_until = self._clock() + seconds
        return self._failures == 1

    def abandoned(self) -> None:
        """Take note that a call is over; if neither of the others came first, it says nothing about the agent."""
        self._probing = False
