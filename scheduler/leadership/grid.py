"""Slots lie on a grid of wall-clock time, so that any beat knows which one it is without asking another."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """The slots of one loop: slot n begins at n times the period, plus the offset."""

    period_seconds: float
    offset_seconds: float = 0.0

    def slot(self, now: float) -> int:
        """Return the slot that this moment (Unix seconds) lies in."""
        return math.floor((now - self.offset_seconds) / self.period_seconds)

    def begin(self, slot: int) -> float:
        """Return when a slot begins, in Unix seconds."""
        return slot * self.period_seconds + self.offset_seconds
