"""Requests of agents and of people, checked field by field before anything is looked up or stored."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id
from scheduler.domain.node import Node
from scheduler.front import fields
from scheduler.pb import control_pb2 as pb

MAX_CPU_MILLICORES = 10_000_000
MAX_MEMORY_MB = 1_000_000_000
MAX_DISK_GB = 1_000_000_000
MAX_STATUSES = 5_000
"""Workloads in one heartbeat."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|[0-9A-Fa-f:.]{2,45}")
_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_WORD_WORDS = "a name of letters, digits, . _ and -"


class NoCapacity(InvalidInput):
    """A node says that it has no CPU or no memory; it is told so in the answer, not by an error."""


def endpoint(field: str, value: str) -> tuple[str, int]:
    """Split host:port; IPv6 hosts stand in brackets, which are cut off; no host means 127.0.0.1."""
    fields.line(field, value, 300, blank=False)
    host, colon, port = value.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise InvalidInput(field, f"{fields.shown(value)} must be host:port")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not _HOST.fullmatch(host) or (":" in host and not value.strip().startswith("[")):
        raise InvalidInput(field, f"{fields.shown(value)} must be host:port, an IPv6 host in brackets")
    return host, fields.number(f"{field} port", int(port[:9]), 1, 65535)


def to_node(request: pb.RegisterNodeRequest) -> Node:
    """Turn a registration into the node it describes. Raises InvalidInput, NoCapacity."""
    check_id("node_id", request.node_id)
    host, port = endpoint("grpc_endpoint", request.grpc_endpoint)
    for name, longest in (("agent_version", 128), ("cluster_id", 128), ("instance_id", 128), ("agent_id", 128)):
        fields.line(name, getattr(request, name), longest)
    labels = fields.labels("labels", request.labels, 64, 256)
    types = _words("capabilities.supported_workload_types", request.capabilities.supported_workload_types)
    drivers = _words("capabilities.supported_storage_drivers", request.capabilities.supported_storage_drivers)
    disk = _pools(request.capabilities.storage_pools)
    cpu, memory = _capacity(request.capabilities)
    return Node(
        node_id=request.node_id,
        agent_endpoint=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        ip_address=host,
        agent_grpc_port=port,
        hostname=request.node_id,
        agent_version=request.agent_version,
        cluster_id=request.cluster_id,
        instance_id=request.instance_id,
        reports_epochs=request.reports_epochs,
        enforces_stop_after=request.enforces_stop_after,
        agent_id=request.agent_id,
        total_cpu=cpu / 1000,
        total_memory=memory,
        total_disk=disk,
        labels=labels,
        supported_workload_types=types,
        supported_storage_drivers=drivers,
    )


def _capacity(capabilities: pb.NodeCapabilities) -> tuple[int, int]:
    found = []
    for name, most in (("cpu_total_millicores", MAX_CPU_MILLICORES), ("memory_total_mb", MAX_MEMORY_MB)):
        value = getattr(capabilities, name)
        if value <= 0:
            raise NoCapacity(f"capabilities.{name}", f"{value} is not allowed; a node must offer some")
        found.append(fields.number(f"capabilities.{name}", value, 1, most))
    return found[0], found[1]


def _words(field: str, names: Sequence[str]) -> tuple[str, ...]:
    fields.count(field, names, 32)
    return tuple(fields.matching(f"{field}[{i}]", name.strip(), _WORD, _WORD_WORDS, 64) for i, name in enumerate(names))


def _pools(pools: Sequence[pb.StoragePool]) -> int:
    """Return the disk in GB that the node itself has: its local pools."""
    fields.count("capabilities.storage_pools", pools, 64)
    total = 0
    for i, pool in enumerate(pools):
        here = f"capabilities.storage_pools[{i}]"
        fields.line(f"{here}.name", pool.name, 128)
        kind = fields.choice(f"{here}.type", pool.type, {k: k for k in ("local", "nfs", "iscsi")}, blank="local")
        size = fields.number(f"{here}.total_gb", pool.total_gb, 0, MAX_DISK_GB)
        total += size if kind == "local" else 0
    return fields.number("capabilities.storage_pools", total, 0, MAX_DISK_GB)


def check_heartbeat(request: pb.HeartbeatRequest) -> None:
    """Check what a heartbeat says about its node. What it says about single workloads is judged one by one."""
    if not request.node_id.strip():
        check_id("node_id", request.node_id)
    if len(request.instance_id) > 128:  # noqa: PLR2004 - as at registration
        fields.line("instance_id", request.instance_id, 128)
    if len(request.workload_statuses) > MAX_STATUSES:
        fields.count("workload_statuses", request.workload_statuses, MAX_STATUSES)
    if len(request.workload_usage) > MAX_STATUSES:
        fields.count("workload_usage", request.workload_usage, MAX_STATUSES)
    if request.HasField("usage"):
        usage = request.usage
        fields.number("usage.cpu_allocated_millicores", usage.cpu_allocated_millicores, 0, MAX_CPU_MILLICORES)
        fields.number("usage.cpu_used_millicores", usage.cpu_used_millicores, 0, MAX_CPU_MILLICORES)
        fields.number("usage.memory_allocated_mb", usage.memory_allocated_mb, 0, MAX_MEMORY_MB)
        fields.number("usage.memory_used_mb", usage.memory_used_mb, 0, MAX_MEMORY_MB)
        fields.number("usage.disk_allocated_gb", usage.disk_allocated_gb, 0, MAX_DISK_GB)
        fields.number("usage.disk_used_gb", usage.disk_used_gb, 0, MAX_DISK_GB)


def check_filters(request: pb.ListNodesRequest | pb.ListWorkloadsRequest) -> None:
    """Check the filters of a list: a status is a word, a node id an id; blank ones do not filter."""
    fields.line("status", request.status, 64)
    if isinstance(request, pb.ListWorkloadsRequest) and request.node_id:
        check_id("node_id", request.node_id)
