"""Types of workloads, and the other names that they are known by."""

from __future__ import annotations

TYPES = frozenset({"container", "compose", "vm", "microvm"})
_ALIASES = {
    "docker-container": "container",
    "docker-compose": "compose",
    "micro-vm": "microvm",
    "firecracker": "microvm",
}


def workload_type(name: str) -> str:
    """Return the one name of a workload type: container, compose, vm or microvm."""
    lowered = name.strip().lower()
    return _ALIASES.get(lowered, lowered)
