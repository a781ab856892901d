"""How an agent is told to run: parsed and checked once."""

from __future__ import annotations

import ipaddress
import pathlib
import re
import socket
from dataclasses import dataclass

from agent.orders import InvalidRequest, check_id
from scheduler.tls.files import TlsFiles

MAX_LABELS = 64
MAX_NAMES = 64
RESERVED_LABELS = "fleetbeat."
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,126}[A-Za-z0-9])?")
_MAX_LABEL_VALUE = 256
_MAX_PORT = 65535


@dataclass(frozen=True)
class Address:
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return host:port, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Options:
    """What `fleetbeat agent` was told."""

    node_id: str
    servers: tuple[str, ...]
    listen: Address
    advertise: str
    """host, or host:port; blank: found out."""
    data: pathlib.Path
    labels: dict[str, str]
    cpu_millicores: int
    memory_mb: int
    disk_gb: int
    allow_host_processes: bool
    docker: bool
    stop_grace_seconds: float
    output_most_bytes: int
    stop_workloads_on_exit: bool
    allow_privileged: bool = False
    tls: TlsFiles | None = None
    """Certificates towards the fronts and of the agent itself; None: no TLS."""
    callers: tuple[str, ...] = ()
    """Names in the certificates of those that may call the agent; none: any of the CA."""
    stop_after_seconds: float = 60.0
    """How long an exclusive workload may run unheard when its order does not say."""


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """Return the host and port; raises ValueError that says what is wrong. `any_port` allows port 0."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or any(c.isspace() for c in host) or (":" in host and not _is_ipv6(host)):
        raise ValueError(f"{text!r} must be host:port, such as 127.0.0.1:8085")
    least = 0 if any_port else 1
    if not port.isdecimal() or not least <= int(port) <= _MAX_PORT:
        raise ValueError(f"{text!r}: the port must be a number from {least} to {_MAX_PORT}")
    return Address(host, int(port))


def parse_servers(text: str) -> tuple[str, ...]:
    """Return the addresses of a comma-separated list; raises ValueError."""
    found = tuple(str(parse_address(part)) for part in text.split(",") if part.strip())
    if not found:
        raise ValueError("at least one host:port is needed")
    return found


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of a comma-separated list; raises ValueError."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if len(names) > MAX_NAMES:
        raise ValueError(f"{len(names)} names were given, at most {MAX_NAMES} are allowed")
    return names


def tls_of(ca: str, cert: str, key: str) -> TlsFiles | None:
    """Return the certificate files, None when there are none; raises ValueError when some are missing."""
    if not (ca or cert or key):
        return None
    if not (ca and cert and key):
        raise ValueError("--ca, --cert and --key must be given together")
    return TlsFiles(ca, cert, key)


def parse_label(text: str) -> tuple[str, str]:
    """Return the name and value of `name=value`; raises ValueError."""
    name, equals, value = text.strip().partition("=")
    if not equals or not _LABEL_NAME.fullmatch(name):
        raise ValueError(f"{text!r} must be name=value, the name of A-Z a-z 0-9 . _ / -")
    if name.startswith(RESERVED_LABELS):
        raise ValueError(f"{text!r}: names that begin with {RESERVED_LABELS!r} are set by the agent itself")
    if len(value) > _MAX_LABEL_VALUE or not value.isprintable():
        raise ValueError(f"{name}: the value must have at most {_MAX_LABEL_VALUE} printable characters")
    return name, value


def parse_node_id(text: str) -> str:
    """Return the node id; raises ValueError."""
    try:
        return check_id("node id", text)
    except InvalidRequest as error:
        raise ValueError(str(error)) from None


def default_node_id() -> str:
    """Return this host's name as a node id."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:128].strip("._-")
    return name or "node"


def parse_advertised(text: str) -> str:
    """Return the address to advertise, host or host:port, blank for none; raises ValueError."""
    text = text.strip()
    if text:
        endpoint_of(text, Address("", 1), "")
    return text


def endpoint_of(advertise: str, bound: Address, server: str) -> str:
    """Return the address at which the control plane reaches this agent.

    Given in whole or without a port, else where it listens, else, when it listens everywhere, the address that
    this host has towards the server. Raises ValueError for an address that is none.
    """
    if advertise:
        is_bare = advertise.isdecimal() or ":" not in advertise or _is_ipv6(advertise)
        return str(Address(advertise, bound.port) if is_bare else parse_address(advertise))
    if bound.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return str(bound)
    return str(Address(_towards(parse_address(server)), bound.port))


def _is_ipv6(text: str) -> bool:
    try:
        return isinstance(ipaddress.ip_address(text), ipaddress.IPv6Address)
    except ValueError:
        return False


def _towards(server: Address) -> str:
    """Return our address on the way to the server; nothing is sent."""
    try:
        kind, _, _, _, target = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
