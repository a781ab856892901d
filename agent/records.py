"""What the agent knows of a workload: the order it was given and the copy that runs.

One JSON file a workload, written before anything rests on it, so that the next start of
the agent finds what this one began. Environment values are among it: owner-only files.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class State(StrEnum):
    """What the agent reports of a workload."""

    PENDING = "Pending"
    RUNNING = "Running"
    STOPPED = "Stopped"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Desired(StrEnum):
    """What the control plane ordered."""

    RUNNING = "Running"
    STOPPED = "Stopped"


class Code(StrEnum):
    """Failure codes of the reference agent, as sent in `failure_reason`."""

    IMAGE_PULL_TIMEOUT = "IMAGE_PULL_TIMEOUT"
    IMAGE_PULL_AUTH_FAILED = "IMAGE_PULL_AUTH_FAILED"
    INVALID_IMAGE = "INVALID_IMAGE"
    NETWORK_TIMEOUT = "NETWORK_TIMEOUT"
    NETWORK_UNREACHABLE = "NETWORK_UNREACHABLE"
    DNS_RESOLUTION_FAILED = "DNS_RESOLUTION_FAILED"
    INSUFFICIENT_RESOURCES = "INSUFFICIENT_RESOURCES"
    STORAGE_FULL = "STORAGE_FULL"
    INVALID_SPECIFICATION = "INVALID_SPECIFICATION"
    INVALID_CONFIGURATION = "INVALID_CONFIGURATION"
    PORT_BIND_CONFLICT = "PORT_BIND_CONFLICT"
    RUNTIME_ERROR = "RUNTIME_ERROR"
    RUNTIME_UNHEALTHY = "RUNTIME_UNHEALTHY"
    RUNTIME_RESOURCE_MISSING = "RUNTIME_RESOURCE_MISSING"
    STORAGE_PROVISION_FAILED = "STORAGE_PROVISION_FAILED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    STOPPED_UNHEARD = "STOPPED_UNHEARD"
    """Ours: it is exclusive, and the control plane had not been heard for its stop_after."""
    SUPERSEDED = "SUPERSEDED"
    """Ours: another agent has this node's id, and with it the workload."""


PERMANENT = frozenset(
    {Code.INVALID_IMAGE, Code.INVALID_SPECIFICATION, Code.INVALID_CONFIGURATION, Code.PORT_BIND_CONFLICT}
)
"""Doing the same again is not expected to help; the reference agent's set."""


class Failure(msgspec.Struct, frozen=True):
    """Why something did not work."""

    code: Code
    message: str

    @property
    def retryable(self) -> bool:
        """Say whether the same order may work later."""
        return self.code not in PERMANENT


class Mount(msgspec.Struct, frozen=True):
    """A host folder or file shown in a container."""

    host_path: str
    container_path: str
    read_only: bool = False


class Volume(msgspec.Struct, frozen=True):
    """A volume that this node keeps for workloads."""

    id: str
    """Names it in the whole cluster; workloads that name the same one share it."""
    name: str
    driver: str = "local"
    mount_path: str = ""
    read_only: bool = False
    retained: bool = False
    """Its data outlives its workloads."""


class Port(msgspec.Struct, frozen=True):
    """A port of the node that leads into a container."""

    host: int
    container: int
    protocol: str = "tcp"


class ContainerSpec(msgspec.Struct, frozen=True, tag="container"):
    """A container, or with image `host` a process of the node."""

    image: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    ports: tuple[Port, ...] = ()
    restart: str = "no"
    max_restarts: int = 0
    """Only for on-failure; 0 means no bound."""
    labels: dict[str, str] = {}
    volumes: tuple[Volume, ...] = ()
    privileged: bool = False


class ComposeSpec(msgspec.Struct, frozen=True, tag="compose"):
    """A compose project."""

    yaml: str
    env: dict[str, str] = {}


class Limits(msgspec.Struct, frozen=True):
    """What the control plane has committed for a workload; 0 means no limit."""

    cpu_millicores: int = 0
    memory_mb: int = 0
    disk_gb: int = 0


class Order(msgspec.Struct, frozen=True):
    """One workload as the control plane wants it on this node."""

    id: str
    type: str
    revision: str
    epoch: int
    """The fencing number of the placement; 0 when the caller gives none."""
    desired: Desired
    spec: ContainerSpec | ComposeSpec | None
    limits: Limits = Limits()
    exclusive: bool = False
    """Two copies of it must never run: it ends by itself when the node is not heard."""
    stop_after_ms: int = 0
    """After so long; only for exclusive workloads."""
    generation: int = 0
    """Of the spec; 0 when the caller gives none."""
    refusal: Failure | None = None
    """Set when this node cannot carry the order out; it is recorded as failed."""


class CopyRef(msgspec.Struct, frozen=True):
    """A process that runs a workload. Pid, start time and boot together never name another one."""

    pid: int
    start_ticks: int
    boot_id: str
    revision: str
    groups: tuple[str, ...] = ()
    """Its control groups, which only it was ever in."""


class Record(msgspec.Struct):
    """What is on disk of one workload."""

    order: Order
    state: State = State.PENDING
    message: str = "accepted"
    failure: Failure | None = None
    process: CopyRef | None = None
    runtimes: tuple[str, ...] = ()
    """Runtimes that may hold something of this workload."""
    volumes: tuple[Volume, ...] = ()
    """All that it has been given and that has not been removed since."""
    kept_volumes: tuple[str, ...] = ()
    """Ids of those whose data stays when it is removed, by the word of the control plane."""
    restarts: int = 0
    exit_code: int | None = None
    deleting: bool = False
    created_at: int = 0
    updated_at: int = 0
