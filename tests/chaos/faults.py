"""Random faults: kill -9 and SIGSTOP of agents, workers and fronts of an embedded cluster."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence

from tests.chaos.history import History
from tests.support.embedded import Embedded

MAX_PAUSE_SECONDS = 14.0
"""Longer than lease and grace of the embedded cluster together, so that some pauses make nodes lost."""
MAX_CALM_SECONDS = 3.0
_VICTIMS = ("agent-1", "agent-2", "agent-3", "shard-0-a", "shard-1-a", "front-1", "front-2")


class Faults:
    """Does one thing after the other; several may hold at once."""

    def __init__(self, cluster: Embedded, history: History, seed: int, victims: Sequence[str] = _VICTIMS) -> None:
        """Take the cluster and what the dice begin with."""
        self._cluster = cluster
        self._history = history
        self._dice = random.Random(seed)  # noqa: S311 - a run must be repeatable
        self._victims = victims
        self._paused: dict[str, tuple[int, float]] = {}
        self.counts = dict.fromkeys(("kill", "stop"), 0)

    def run(self, seconds: float) -> None:
        """Go on for so long, then let everything go on that was stopped."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                self._wake(time.monotonic())
                self._strike(self._dice.choice(self._victims))
                time.sleep(self._dice.uniform(0.2, MAX_CALM_SECONDS))
        finally:
            self._wake(float("inf"))

    def _strike(self, name: str) -> None:
        if name in self._paused:
            return
        child = self._cluster.data.read_children().get(name)
        if child is None:
            return
        if self._dice.random() < 0.5:
            self._signal(name, child.pid, signal.SIGKILL, "kill")
        elif self._signal(name, child.pid, signal.SIGSTOP, "stop"):
            self._paused[name] = (child.pid, time.monotonic() + self._dice.uniform(0.5, MAX_PAUSE_SECONDS))

    def _wake(self, now: float) -> None:
        for name, (pid, until) in list(self._paused.items()):
            if until <= now:
                del self._paused[name]
                self._signal(name, pid, signal.SIGCONT, "continue")

    def _signal(self, name: str, pid: int, number: signal.Signals, what: str) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            self._history.add("fault", what=f"{what} {name}")
            self.counts[what] = self.counts.get(what, 0) + 1
            return True
        return False
