"""The filters, in the order in which a node's rejection is told.

Each filter exists twice: over the columns of the whole fleet (`passing`), and over one node with its
ledger, in words (`objection`), which is what the committing transaction asks and what explanations
quote. A property test holds the two to the same answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

from scheduler.domain.ledger import Ledger
from scheduler.domain.node import Node, Taint
from scheduler.domain.toleration import taint_text, tolerates
from scheduler.placement.capacity import RESOURCES, Overcommit, crowded, lack, port_conflict
from scheduler.placement.fleet import Bools, Fleet
from scheduler.placement.request import VM_TYPES, Request
from scheduler.placement.traits import (
    ANY_BUT_VM,
    blocking_taints,
    is_open,
    standing,
    storage_drivers,
    workload_types,
)


@dataclass(frozen=True, slots=True)
class Filter:
    """One rule that a node must satisfy."""

    name: str
    passing: Callable[[Fleet, Request], Bools]
    """Which rows satisfy it; rows not in use may say anything."""
    objection: Callable[[Node, Ledger, Request, Overcommit], str]
    """Why this node does not, to be read after its name; blank when it does."""
    of_amounts: bool = False
    """Whether it is about capacity, which comes and goes, and not about what the node is."""


@dataclass(frozen=True, slots=True)
class Objection:
    """The first filter that a node fails, and why."""

    filter: str
    node_id: str
    why: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.filter}: {self.node_id} {self.why}"


def first_objection(node: Node, ledger: Ledger, request: Request, overcommit: Overcommit) -> Objection | None:
    """Return None when the node may take the workload: the check inside the committing transaction.

    What the ledger already holds for this very workload does not count against it.
    """
    return next(objections(node, ledger, request, overcommit), None)


def objections(node: Node, ledger: Ledger, request: Request, overcommit: Overcommit) -> Iterator[Objection]:
    """Yield an objection for each filter that the node fails, in their order."""
    others = ledger.without(request.workload_id) if request.workload_id in ledger.commitments else ledger
    for each in FILTERS:
        if why := each.objection(node, others, request, overcommit):
            yield Objection(each.name, node.node_id, why)


def _is_open(fleet: Fleet, _request: Request) -> Bools:
    return fleet.mask(fleet.open)


def _standing(node: Node, _ledger: Ledger, _request: Request, _overcommit: Overcommit) -> str:
    return "" if is_open(node) else standing(node)


def _is_heard(fleet: Fleet, _request: Request) -> Bools:
    return fleet.mask(fleet.everyone & ~fleet.silent)


def _never(_node: Node, _ledger: Ledger, _request: Request, _overcommit: Overcommit) -> str:
    return ""


def _carries_labels(fleet: Fleet, request: Request) -> Bools:
    rows = fleet.everyone
    for label in request.labels:
        rows &= fleet.labels[label]
    return fleet.mask(rows)


def _missing_label(node: Node, _ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    for key, value in request.labels:
        if node.labels.get(key) != value:
            has = f"{key}={node.labels[key]}" if key in node.labels else f"no label {key}"
            return f"has {has}, {key}={value} asked"
    return ""


def _is_named(fleet: Fleet, request: Request) -> Bools:
    if not request.node:
        return fleet.mask(fleet.everyone)
    return fleet.mask(fleet.bits_of((request.node,)))


def _not_named(node: Node, _ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    return f"is not {request.node}, which is asked" if request.node not in ("", node.node_id) else ""


def _is_tolerated(fleet: Fleet, request: Request) -> Bools:
    rows = fleet.everyone
    for taint, tainted in fleet.taints.items():
        if not tolerates(request.tolerations, cast("Taint", taint)):
            rows &= ~tainted
    return fleet.mask(rows)


def _taint(node: Node, _ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    blocking = sorted(taint_text(t) for t in blocking_taints(node) if not tolerates(request.tolerations, t))
    return "has taint " + ", ".join(blocking) if blocking else ""


def _runs_type(fleet: Fleet, request: Request) -> Bools:
    open_ended = 0 if request.type in VM_TYPES else fleet.types[ANY_BUT_VM]
    return fleet.mask(fleet.types[request.type] | open_ended)


def _unsupported_type(node: Node, _ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    types = workload_types(node)
    if request.type in types or (ANY_BUT_VM in types and request.type not in VM_TYPES):
        return ""
    runs = "anything but VMs" if ANY_BUT_VM in types else ", ".join(sorted(types))
    return f"runs {runs}; {request.type} asked"


def _has_drivers(fleet: Fleet, request: Request) -> Bools:
    rows = fleet.everyone
    for driver in request.volume_drivers:
        rows &= fleet.drivers[driver]
    return fleet.mask(rows)


def _missing_driver(node: Node, _ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    drivers = storage_drivers(node)
    missing = [d for d in request.volume_drivers if d not in drivers]
    return f"has storage {', '.join(sorted(drivers))}; {', '.join(missing)} asked" if missing else ""


def _where_volumes_are(fleet: Fleet, request: Request) -> Bools:
    rows = fleet.everyone
    for binding in request.bound:
        rows &= fleet.bits_of(binding.nodes)
    return fleet.mask(rows)


def _volume_elsewhere(node: Node, _ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    for volume, nodes in request.bound:
        if not nodes:
            return f"cannot have disk {volume}, which has been removed"
        if node.node_id not in nodes:
            return f"is not {' or '.join(nodes)}, where volume {volume} must be used"
    return ""


def _apart(fleet: Fleet, request: Request) -> Bools:
    return fleet.mask(fleet.everyone & ~fleet.groups[request.group] if request.group else fleet.everyone)


def _not_apart(_node: Node, ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    found = (holder for holder, c in ledger.commitments.items() if request.group and c.group == request.group)
    holder = next(found, "")
    return f'has "{holder}" of the anti-affinity group {request.group}' if holder else ""


def _ports_free(fleet: Fleet, request: Request) -> Bools:
    rows = fleet.everyone
    for port in request.ports:
        rows &= ~fleet.ports[port]
    return fleet.mask(rows)


def _port(_node: Node, ledger: Ledger, request: Request, _overcommit: Overcommit) -> str:
    return port_conflict(ledger, request)


def _not_crowded(fleet: Fleet, _request: Request) -> Bools:
    return fleet.mask(fleet.everyone & ~fleet.crowded)


def _crowded(_node: Node, ledger: Ledger, _request: Request, _overcommit: Overcommit) -> str:
    return crowded(ledger)


def _amount_filter(index: int) -> Filter:
    def passing(fleet: Fleet, request: Request) -> Bools:
        asked = request.amounts[index]
        return fleet.free[index, : fleet.rows] >= asked if asked else fleet.mask(fleet.everyone)

    def objection(node: Node, ledger: Ledger, request: Request, overcommit: Overcommit) -> str:
        return lack(index, node, ledger, request, overcommit)

    return Filter(RESOURCES[index].filter, passing, objection, of_amounts=True)


FILTERS = (
    Filter("status", _is_open, _standing),
    Filter("heartbeat_stale", _is_heard, _never),
    Filter("label_mismatch", _carries_labels, _missing_label),
    Filter("node_mismatch", _is_named, _not_named),
    Filter("tainted", _is_tolerated, _taint),
    Filter("workload_type_unsupported", _runs_type, _unsupported_type),
    Filter("storage_driver_unsupported", _has_drivers, _missing_driver),
    Filter("volume_on_other_node", _where_volumes_are, _volume_elsewhere),
    Filter("anti_affinity", _apart, _not_apart),
    *map(_amount_filter, range(len(RESOURCES))),
    Filter("port_conflict", _ports_free, _port, of_amounts=True),
    Filter("node_full", _not_crowded, _crowded, of_amounts=True),
)
