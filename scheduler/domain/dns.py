"""DNS records as CoreDNS's etcd plugin reads them, with the reference system's names.

The key of a record is its name read backwards, with "/" between the labels. A node's is
`{node}.{shard key}.{agents' domain}`; each front has an address and a service below the scheduler's domain.
"""

from __future__ import annotations

import ipaddress
import re

from scheduler.domain.node import Node
from scheduler.domain.record import Record

TTL_SECONDS = 300
"""How long a resolver may keep an answer, as the reference system says it."""
SERVICE = "_persys-scheduler"
HOST = "persys-scheduler"

_ZONE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class DnsRecord(Record):
    """`/skydns/…`: where a name leads to."""

    host: str
    """An IP address; a host name becomes a CNAME."""
    port: int | None = None
    """With a port, the name also answers questions for SRV."""
    ttl: int = TTL_SECONDS
    """Seconds."""


def node_name(node_id: str, shard_key: str, domain: str) -> str:
    """Return the DNS name of a node; blank without a domain."""
    return f"{node_id}.{shard_key}.{domain}" if domain else ""


def node_record_id(node_id: str, name: str) -> str:
    """Return the id of the record of a node with this name; blank when the name is not one of that node.

    The node's id stays one part of it, as it is: were it taken apart, the record of "a.b" would lie below
    that of "b", and the plugin would answer for "b" with both. So only ids of a-z, 0-9 and "-" can be resolved.
    """
    zone = name.removeprefix(f"{node_id}.")
    return f"{_backwards(zone)}/{node_id}" if zone != name and _ZONE.fullmatch(zone) else ""


def node_record(node: Node) -> DnsRecord | None:
    """Return where a node's name leads to; None when it has no address."""
    host = node.agent_endpoint.rpartition(":")[0].strip("[]") or node.ip_address
    return DnsRecord(host=host) if host else None


def front_records(domain: str, instance: str, host: str, port: int) -> dict[str, DnsRecord]:
    """Return the records of one front by their ids: its service with the port, and its address."""
    zone = _backwards(domain)
    return {
        f"{zone}/{SERVICE}/{instance}": DnsRecord(host=host, port=port),
        f"{zone}/{HOST}/{instance}": DnsRecord(host=host),
    }


def is_loopback(host: str) -> bool:
    """Whether a host that a server listens on is this machine's own name for itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_any(host: str) -> bool:
    """Whether it stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


def _backwards(name: str) -> str:
    return "/".join(reversed(name.lower().split(".")))
