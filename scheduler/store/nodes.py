"""Node records: registration and health. What operators set is never touched here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from scheduler.domain.dns import node_name, node_record, node_record_id
from scheduler.domain.node import Health, Node
from scheduler.store.keys import DNS, NODES
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write

SHARD_LABEL = "scheduler_shard"
NO_TYPE = "none"
"""Stands alone in the list of a node that runs no type of workload at all any more."""
_TYPE_ALIASES = {"docker-container": "container", "docker-compose": "compose"}


async def register(
    store: Store, node: Node, *, now: datetime, shard_key: str = "genesis", dns_domain: str = ""
) -> Node:
    """Store what an agent says about its node, merged with what is known.

    Taken from the agent: identity, endpoint, capacity, labels (the agent's win on the same
    key; those that it gives no more go). Kept: taints, schedulable, drain, labels that operators
    set. An agent that registers is alive, so the node is Ready. Registering the same again writes nothing.

    dns_domain: the domain in which the node gets a name; blank: none. Its DNS record is written along.
    """
    offered = _with_defaults(node, shard_key).replace(domain_name=node_name(node.node_id, shard_key, dns_domain))

    def decide(view: View) -> Write[Node]:
        known = view.get(NODES, node.node_id).record
        merged = _merged(known, offered, now)
        write = Write(merged)
        if merged != known:
            write.put(NODES, node.node_id, merged)
        _name(write, view, known, merged)
        return write

    return await store.transact([Ref(NODES, node.node_id), *dns_refs(offered)], decide)


def _name(write: Write[Node], view: View, known: Node | None, node: Node) -> None:
    """Have the node's DNS record lead to it, and the one of a former name go."""
    named, record = dns_refs(node), node_record(node)
    former = [ref for ref in dns_refs(known) if ref not in named] if known else []
    view.require([*named, *former])
    for ref in named:
        if record and view.get(DNS, ref.id).record != record:
            write.put(DNS, ref.id, record)
    unname(write, view, former)


def unname(write: Write[Any], view: View, refs: Sequence[Ref[Any]]) -> None:
    """Remove these DNS records, which the view must have."""
    for ref in refs:
        if view.get(DNS, ref.id).record is not None:
            write.delete(DNS, ref.id)


def dns_refs(node: Node) -> list[Ref[Any]]:
    """Name the DNS record of a node, if it has one."""
    found = node_record_id(node.node_id, node.domain_name)
    return [Ref(DNS, found)] if found else []


async def set_health(
    store: Store,
    node_id: str,
    health: Health | str,
    reason: str,
    by: str,
    *,
    now: datetime,
    guards: Sequence[Guard] = (),
    expect_status: str | None = None,
    seen_revision: int | None = None,
) -> bool:
    """Move a node to this health; return whether that was a transition.

    expect_status: only from this status. seen_revision: only if the record is still the one
    the judgement rested on.
    """

    def decide(view: View) -> Write[bool]:
        stored = view.get(NODES, node_id)
        node = stored.record
        if node is None or node.status == health:
            return Write(result=False)
        if expect_status is not None and node.status.lower() != expect_status.lower():
            return Write(result=False)
        if seen_revision is not None and stored.mod_revision != seen_revision:
            return Write(result=False)
        write = Write(result=True)
        write.put(NODES, node_id, _healthy(node, str(health), reason, by, now))
        return write

    return await store.transact([Ref(NODES, node_id)], decide, guards=guards)


async def drop_type(store: Store, node_id: str, kind: str, *, guards: Sequence[Guard] = ()) -> bool:
    """Take a type of workloads off what a node runs, until its agent registers again; return whether that was news."""

    def decide(view: View) -> Write[bool]:
        node = view.get(NODES, node_id).record
        if node is None:
            return Write(result=False)
        # A blank list means everything but VMs, so it must not become blank by this.
        runs = node.supported_workload_types or ("container", "compose")
        left = tuple(one for one in runs if one != kind) or (NO_TYPE,)
        write = Write(left != node.supported_workload_types)
        if write.result:
            write.put(NODES, node_id, node.replace(supported_workload_types=left))
        return write

    return await store.transact([Ref(NODES, node_id)], decide, guards=guards)


def workload_types(names: Sequence[str]) -> tuple[str, ...]:
    """Return types in their one spelling, each once, in the order given."""
    lowered = (name.strip().lower() for name in names)
    return tuple(dict.fromkeys(_TYPE_ALIASES.get(name, name) for name in lowered if name))


def storage_drivers(names: Sequence[str]) -> tuple[str, ...]:
    """Return drivers in their one spelling, each once, `local` always first."""
    lowered = (name.strip().lower().replace("_", "-") for name in names)
    return tuple(dict.fromkeys(["local", *filter(None, lowered)]))


def labels_of(known: Mapping[str, str], agent: Mapping[str, str], operator: Mapping[str, str]) -> dict[str, str]:
    """Return what a node is labelled with: what its record holds, the operator's labels, and the agent's on top.

    known: may hold labels of neither, from a record that does not tell whose they are; they stay.
    """
    return {**known, **operator, **agent}


def _without_agents(known: Node) -> dict[str, str]:
    """Return the labels of a record that its agent did not give: what an agent gives no more goes."""
    return {k: v for k, v in known.labels.items() if k not in known.agent_labels}


def _with_defaults(node: Node, shard_key: str) -> Node:
    return node.replace(
        hostname=node.hostname or node.node_id,
        supported_workload_types=workload_types(node.supported_workload_types),
        supported_storage_drivers=storage_drivers(node.supported_storage_drivers),
        labels={**node.labels, SHARD_LABEL: shard_key},
        agent_labels={key: value for key, value in node.labels.items() if key != SHARD_LABEL},
    )


def _merged(known: Node | None, offered: Node, now: datetime) -> Node:
    if known is None:
        return _healthy(offered.replace(registered_at=now), Health.READY, "registered", "register", now)
    merged = known.replace(
        **{name: getattr(offered, name) for name in _FROM_AGENT},
        labels=labels_of(_without_agents(known), offered.labels, known.operator_labels),
        registered_at=known.registered_at or now,
    )
    return merged if known.is_ready else _healthy(merged, Health.READY, "registered", "register", now)


_FROM_AGENT = (
    "agent_endpoint",
    "ip_address",
    "agent_grpc_port",
    "hostname",
    "agent_version",
    "cluster_id",
    "instance_id",
    "reports_epochs",
    "enforces_stop_after",
    "agent_id",
    "agent_labels",
    "domain_name",
    "total_cpu",
    "total_memory",
    "total_disk",
    "supported_workload_types",
    "supported_storage_drivers",
)


def _healthy(node: Node, status: str, reason: str, by: str, now: datetime) -> Node:
    """Return the node with this health; one that is heard again is not fenced any more."""
    fence: dict[str, object] = {"fenced_at": None, "fenced_by": ""} if status == Health.READY else {}
    return node.replace(status=status, status_reason=reason, status_updated_by=by, status_updated_at=now, **fence)
