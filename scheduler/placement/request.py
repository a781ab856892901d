"""What a workload asks of a node, in the units in which nodes are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.domain.kind import workload_type
from scheduler.domain.policy import anti_affinity_of
from scheduler.domain.port import parse_port
from scheduler.domain.replicas import replica_set
from scheduler.domain.toleration import TOLERATIONS_KEY, Toleration, parse_tolerations, tolerations_of
from scheduler.domain.volume import LOCAL, driver_name, volume_ids
from scheduler.domain.workload import WorkloadSpec

__all__ = [
    "LARGEST_AMOUNT",
    "NODE_KEY",
    "TOLERATIONS_KEY",
    "VM_TYPES",
    "Binding",
    "Request",
    "Toleration",
    "amount",
    "driver_name",
    "host_port",
    "parse_tolerations",
    "request_of",
    "workload_type",
]

NODE_KEY = "fleetbeat.node"
"""Metadata of a spec: the only node that may run the workload."""
LARGEST_AMOUNT = 2**53
"""Amounts are cut off here, so that sums and products stay exact in 64 bits and in doubles."""

VM_TYPES = frozenset({"vm", "microvm"})


class Binding(NamedTuple):
    """A volume that may only be used on some nodes now: where its data is, or where it is attached; gone: on none."""

    volume: str
    nodes: tuple[str, ...]


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
    volumes: tuple[str, ...] = ()
    """Ids of the volumes that the spec names."""
    bound: tuple[Binding, ...] = ()
    """Where those may be used; filled in from their records (store/volumes.py), not from the spec."""
    tolerations: tuple[Toleration, ...] = ()
    node: str = ""
    """The only node allowed; blank: any."""
    group: str = ""
    """No other workload of this group may be on the node; blank: none."""
    replica_set: str = ""
    """The workload whose copies this is one of; nodes with fewer of them are better. Blank: it is the only copy."""

    @property
    def amounts(self) -> tuple[int, int, int]:
        """CPU in millicores, memory in MB, disk in GB: the order of capacity.RESOURCES."""
        return self.cpu_millicores, self.memory_mb, self.disk_gb


def amount(value: float) -> int:
    """Round to a whole amount between 0 and LARGEST_AMOUNT; what is not a number counts as 0."""
    if isinstance(value, float) and math.isnan(value):  # of a huge int it cannot be asked
        return 0
    return round(min(max(value, 0), LARGEST_AMOUNT))


def host_port(port: str) -> str:
    """Turn a stored port into "host/protocol"; blank when no fixed host port is asked."""
    host, _, protocol = parse_port(port)
    return f"{host}/{protocol}" if host else ""


def request_of(spec: WorkloadSpec) -> Request:
    """Return what a spec asks for. A VM's own vcpus, memory and disks count where `resources` leaves them blank."""
    cpu, memory, disk = spec.resources.cpu_usage * 1000, spec.resources.memory_usage, spec.resources.disk_usage
    if spec.vm:
        cpu = cpu or spec.vm.vcpus * 1000
        memory = memory or spec.vm.memory_mb
        disk = disk or sum(d.size_gb for d in spec.vm.disks)
    # Of the other drivers, the room is not the node's.
    disk += sum(v.size_gb for v in spec.managed_volumes if driver_name(v.driver) == LOCAL)
    return Request(
        workload_id=spec.id,
        type=workload_type(spec.type),
        cpu_millicores=amount(cpu),
        memory_mb=amount(memory),
        disk_gb=amount(disk),
        ports=_distinct(filter(None, map(host_port, spec.ports))),
        labels=tuple(sorted(spec.labels.items())),
        volume_drivers=_distinct(driver_name(v.driver) for v in spec.managed_volumes),
        volumes=volume_ids(spec.managed_volumes),
        tolerations=tolerations_of(spec),
        node=spec.metadata.get(NODE_KEY, "").strip(),
        group=anti_affinity_of(spec),
        replica_set=replica_set(spec),
    )


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
