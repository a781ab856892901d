"""What the agent has done lately, for ListActions: a bounded ring."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from dataclasses import dataclass, field

MAX_ACTIONS = 1000
"""Enough to see what happened; the control plane keeps the history."""


@dataclass
class Action:
    """One order being carried out."""

    workload_id: str
    kind: str
    """apply, delete or restart."""
    task_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str = "pending"
    """pending, running, completed, failed or superseded."""
    error: str = ""
    created_at: int = field(default_factory=lambda: int(time.time()))
    started_at: int = 0
    ended_at: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def start(self) -> None:
        """Note that work on it has begun."""
        if self.status == "pending":
            self.status, self.started_at = "running", int(time.time())

    def end(self, status: str, error: str = "") -> None:
        """Note how it ended; the first end counts."""
        if self.done.is_set():
            return
        self.status, self.error, self.ended_at = status, error, int(time.time())
        self.done.set()


class Actions:
    """The latest actions, oldest first."""

    def __init__(self) -> None:
        """Begin with none."""
        self._ring: deque[Action] = deque(maxlen=MAX_ACTIONS)

    def add(self, workload_id: str, kind: str) -> Action:
        """Record a new action."""
        action = Action(workload_id, kind)
        self._ring.append(action)
        return action

    def list(self, workload_id: str, kind: str, status: str, limit: int, *, newest_first: bool) -> list[Action]:
        """Return the actions that match what is not blank; a limit of 0 means all."""
        found = [
            a
            for a in self._ring
            if workload_id in ("", a.workload_id) and kind in ("", a.kind) and status in ("", a.status)
        ]
        if newest_first:
            found.reverse()
        return found[:limit] if limit else found
