"""In which mode a process is: whether it may write. Only connectivity, and whose etcd it is, decide.

An error of one key (a value that is too large, a transaction that etcd refuses) is an answer
like any other: it never changes the mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """What a process may do."""

    NORMAL = "normal"
    DEGRADED = "degraded"
    """etcd does not answer: reads come from the cache, writes are refused."""
    RECOVERY = "recovery"
    """etcd answers, but what it held is gone: writes are refused until it is restored or accepted."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a process knows of its etcd at one moment."""

    unanswered_seconds: float
    """How long ago etcd last answered anything."""
    answers: int
    """How many probes in a row were answered, up to the last one."""
    known_id: str = ""
    """The cluster that this process belongs to; blank: none that it has ever seen."""
    cluster_id: str | None = ""
    """What etcd said last: the cluster it holds, None for none; blank: it has not been asked."""
    restoring: str = ""
    """Why a restore that is under way is not complete; blank: there is none."""
    outdated: bool = False
    """The cache does not show the record of the cluster that etcd has: it may be of before a restore."""
    vanished: str = ""
    """What this process has seen and etcd, all at once, does not hold any more; blank: nothing."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A mode and why."""

    mode: Mode
    reason: str = ""


CALM_ANSWERS = 2
"""Probes in a row that etcd must answer before a process leaves the degraded mode."""


def next_mode(before: Mode, sight: Sight, *, patience_seconds: float) -> Standing:
    """Return the mode to be in.

    One slow answer is not an outage: etcd must have been silent for the patience. One answer is
    not its end either. Whose etcd it is counts as soon as it is known.
    """
    if sight.unanswered_seconds >= patience_seconds:
        return Standing(Mode.DEGRADED, "etcd does not answer; reads are from the cache, writes are refused")
    if before is Mode.DEGRADED and sight.answers < CALM_ANSWERS:
        return Standing(Mode.DEGRADED, "etcd has just begun to answer again; writes are still refused")
    if why := _not_ours(sight):
        return Standing(Mode.RECOVERY, why)
    if before is Mode.RECOVERY and sight.outdated:
        return Standing(Mode.RECOVERY, "what etcd holds now is still being read; writes are refused until then")
    return Standing(Mode.NORMAL)


def _not_ours(sight: Sight) -> str:
    remedy = "writes are refused until it is restored, or taken as it is with `fleetbeat cluster accept`"
    if sight.restoring:
        return sight.restoring
    if not sight.known_id or sight.cluster_id == "":
        return ""
    if sight.cluster_id is None:
        return f"etcd does not hold cluster {sight.known_id} any more; {remedy}"
    if sight.cluster_id != sight.known_id:
        return f"etcd holds cluster {sight.cluster_id}, not {sight.known_id}; writes are refused"
    if sight.vanished:
        return f"{sight.vanished}; {remedy}"
    return ""
