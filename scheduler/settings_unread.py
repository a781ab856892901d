"""Environment variables that no process reads: typing errors, and the reference system's that have no effect here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping

_OTHERS = re.compile(r"FLEETBEAT_(SERVER|DATA|CA|CERT|KEY|NODE_ID|(AGENT|WORKLOAD|TEST)_.*)")
"""Read by the command line, the agent, workloads and tests."""
_SERVICE_LINK = re.compile(r"FLEETBEAT_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)")
"""What Kubernetes puts into every pod for a Service whose name begins with fleetbeat."""

_WAIT = "every call to an agent has the deadline SCHEDULER_AGENT_RPC_TIMEOUT"
_DEAD = "the reference system does not use it either"
NOT_READ: dict[str, str] = {
    "PERSYS_VAULT_MANAGER_ADDR": "buckets are not built yet",
    "SCHEDULER_AGENT_STATUS_POLL_INTERVAL": _WAIT,
    "SCHEDULER_AGENT_APPLY_TIMEOUT": _WAIT,
    "SCHEDULER_AGENT_VM_APPLY_TIMEOUT": _WAIT,
    "SCHEDULER_AGENT_DELETE_TIMEOUT": _WAIT,
    "SCHEDULER_MISSING_GRACE_PERIOD": _DEAD,
    "PERSYS_TLS_ENABLED": _DEAD,
    "PERSYS_RGW_*": "buckets are not built yet",
    "PERSYS_S3_*": "buckets are not built yet",
}
"""The reference system's variables that this version does not read, and why."""


def unknown_variables(environ: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    """Name each FLEETBEAT_ variable that nobody reads: a typing error must not pass silently."""
    for name in sorted(environ):
        is_ours = name.startswith("FLEETBEAT_") and name not in known and not _OTHERS.fullmatch(name)
        is_link = _SERVICE_LINK.fullmatch(name) or re.match(r"(tcp|udp)://", environ[name])
        if is_ours and not is_link:
            near = nearest_variable(name, [*known, "FLEETBEAT_SERVER", "FLEETBEAT_DATA"])
            yield f"{name}: there is no such setting{f'; did you mean {near}?' if near else ''}"


def nearest_variable(name: str, known: Collection[str]) -> str:
    """Return the known variable most like this one, prefixes aside; blank when none is near."""
    by_stem = {_stem(k): k for k in sorted(known)}
    near = difflib.get_close_matches(_stem(name), by_stem, 1, 0.6)
    return by_stem[near[0]] if near else ""


def _stem(name: str) -> str:
    return re.sub(r"^(FLEETBEAT|SCHEDULER|PERSYS)_", "", name)


def unread_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Name each variable of the reference system that is set without effect; names other programs use are left out."""
    for name in sorted(environ):
        if not name.startswith(("PERSYS_", "SCHEDULER_", "METER_", "REDIS_")) or not environ[name].strip():
            continue
        reason = NOT_READ.get(name) or NOT_READ.get("_".join(name.split("_")[:2]) + "_*")
        if reason:
            yield f"{name} is set but has no effect: {reason}"
