"""Capacity: what a node can still promise. The same arithmetic serves the fleet and the committing transaction.

Free = capacity * overcommit, less the sum of the commitments in the ledger. Measured use
plays no part here: it is a score term.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node
from scheduler.placement.request import LARGEST_AMOUNT, Request, amount

Amounts = tuple[int, int, int]
"""CPU in millicores, memory in MB, disk in GB."""

MAX_COMMITMENTS = 4096
"""Holders in one ledger: at about 150 bytes each it stays well below etcd's 1.5 MiB for one value."""


@dataclass(frozen=True, slots=True)
class Overcommit:
    """How much may be committed, as multiples of capacity."""

    cpu: float = 1.0
    memory: float = 1.0
    disk: float = 1.0


@dataclass(frozen=True, slots=True)
class Resource:
    """A countable resource: its filter's name and how its amounts are written."""

    name: str
    filter: str
    unit: str


RESOURCES = (
    Resource("cpu", "cpu_insufficient", "m"),
    Resource("memory", "memory_insufficient", " MB"),
    Resource("disk", "disk_insufficient", " GB"),
)


def capacity(node: Node) -> Amounts:
    """Return what the node has: millicores rounded from cores, MB, GB. 0 GB of disk: the node did not say."""
    return amount(node.total_cpu * 1000), amount(node.total_memory), amount(node.total_disk)


def allocatable(node: Node, overcommit: Overcommit) -> Amounts:
    """Return what may be committed in all. Disk that the node did not state is not limited."""
    cpu, memory, disk = capacity(node)
    limit = _times(disk, overcommit.disk) if disk else LARGEST_AMOUNT
    return _times(cpu, overcommit.cpu), _times(memory, overcommit.memory), limit


def committed(ledger: Ledger) -> Amounts:
    """Return the sum of all commitments."""
    cpu = memory = disk = 0
    for commitment in ledger.commitments.values():
        cpu += commitment.cpu_millicores
        memory += commitment.memory_mb
        disk += commitment.disk_gb
    return cpu, memory, disk


def commitment_of(request: Request, epoch: int) -> Commitment:
    """Return what the ledger records when the request is granted."""
    cpu, memory, disk = request.amounts
    return Commitment(
        cpu_millicores=cpu,
        memory_mb=memory,
        disk_gb=disk,
        ports=request.ports,
        epoch=epoch,
        group=request.group,
        replica_set=request.replica_set,
    )


def lack(index: int, node: Node, ledger: Ledger, request: Request, overcommit: Overcommit) -> str:
    """Say how much of RESOURCES[index] is missing; blank when there is enough or nothing is asked."""
    asked, limit = request.amounts[index], allocatable(node, overcommit)[index]
    free = limit - committed(ledger)[index]
    if asked <= max(free, 0):
        return ""
    unit = RESOURCES[index].unit
    return f"has {free}{unit} free of {limit}{unit}, {asked}{unit} asked"


def taken_ports(ledger: Ledger, ports: Iterable[str]) -> dict[str, str]:
    """Return those of the host ports that are taken, each with its holder."""
    taken = ledger.ports
    return {port: taken[port] for port in ports if port in taken}


def port_conflict(ledger: Ledger, request: Request) -> str:
    """Name the taken host ports and their holders; blank when all are free."""
    taken = taken_ports(ledger, request.ports)
    return "has " + ", ".join(f'port {p} taken by "{holder}"' for p, holder in taken.items()) if taken else ""


def crowded(ledger: Ledger) -> str:
    """Say that the ledger takes no further holder; blank while it does."""
    held = len(ledger.commitments)
    return f"has {held} commitments, {MAX_COMMITMENTS} are allowed" if held >= MAX_COMMITMENTS else ""


def _times(total: int, factor: float) -> int:
    """Multiply and round down, forgiving the last bits of the factor (0.1 * 10 is 1)."""
    return min(math.floor(total * factor + 1e-6), LARGEST_AMOUNT)
