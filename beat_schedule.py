"""Which cycles are sent, how often, and for which shards. Data only; the elected beat reads it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Periodic(NamedTuple):
    """One loop of the control plane."""

    loop: str
    period: str
    """The setting that holds the period."""
    offset: float
    """When a slot begins, as a share of the period: loops with the same period do not all start at once."""
    shards: Literal["all"] = "all"


SCHEDULE = (
    Periodic("monitor_nodes", period="monitor_nodes_interval_seconds", offset=0.0),
    Periodic("reconcile", period="reconcile_interval_seconds", offset=0.25),
    Periodic("monitor_workloads", period="monitor_workloads_interval_seconds", offset=0.5),
    Periodic("detect_drift", period="drift_interval_seconds", offset=0.75),
)
