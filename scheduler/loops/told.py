"""Which mends of drift were told of: one that comes back in every cycle is told of once."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta

MAX_REMEMBERED = 4096
"""Findings; of those that recur longest ago it is told again."""


class Told:
    """Remembers findings for as long as they recur. Of one worker: another tells of what it mends itself."""

    def __init__(self, window_seconds: float) -> None:
        """Take how long a finding may stay away and still be the same."""
        self._window = timedelta(seconds=window_seconds)
        self._at: OrderedDict[tuple[str, ...], datetime] = OrderedDict()

    def is_news(self, key: tuple[str, ...], now: datetime) -> bool:
        """Note that a finding was there, and tell whether it was not before."""
        before = self._at.get(key)
        self._at[key] = now
        self._at.move_to_end(key)
        if len(self._at) > MAX_REMEMBERED:
            self._at.popitem(last=False)
        return before is None or now - before > self._window
