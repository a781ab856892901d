"""From the wire's WorkloadSpec to the stored one: checked while it is converted, so that nothing unchecked gets in.

Two things of the wire are not taken over: `revision_id` of the request (the revision is
computed from the content, so that the same content has the same revision at any time), and
compose files from git (the wire towards agents carries the text of a compose file, nothing
else; such a spec is refused instead of being accepted and never run).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id
from scheduler.domain.workload import Desired, ManagedVolume, Resources, WorkloadSpec
from scheduler.front import fields, vms
from scheduler.front.compose import check_compose
from scheduler.front.metadata import EMBEDDED_VM_KEY, checked_metadata, node_selector
from scheduler.front.validate import MAX_CPU_MILLICORES, MAX_DISK_GB, MAX_MEMORY_MB
from scheduler.pb import control_pb2 as pb

MAX_SPEC_BYTES = 524_288
"""A third of what etcd takes in one value."""
TYPES = {"container": "container", "docker-container": "container", "compose": "compose", "docker-compose": "compose",
         "vm": "vm"}  # fmt: skip
SLOW_BYTES = 8_192
"""Specs beyond this are converted off the event loop: parsing them may take tens of milliseconds."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_PROTOCOLS = {one: one for one in ("tcp", "udp", "sctp")}
_RESTART = {one: one for one in ("no", "always", "on-failure", "unless-stopped")}
_DRIVERS = {"local": "local", "nfs": "nfs", "ceph-rbd": "ceph-rbd", "ceph_rbd": "ceph-rbd"}
_ACCESS = {one.lower(): one for one in ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany")}
_RETAIN = {"delete": "Delete", "retain": "Retain"}
_FS_TYPE = re.compile(r"[a-z0-9]{1,16}")
HOST_IMAGE = "host"


def to_spec(workload_id: str, spec: pb.WorkloadSpec, desired: str) -> WorkloadSpec:
    """Convert a spec. Raises InvalidInput naming the field, "spec.container.ports[0].host_port"."""
    if (size := spec.ByteSize()) > MAX_SPEC_BYTES:
        raise InvalidInput("spec", f"has {size} bytes, at most {MAX_SPEC_BYTES} are allowed")
    kind = fields.choice("spec.type", spec.type, TYPES)
    metadata = checked_metadata("spec.metadata", spec.metadata)
    base = WorkloadSpec(
        id=workload_id,
        name=workload_id,
        type=kind,
        desired_state=desired,
        resources=_resources(spec.resources),
        labels=node_selector("spec.metadata", metadata),
        metadata=metadata,
    )
    _check_member(kind, spec)
    if kind == "container":
        return _container(base, spec.container)
    if kind == "compose":
        return _compose(base, spec.compose)
    return vms.with_vm(base, spec.vm, managed_volumes)


def _check_member(kind: str, spec: pb.WorkloadSpec) -> None:
    given = spec.WhichOneof("workload")
    embedded = EMBEDDED_VM_KEY in spec.metadata
    if embedded and kind != "vm":
        raise InvalidInput(f"spec.metadata.{EMBEDDED_VM_KEY}", f"does not belong to a workload of type {kind}")
    if given == kind or (embedded and given is None):
        return
    if given is None:
        raise InvalidInput(f"spec.{kind}", f"is missing; a workload of type {kind} needs it")
    raise InvalidInput(f"spec.{given}", f"does not belong to a workload of type {kind}; give spec.{kind}")


def _resources(wanted: pb.ResourceRequirements) -> Resources:
    cpu = fields.number("spec.resources.cpu_millicores", wanted.cpu_millicores, 0, MAX_CPU_MILLICORES)
    memory = fields.number("spec.resources.memory_mb", wanted.memory_mb, 0, MAX_MEMORY_MB)
    disk = fields.number("spec.resources.disk_gb", wanted.disk_gb, 0, MAX_DISK_GB)
    return Resources(cpu_usage=cpu / 1000, memory_usage=memory, disk_usage=disk)


def _container(base: WorkloadSpec, wanted: pb.ContainerSpec) -> WorkloadSpec:
    here = "spec.container"
    image = fields.matching(f"{here}.image", wanted.image, _IMAGE, "an image name", 512)
    command = fields.strings(f"{here}.command", wanted.command, 512, 32_768)
    if image == HOST_IMAGE and not (command and command[0].strip()):
        raise InvalidInput(f"{here}.command", "must name the program to run when the image is host")
    return base.replace(
        image=image,
        command=" ".join(command),
        command_list=command,
        env_vars=fields.environment(f"{here}.env", wanted.env),
        ports=_ports(f"{here}.ports", wanted.ports),
        volumes=_mounts(f"{here}.volumes", wanted.volumes),
        managed_volumes=managed_volumes(f"{here}.managed_volumes", wanted.managed_volumes),
        restart_policy=fields.choice(f"{here}.restart_policy", wanted.restart_policy, _RESTART, blank=""),
        privileged=wanted.privileged,
    )


def _ports(field: str, ports: Sequence[pb.Port]) -> tuple[str, ...]:
    """Return "host:container/protocol"; host port 0 leaves the choice to the node."""
    fields.count(field, ports, 128)
    found, taken = [], []
    for i, port in enumerate(ports):
        host = fields.number(f"{field}[{i}].host_port", port.host_port, 0, 65535)
        inside = fields.number(f"{field}[{i}].container_port", port.container_port, 1, 65535)
        protocol = fields.choice(f"{field}[{i}].protocol", port.protocol, _PROTOCOLS, blank="tcp")
        found.append(f"{host}:{inside}/{protocol}")
        taken += [f"{host}/{protocol}"] if host else []
    fields.distinct(field, taken, "host_port")
    return tuple(found)


def _mounts(field: str, mounts: Sequence[pb.VolumeMount]) -> tuple[str, ...]:
    """Return "host:container[:ro]"."""
    fields.count(field, mounts, 128)
    found = []
    for i, mount in enumerate(mounts):
        host = fields.path(f"{field}[{i}].host_path", mount.host_path)
        inside = fields.path(f"{field}[{i}].container_path", mount.container_path)
        found.append(f"{host}:{inside}" + (":ro" if mount.read_only else ""))
    fields.distinct(field, (mount.container_path for mount in mounts), "container_path")
    return tuple(found)


def managed_volumes(field: str, volumes: Sequence[pb.ManagedVolumeSpec]) -> tuple[ManagedVolume, ...]:
    """Convert volumes that the platform keeps; names and mount paths must be distinct."""
    fields.count(field, volumes, 64)
    found = tuple(_managed_volume(f"{field}[{i}]", volume) for i, volume in enumerate(volumes))
    fields.distinct(field, (one.name for one in found), "name")
    fields.distinct(field, (one.mount_path for one in found if one.mount_path), "mount_path")
    return found


def _managed_volume(here: str, wanted: pb.ManagedVolumeSpec) -> ManagedVolume:
    fs_type = wanted.fs_type
    if fs_type:
        fields.matching(f"{here}.fs_type", fs_type, _FS_TYPE, "a file system's name, such as ext4")
    return ManagedVolume(
        name=check_id(f"{here}.name", wanted.name),
        driver=fields.choice(f"{here}.driver", wanted.driver, _DRIVERS, blank="local"),
        size_gb=fields.number(f"{here}.size_gb", wanted.size_gb, 0, MAX_DISK_GB),
        access_mode=fields.choice(f"{here}.access_mode", wanted.access_mode, _ACCESS, blank=""),
        fs_type=fs_type,
        mount_path=fields.path(f"{here}.mount_path", wanted.mount_path) if wanted.mount_path else "",
        read_only=wanted.read_only,
        retain_policy=fields.choice(f"{here}.retain_policy", wanted.retain_policy, _RETAIN, blank="Delete"),
    )


def _compose(base: WorkloadSpec, wanted: pb.ComposeSpec) -> WorkloadSpec:
    here = "spec.compose"
    source = fields.choice(
        f"{here}.source_type", wanted.source_type, {"inline": "inline", "git": "git"}, blank="inline"
    )
    if source == "git":
        raise InvalidInput(f"{here}.source_type", "git is not supported; send the file itself as inline_yaml")
    for name in ("git_repo", "git_ref"):
        if getattr(wanted, name):
            raise InvalidInput(f"{here}.{name}", "belongs to source_type git, which is not supported")
    return base.replace(
        compose_yaml=check_compose(f"{here}.inline_yaml", wanted.inline_yaml),
        env_vars=fields.environment(f"{here}.env", wanted.env),
        project_name=project_name(base.id),
    )


def project_name(workload_id: str) -> str:
    """Name a compose project so that different ids have different names: compose allows only [a-z0-9_-]."""
    plain = re.sub(r"[^a-z0-9_-]", "-", workload_id.lower())
    if plain == workload_id:
        return plain
    return f"{plain}-{hashlib.sha256(workload_id.encode()).hexdigest()[:8]}"


def desired_state(field: str, value: str) -> str:
    """Return Running, Stopped or Deleted; blank means Running."""
    return fields.choice(field, value, {one.lower(): str(one) for one in Desired}, blank=Desired.RUNNING)
