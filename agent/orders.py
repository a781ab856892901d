"""From an apply request to an order: each field checked before anything is kept.

What is wrong with the request itself (id, revision, enums, epoch) raises InvalidRequest and
leaves no trace. What is wrong with the spec becomes an order with a refusal, so that the
workload is seen as failed, with the reason, wherever its state is shown.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from agent.records import Code, ComposeSpec, ContainerSpec, Desired, Failure, Limits, Mount, Order, Port, Volume
from scheduler.pb import agent_pb2

_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_REVISION = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,299}")
LOCAL = "local"
"""The only driver that an agent offers by itself."""
_ENV_NAME = re.compile(r"[^=\x00]{1,256}")
_T = TypeVar("_T")
MAX_TEXT_BYTES = 128 * 1024
"""The kernel takes no longer single argument or variable."""
MAX_ENTRIES = 1024
MAX_YAML_BYTES = 1024 * 1024
MAX_IMAGE_LENGTH = 512
MAX_PATH_LENGTH = 4096
MAX_STOP_AFTER_MS = 366 * 86_400_000
RESTART_POLICIES = ("no", "on-failure", "always", "unless-stopped")
_TYPES = {
    agent_pb2.WORKLOAD_TYPE_CONTAINER: "container",
    agent_pb2.WORKLOAD_TYPE_COMPOSE: "compose",
    agent_pb2.WORKLOAD_TYPE_VM: "vm",
    agent_pb2.WORKLOAD_TYPE_MICROVM: "microvm",
}
_DESIRED = {
    agent_pb2.DESIRED_STATE_RUNNING: Desired.RUNNING,
    agent_pb2.DESIRED_STATE_STOPPED: Desired.STOPPED,
}


class InvalidRequest(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The request cannot be taken; the text names the field."""


class InvalidSpec(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The spec cannot be carried out anywhere; the text names the field."""


def check_id(field: str, value: str) -> str:
    """Return the id, or raise InvalidRequest."""
    if not value.strip():
        raise InvalidRequest(f"{field} must not be blank")
    if not _ID.fullmatch(value):
        shown = value if len(value) <= 140 else value[:140] + "…"  # noqa: PLR2004 - a little more than an id may have
        raise InvalidRequest(
            f"{field} {shown!r} must have 1 to 128 of A-Z a-z 0-9 . _ - and begin and end with a letter or digit"
        )
    return value


def check_epoch(value: int) -> int:
    """Return the assignment epoch, or raise InvalidRequest."""
    if value < 0:
        raise InvalidRequest(f"assignment_epoch {value} must not be negative")
    return value


def check_kept(values: Iterable[str]) -> list[str]:
    """Return the ids of the volumes to be kept, or raise InvalidRequest."""
    found = list(values)
    if len(found) > MAX_ENTRIES or not all(map(_VOLUME.fullmatch, found)):
        raise InvalidRequest("keep_volumes must be ids of volumes")
    return found


def order_of(request: agent_pb2.ApplyWorkloadRequest) -> Order:
    """Return the order that the request carries; raises InvalidRequest."""
    check_id("id", request.id)
    kind = _TYPES.get(request.type)
    if kind is None:
        raise InvalidRequest(f"type {request.type} must be one of CONTAINER, COMPOSE, VM, MICROVM")
    if not _REVISION.fullmatch(request.revision_id):
        raise InvalidRequest("revision_id must have 1 to 128 printable characters")
    desired = _DESIRED.get(request.desired_state)
    if desired is None:
        raise InvalidRequest(f"desired_state {request.desired_state} must be RUNNING or STOPPED")
    spec: ContainerSpec | ComposeSpec | None = None
    limits, refusal = Limits(), None
    try:
        spec = _spec(kind, request.spec)
        limits = _limits(request)
    except InvalidSpec as error:
        refusal = Failure(Code.INVALID_SPECIFICATION, str(error))
    return Order(
        id=request.id,
        type=kind,
        revision=request.revision_id,
        epoch=check_epoch(request.assignment_epoch),
        desired=desired,
        spec=spec,
        limits=limits,
        exclusive=request.exclusive,
        stop_after_ms=_stop_after(request),
        generation=max(0, request.generation),
        refusal=refusal,
    )


def _stop_after(request: agent_pb2.ApplyWorkloadRequest) -> int:
    """Return after how long unheard an exclusive workload must have ended; 0: the agent's own default."""
    if not 0 <= request.stop_after_ms <= MAX_STOP_AFTER_MS:
        raise InvalidRequest(f"stop_after_ms {request.stop_after_ms} must be 0 to {MAX_STOP_AFTER_MS}")
    return request.stop_after_ms


def _spec(kind: str, spec: agent_pb2.WorkloadSpec) -> ContainerSpec | ComposeSpec:
    given = spec.WhichOneof("spec")
    if given is None:
        raise InvalidSpec(f"spec must carry a {kind}")
    if given != kind and not (kind == "microvm" and given == "vm"):
        raise InvalidSpec(f"spec carries a {given}, but the type is {kind}")
    if given == "container":
        return _container(spec.container)
    if given == "compose":
        return _compose(spec.compose)
    raise InvalidSpec(f"runtime not available: this node runs no {kind}")


def _container(spec: agent_pb2.ContainerSpec) -> ContainerSpec:
    if not spec.image.strip():
        raise InvalidSpec("container.image must not be blank")
    _text("container.image", spec.image, MAX_IMAGE_LENGTH)
    if any(c.isspace() for c in spec.image):
        raise InvalidSpec("container.image must not contain blanks")
    policy = spec.restart_policy.policy.strip().lower() or "no"
    if policy not in RESTART_POLICIES:
        raise InvalidSpec(
            f"container.restart_policy.policy {policy[:64]!r} must be one of {', '.join(RESTART_POLICIES)}"
        )
    if spec.restart_policy.max_retry_count < 0:
        raise InvalidSpec("container.restart_policy.max_retry_count must not be negative")
    return ContainerSpec(
        image=spec.image,
        command=_texts("container.command", [*spec.command, *spec.args]),
        env=_env("container.env", spec.env),
        mounts=tuple(_mount(f"container.volumes[{i}]", m) for i, m in enumerate(_bounded("volumes", spec.volumes))),
        ports=_ports(spec.ports),
        restart=policy,
        max_restarts=spec.restart_policy.max_retry_count,
        labels=_labels(spec.labels),
        volumes=_volumes(spec.managed_volumes),
        privileged=spec.privileged,
    )


def _volumes(volumes: Iterable[agent_pb2.ManagedVolumeSpec]) -> tuple[Volume, ...]:
    given = _bounded("container.managed_volumes", volumes)
    found = tuple(_volume(f"container.managed_volumes[{i}]", volume) for i, volume in enumerate(given))
    for what in ("id", "name"):
        names = [getattr(volume, what) for volume in found]
        if len(set(names)) < len(names):
            raise InvalidSpec(f"container.managed_volumes has one {what} twice")
    return found


def _volume(field: str, volume: agent_pb2.ManagedVolumeSpec) -> Volume:
    driver = volume.driver.strip().lower().replace("_", "-") or LOCAL
    identifier = volume.volume_id or f"{driver}:{volume.name}"
    for name, value in (("name", volume.name), ("volume_id", identifier)):
        if not _VOLUME.fullmatch(value):
            raise InvalidSpec(f"{field}.{name} must have 1 to 300 of A-Z a-z 0-9 . _ : -, led by a letter or digit")
    if volume.mount_path:
        _path(f"{field}.mount_path", volume.mount_path)
    return Volume(
        id=identifier,
        name=volume.name,
        driver=driver,
        mount_path=volume.mount_path,
        read_only=volume.read_only,
        retained=volume.retain_policy.strip().lower() == "retain",
    )


def _compose(spec: agent_pb2.ComposeSpec) -> ComposeSpec:
    text = spec.compose_yaml
    if not text.strip():
        raise InvalidSpec("compose.compose_yaml must not be blank")
    if len(text.encode()) > MAX_YAML_BYTES:
        raise InvalidSpec(f"compose.compose_yaml is longer than {MAX_YAML_BYTES} bytes")
    return ComposeSpec(yaml=_unwrap(text), env=_env("compose.env", spec.env))


def _unwrap(text: str) -> str:
    """Return the YAML of a text that may be base64; YAML of a project has a colon, which base64 never has."""
    if ":" in text:
        return text
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise InvalidSpec("compose.compose_yaml is neither YAML of a project nor base64 of it") from None


def _limits(request: agent_pb2.ApplyWorkloadRequest) -> Limits:
    """Return what was committed; else what the container says in the reference's units (cpu_shares = cores x 1000)."""
    given, inner = request.resources, request.spec.container.resources
    limits = Limits(
        given.cpu_millicores or inner.cpu_shares,
        given.memory_mb or -(-inner.memory_bytes // 2**20),
        given.disk_gb,
    )
    for name in ("cpu_millicores", "memory_mb", "disk_gb"):
        value = getattr(limits, name)
        if not 0 <= value < 2**40:
            raise InvalidSpec(f"resources.{name} {value} is out of range")
    return limits


def _mount(field: str, mount: agent_pb2.VolumeMount) -> Mount:
    for name, value in (("host_path", mount.host_path), ("container_path", mount.container_path)):
        _path(f"{field}.{name}", value)
    return Mount(mount.host_path, mount.container_path, mount.read_only)


def _path(field: str, value: str) -> None:
    _text(field, value, MAX_PATH_LENGTH)
    if not value.startswith("/") or ".." in value.split("/") or ":" in value:
        raise InvalidSpec(f"{field} must be an absolute path without '..' and ':'")


def _ports(ports: Iterable[agent_pb2.PortMapping]) -> tuple[Port, ...]:
    """Parse ports; host port 0 leaves the choice to the engine."""
    found: dict[tuple[int, int, str], Port] = {}
    for index, port in enumerate(_bounded("ports", ports)):
        protocol = port.protocol.lower() or "tcp"
        if protocol not in ("tcp", "udp", "sctp"):
            raise InvalidSpec(f"container.ports[{index}].protocol must be tcp, udp or sctp")
        for name, value, least in (("host_port", port.host_port, 0), ("container_port", port.container_port, 1)):
            if not least <= value <= 65535:  # noqa: PLR2004 - the range of a port
                raise InvalidSpec(f"container.ports[{index}].{name} {value} must be {least} to 65535")
        key = (port.host_port, 0 if port.host_port else port.container_port, protocol)
        if key in found:
            raise InvalidSpec(f"container.ports[{index}]: {port.host_port}/{protocol} is given twice")
        found[key] = Port(port.host_port, port.container_port, protocol)
    return tuple(found.values())


def _env(field: str, env: Mapping[str, str]) -> dict[str, str]:
    for name in _bounded(field, env):
        if not _ENV_NAME.fullmatch(name):
            raise InvalidSpec(f"{field} has a name that is blank, too long or contains '='")
        _text(f"{field}[{name}]", env[name], MAX_TEXT_BYTES)
    return dict(env)


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    for name in _bounded("container.labels", labels):
        _text("container.labels", name, 256)
        _text(f"container.labels[{name}]", labels[name], MAX_TEXT_BYTES)
    return dict(labels)


def _texts(field: str, values: Iterable[str]) -> tuple[str, ...]:
    found = tuple(_bounded(field, values))
    for index, value in enumerate(found):
        _text(f"{field}[{index}]", value, MAX_TEXT_BYTES)
    return found


def _text(field: str, value: str, most_bytes: int) -> None:
    if "\x00" in value:
        raise InvalidSpec(f"{field} contains a NUL character")
    if len(value.encode()) >= most_bytes:
        raise InvalidSpec(f"{field} is longer than {most_bytes - 1} bytes")


def _bounded(field: str, values: Iterable[_T]) -> list[_T]:
    found = list(values)
    if len(found) > MAX_ENTRIES:
        raise InvalidSpec(f"{field} has {len(found)} entries, at most {MAX_ENTRIES} are allowed")
    return found
