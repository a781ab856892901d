"""What a node is, for placement: the yes-or-no properties that filters ask about."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.domain.node import Node, Taint
from scheduler.domain.toleration import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE
from scheduler.placement.request import VM_TYPES, driver_name, workload_type

ANY_BUT_VM = "*"
"""The workload type of a node that names none: everything, except VMs without a hypervisor."""

_BLOCKING_EFFECTS = frozenset({"", NO_SCHEDULE, NO_EXECUTE})
_STORAGE_LABEL = "storage."


def is_open(node: Node) -> bool:
    """Whether the node is heard and its operator lets it take new work."""
    return node.is_ready and node.schedulable and not node.drain


def standing(node: Node) -> str:
    """Say why a node is not open, as the reference system words it."""
    if not node.is_ready:
        at = node.status_updated_at.isoformat() if node.status_updated_at else ""
        return f"status={node.status} reason={node.status_reason} by={node.status_updated_by} at={at}"
    return f"status={node.drain or 'Unschedulable'}"


def blocking_taints(node: Node) -> frozenset[Taint]:
    """Return the taints that keep new work away unless it tolerates them; PreferNoSchedule does not."""
    return frozenset(taint for taint in map(_plain, node.taints) if taint.effect in _BLOCKING_EFFECTS)


def soft_taints(node: Node) -> frozenset[Taint]:
    """Return the taints that only make another node the better choice, for what does not tolerate them."""
    return frozenset(taint for taint in map(_plain, node.taints) if taint.effect == PREFER_NO_SCHEDULE)


def workload_types(node: Node) -> frozenset[str]:
    """Return the types the node runs, or ANY_BUT_VM when it names none (and VMs, when it shows a hypervisor)."""
    if node.supported_workload_types:
        return frozenset(map(workload_type, node.supported_workload_types))
    return frozenset({ANY_BUT_VM}) | (VM_TYPES if _has_hypervisor(node) else frozenset())


def storage_drivers(node: Node) -> frozenset[str]:
    """Return `local`, the drivers the node names, and those it is labelled with (`storage.nfs=true`)."""
    labelled = (
        key.removeprefix(_STORAGE_LABEL)
        for key, value in node.labels.items()
        if key.startswith(_STORAGE_LABEL) and value.lower() == "true"
    )
    return frozenset(map(driver_name, ("local", *node.supported_storage_drivers, *labelled)))


def _plain(taint: Taint) -> Taint:
    return Taint(key=taint.key, value=taint.value, effect=taint.effect)


def _has_hypervisor(node: Node) -> bool:
    """Read the reference layout's `hypervisor`, which records written by it carry and ours do not declare."""
    hypervisor = (node.model_extra or {}).get("hypervisor")
    if not isinstance(hypervisor, Mapping):
        return False
    return bool(hypervisor.get("type")) or str(hypervisor.get("status", "")).lower() in ("active", "ready")
