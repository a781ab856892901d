"""Which statuses a heartbeat carries: those that changed since the control plane last acknowledged them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.workload import Workload

FULL_EVERY = 30
"""Beats between two reports of everything, which heal what a front lost."""


@dataclass(frozen=True)
class Report:
    """What one heartbeat says about workloads."""

    workloads: list[Workload]
    full: bool
    versions: dict[str, int]
    """What was looked at, for the acknowledgement."""


class Reports:
    """What the control plane has acknowledged."""

    def __init__(self) -> None:
        """Begin with a full report due."""
        self._acknowledged: dict[str, int] = {}
        self._until_full = 0

    def next(self, workloads: Iterable[Workload]) -> Report:
        """Return what the next heartbeat is to carry."""
        everything = list(workloads)
        full = self._until_full <= 0
        chosen = [w for w in everything if full or self._acknowledged.get(w.record.order.id) != w.version]
        return Report(chosen, full, {w.record.order.id: w.version for w in everything})

    def acknowledge(self, report: Report, *, send_full: bool) -> None:
        """Note that a report arrived; `send_full`: the next one is to be full."""
        self._acknowledged = report.versions
        self._until_full = FULL_EVERY - 1 if report.full else self._until_full - 1
        if send_full:
            self._until_full = 0

    def want_full(self) -> None:
        """Have the next report be full: another front may not know what the one before was told."""
        self._until_full = 0
