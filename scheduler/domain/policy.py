"""Policies of a workload: what its metadata says about how it is to be treated.

They travel in `spec.metadata`, so that every gateway and command line can set them. The front
checks them when they are set; what is read here may be older than the checks, so each reader
takes whatever is stored, falls back to the default, and never raises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum

from scheduler.domain.workload import WorkloadSpec, WorkloadStatus

EXCLUSIVE_KEY = "fleetbeat.exclusive"
STOP_AFTER_KEY = "fleetbeat.stop_after"
LOST_AFTER_KEY = "fleetbeat.lost_after"
REPLACE_KEY = "fleetbeat.replace"
REPLACE_DELAY_KEY = "fleetbeat.replace_delay"
ON_RETURN_KEY = "fleetbeat.on_return"
REPLICAS_KEY = "fleetbeat.replicas"
ANTI_AFFINITY_KEY = "fleetbeat.anti_affinity"
MAX_UNAVAILABLE_KEY = "fleetbeat.max_unavailable"
PERSISTENCE_KEY = "persys.scheduling.persistence_class"
ALLOW_MOVE_KEYS = ("persys.scheduling.allow_move", "allow_move")
SHARED_KEY = "persys.storage.shared"
LOCAL_KEY = "persys.storage.local"
PINNED_REASON_KEY = "persys.scheduling.pinned_reason"
"""In the metadata of a status: why the workload stays on a node that is lost."""

MAX_REPLICAS = 1000
DEFAULT_MAX_UNAVAILABLE = 0.25
"""Of the copies of a workload, rounded up: so many may be down while they get a new version."""
MAX_DURATION_SECONDS = 365 * 86_400.0
LEAST_STOP_AFTER_SECONDS = 1.0
READ_WRITE_ONCE = "ReadWriteOnce"

_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no"})
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)?")
_LONGEST_DURATION = 32
_WHOLE = 100
"""Percent."""
_HOST_WORDS = ("host_path", "bind_mount")
_MACHINES = frozenset({"vm", "microvm", "micro-vm", "firecracker"})


class Persistence(StrEnum):
    """Where the state of a workload is."""

    EPHEMERAL = "ephemeral"
    """Nowhere: any node will do."""
    NODE_LOCAL = "node-local"
    """On its node: elsewhere it would start empty."""
    SHARED_STORAGE = "shared-storage"
    """On storage that other nodes reach as well."""


class OnReturn(StrEnum):
    """Which copy survives when a lost node comes back and the replacement has started."""

    KEEP_REPLACEMENT = "keep_replacement"
    KEEP_ORIGINAL = "keep_original"
    BEST_SCORE = "best_score"
    LONGEST_RUNNING = "longest_running"


def parse_truth(text: str) -> bool | None:
    """Read true, 1, yes or false, 0, no in any case; None for anything else."""
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def parse_duration(text: str) -> float | None:
    """Read "90s", "5m", "1h30m", "250ms", "2d" or plain seconds; None for anything else or more than a year."""
    word = text.strip().lower()
    if not word or len(word) > _LONGEST_DURATION:
        return None
    at, seconds = 0, 0.0
    while at < len(word):
        part = _DURATION.match(word, at)
        if part is None or (part[2] is None and part.end() - at != len(word)):
            return None
        seconds += float(part[1]) * _UNITS[part[2] or ""]
        at = part.end()
    return seconds if math.isfinite(seconds) and seconds <= MAX_DURATION_SECONDS else None


def parse_replicas(text: str) -> int | None:
    """Read a count of 1 to 1000; None for anything else."""
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(MAX_REPLICAS))):
        return None
    return int(word) if 1 <= int(word) <= MAX_REPLICAS else None


def parse_max_unavailable(text: str, replicas: int) -> int | None:
    """Read a count of 1 to 1000, or "1%" to "100%" of the copies, rounded up; None for anything else."""
    word = text.strip()
    if not word.endswith("%"):
        return parse_replicas(word)
    percent = parse_replicas(word.removesuffix("%"))
    return math.ceil(replicas * percent / _WHOLE) if percent is not None and percent <= _WHOLE else None


def max_unavailable(spec: WorkloadSpec) -> int:
    """Return how many copies of a workload may be down while they get a new version; at least 1."""
    said = parse_max_unavailable(_text(spec.metadata, MAX_UNAVAILABLE_KEY), spec.replicas)
    return math.ceil(spec.replicas * DEFAULT_MAX_UNAVAILABLE) if said is None else said


def is_exclusive(spec: WorkloadSpec) -> bool:
    """Whether two copies must never run at once; by default so for machines and for whoever writes a volume alone."""
    said = _truth(spec.metadata, EXCLUSIVE_KEY)
    if said is not None:
        return said
    return is_machine(spec) or any(volume.access_mode == READ_WRITE_ONCE for volume in spec.managed_volumes)


def is_machine(spec: WorkloadSpec) -> bool:
    """Whether it is a virtual machine of any kind."""
    return spec.type in _MACHINES


def stop_after_seconds(spec: WorkloadSpec, default: float, least: float = LEAST_STOP_AFTER_SECONDS) -> float:
    """Return after how long without word from the control plane a node has stopped its exclusive copy.

    least: the node lease; with less, one late heartbeat would end the copy.
    """
    said = _duration(spec.metadata, STOP_AFTER_KEY)
    return max(default if said is None else said, least)


def told_stop_after_ms(spec: WorkloadSpec, default: float, least: float) -> int:
    """Return the stop_after that goes with an order to a node; 0: the workload is not exclusive."""
    return round(stop_after_seconds(spec, default, least) * 1000) if is_exclusive(spec) else 0


def longest_stop_after_ms(spec: WorkloadSpec, status: WorkloadStatus) -> int:
    """Return the longest stop_after that the copy may act on, but for the default; 0: it may have none."""
    told, past = status.told_stop_after_ms, spec.past_stop_after_ms
    is_confirmed = told is not None and status.observed_generation >= spec.generation
    if not is_exclusive(spec) or told == 0 or (past == 0 and not is_confirmed):
        return 0
    said = round((_duration(spec.metadata, STOP_AFTER_KEY) or LEAST_STOP_AFTER_SECONDS) * 1000)
    return max(said, told or 0, past or 0)


def remembering(old: WorkloadSpec, new: WorkloadSpec) -> WorkloadSpec:
    """Return the new spec with what nodes may still act on that were told the old one's terms."""
    terms = is_exclusive(old), _text(old.metadata, STOP_AFTER_KEY)
    if terms == (is_exclusive(new), _text(new.metadata, STOP_AFTER_KEY)):
        return new.replace(past_stop_after_ms=old.past_stop_after_ms)
    if not is_exclusive(old) or old.past_stop_after_ms == 0:
        return new.replace(past_stop_after_ms=0)
    said = round((_duration(old.metadata, STOP_AFTER_KEY) or LEAST_STOP_AFTER_SECONDS) * 1000)
    return new.replace(past_stop_after_ms=max(old.past_stop_after_ms or 0, said))


def lost_after_seconds(spec: WorkloadSpec) -> float | None:
    """Return after how long on a lost node a workload that is not to be replaced counts as lost; None: never."""
    return _duration(spec.metadata, LOST_AFTER_KEY)


def may_replace(spec: WorkloadSpec) -> bool:
    """Whether a copy on a lost node is to be replaced by one elsewhere."""
    return _truth(spec.metadata, REPLACE_KEY) is not False


def replace_delay_seconds(spec: WorkloadSpec) -> float:
    """Return how long beyond the grace a replacement waits."""
    return _duration(spec.metadata, REPLACE_DELAY_KEY) or 0.0


def on_return(spec: WorkloadSpec) -> OnReturn:
    """Return which copy survives when the node of an older one comes back."""
    said = _text(spec.metadata, ON_RETURN_KEY).lower()
    return OnReturn(said) if said in set(OnReturn) else OnReturn.KEEP_REPLACEMENT


def persistence_of(spec: WorkloadSpec) -> Persistence:
    """Say where the workload's state is: what its metadata says, else what it mounts.

    The reference system's table, with one addition: real bind mounts and managed volumes count.
    """
    said = _text(spec.metadata, PERSISTENCE_KEY).lower()
    if said in set(Persistence):
        return Persistence(said)
    shared = _truth(spec.metadata, SHARED_KEY) is True
    if is_machine(spec):
        return Persistence.SHARED_STORAGE if shared else Persistence.NODE_LOCAL
    if _truth(spec.metadata, LOCAL_KEY) is True:
        return Persistence.NODE_LOCAL
    if shared:
        return Persistence.SHARED_STORAGE
    if _names_host(spec.metadata) or spec.volumes or any(v.driver == "local" for v in spec.managed_volumes):
        return Persistence.NODE_LOCAL
    return Persistence.SHARED_STORAGE if spec.managed_volumes else Persistence.EPHEMERAL


def allows_move(spec: WorkloadSpec) -> bool:
    """Whether the workload may leave its node although its state stays behind."""
    return any(_truth(spec.metadata, key) is True for key in ALLOW_MOVE_KEYS)


def is_pinned(spec: WorkloadSpec) -> bool:
    """Whether the workload must stay with the state on its node."""
    return persistence_of(spec) == Persistence.NODE_LOCAL and not allows_move(spec)


def anti_affinity_of(spec: WorkloadSpec) -> str:
    """Return the group whose members are to be on different nodes; blank: none."""
    return _text(spec.metadata, ANTI_AFFINITY_KEY)


def _text(metadata: Mapping[str, object], key: str) -> str:
    value = metadata.get(key)
    return value.strip() if isinstance(value, str) else ""


def _truth(metadata: Mapping[str, object], key: str) -> bool | None:
    return parse_truth(_text(metadata, key))


def _duration(metadata: Mapping[str, object], key: str) -> float | None:
    return parse_duration(_text(metadata, key))


def _names_host(metadata: Mapping[str, object]) -> bool:
    return any(any(word in key for word in _HOST_WORDS) and _text(metadata, key) for key in metadata)
