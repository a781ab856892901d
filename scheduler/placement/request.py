"""What a workload asks of a node, in the units in which nodes are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.domain.node import Taint
from scheduler.domain.port import parse_port
from scheduler.domain.workload import WorkloadSpec

TOLERATIONS_KEY = "fleetbeat.tolerations"
"""Metadata of a spec: "key", "key=value", "key=value:effect", comma-separated; "*" tolerates every taint."""
NODE_KEY = "fleetbeat.node"
"""Metadata of a spec: the only node that may run the workload."""
LARGEST_AMOUNT = 2**53
"""Amounts are cut off here, so that sums and products stay exact in 64 bits and in doubles."""

_TYPE_ALIASES = {
    "docker-container": "container",
    "docker-compose": "compose",
    "micro-vm": "microvm",
    "firecracker": "microvm",
}
VM_TYPES = frozenset({"vm", "microvm"})


@dataclass(frozen=True, slots=True)
class Toleration:
    """Taints that a workload accepts; a blank part matches anything."""

    key: str
    value: str = ""
    effect: str = ""

    def covers(self, taint: Taint) -> bool:
        """Whether the workload may run in spite of this taint; a taint with a blank effect means NoSchedule."""
        return (
            self.key in ("*", taint.key)
            and self.value in ("", taint.value)
            and self.effect in ("", taint.effect or "NoSchedule")
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What one workload needs from its node."""

    workload_id: str
    type: str = "container"
    cpu_millicores: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    ports: tuple[str, ...] = ()
    """Host ports, "8080/tcp"."""
    labels: tuple[tuple[str, str], ...] = ()
    """The node must carry all of these."""
    volume_drivers: tuple[str, ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    node: str = ""
    """The only node allowed; blank: any."""

    @property
    def amounts(self) -> tuple[int, int, int]:
        """CPU in millicores, memory in MB, disk in GB: the order of capacity.RESOURCES."""
        return self.cpu_millicores, self.memory_mb, self.disk_gb


def amount(value: float) -> int:
    """Round to a whole amount between 0 and LARGEST_AMOUNT; what is not a number counts as 0."""
    if math.isnan(value):
        return 0
    return round(min(max(value, 0), LARGEST_AMOUNT))


def workload_type(name: str) -> str:
    """Return the one name of a workload type: container, compose, vm or microvm."""
    lowered = name.strip().lower()
    return _TYPE_ALIASES.get(lowered, lowered)


def driver_name(name: str) -> str:
    """Return the one name of a storage driver; blank means local."""
    return name.strip().lower().replace("_", "-") or "local"


def host_port(port: str) -> str:
    """Turn a stored port into "host/protocol"; blank when no fixed host port is asked."""
    host, _, protocol = parse_port(port)
    return f"{host}/{protocol}" if host else ""


def parse_tolerations(text: str) -> tuple[Toleration, ...]:
    """Parse the value of `fleetbeat.tolerations`; empty items are skipped."""
    return tuple(_toleration(item.strip()) for item in text.split(",") if item.strip())


def _toleration(item: str) -> Toleration:
    selector, _, effect = item.partition(":")
    key, _, value = selector.partition("=")
    return Toleration(key.strip(), value.strip(), effect.strip())


def request_of(spec: WorkloadSpec) -> Request:
    """Return what a spec asks for. A VM's own vcpus, memory and disks count where `resources` leaves them blank."""
    cpu, memory, disk = spec.resources.cpu_usage * 1000, spec.resources.memory_usage, spec.resources.disk_usage
    if spec.vm:
        cpu = cpu or spec.vm.vcpus * 1000
        memory = memory or spec.vm.memory_mb
        disk = disk or sum(d.size_gb for d in spec.vm.disks)
    return Request(
        workload_id=spec.id,
        type=workload_type(spec.type),
        cpu_millicores=amount(cpu),
        memory_mb=amount(memory),
        disk_gb=amount(disk),
        ports=_distinct(filter(None, map(host_port, spec.ports))),
        labels=tuple(sorted(spec.labels.items())),
        volume_drivers=_distinct(driver_name(v.driver) for v in spec.managed_volumes),
        tolerations=parse_tolerations(spec.metadata.get(TOLERATIONS_KEY, "")),
        node=spec.metadata.get(NODE_KEY, "").strip(),
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
