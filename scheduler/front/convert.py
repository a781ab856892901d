"""From the wire's WorkloadSpec to the stored one: checked while it is converted, so that nothing unchecked gets in.

One thing of the wire is not taken over: `revision_id` of the request, for the revision is computed
from the content, so that the same content has the same revision at any time. What is not in the
request itself is added later: the compose file of a git repository (git.py), because the wire
towards agents carries the text of a compose file and nothing else, and bound disks (disks.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.domain import volume
from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id, project_name
from scheduler.domain.policy import EXCLUSIVE_KEY, MAX_REPLICAS, REPLICAS_KEY, is_exclusive, parse_replicas
from scheduler.domain.workload import Desired, ManagedVolume, Resources, WorkloadSpec
from scheduler.front import fields, vms
from scheduler.front.compose import check_compose
from scheduler.front.metadata import EMBEDDED_VM_KEY, checked_metadata, node_selector
from scheduler.front.validate import MAX_CPU_MILLICORES, MAX_DISK_GB, MAX_MEMORY_MB
from scheduler.pb import control_pb2 as pb

MAX_SPEC_BYTES = 524_288
"""A third of what etcd takes in one value."""
TYPES = {"container": "container", "docker-container": "container", "compose": "compose", "docker-compose": "compose",
         "vm": "vm", "microvm": "microvm", "micro-vm": "microvm", "firecracker": "microvm"}  # fmt: skip
SLOW_BYTES = 8_192
"""Specs beyond this are converted off the event loop: parsing them may take tens of milliseconds."""

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_PROTOCOLS = {one: one for one in ("tcp", "udp", "sctp")}
_RESTART = {one: one for one in ("no", "always", "on-failure", "unless-stopped")}
DRIVERS = {"local": "local", "nfs": "nfs", "ceph-rbd": "ceph-rbd", "ceph_rbd": "ceph-rbd", "rbd": "ceph-rbd"}
ACCESS_MODES = {one.lower(): one for one in volume.ACCESS_MODES}
RETAIN_POLICIES = {one.lower(): one for one in (volume.DELETE, volume.RETAIN)}
FS_TYPE = re.compile(r"[a-z0-9]{1,16}")
FS_TYPE_WORDS = "a file system's name, such as ext4"
MAX_VOLUMES = 10
"""Of one workload: they are decided about in one transaction, together with all its other records."""
HOST_IMAGE = "host"


def to_spec(workload_id: str, spec: pb.WorkloadSpec, desired: str) -> WorkloadSpec:
    """Convert a spec. Raises InvalidInput naming the field, "spec.container.ports[0].host_port"."""
    if (size := spec.ByteSize()) > MAX_SPEC_BYTES:
        raise InvalidInput("spec", f"has {size} bytes, at most {MAX_SPEC_BYTES} are allowed")
    kind = fields.choice("spec.type", spec.type, TYPES)
    metadata = checked_metadata("spec.metadata", spec.metadata)
    replicas = _replicas(spec.replicas, metadata.pop(REPLICAS_KEY, ""))
    base = WorkloadSpec(
        id=workload_id,
        name=workload_id,
        type=kind,
        desired_state=desired,
        resources=_resources(spec.resources),
        labels=node_selector("spec.metadata", metadata),
        metadata=metadata,
        replicas=replicas,
    )
    _check_member("vm" if kind == "microvm" else kind, spec)
    if kind == "container":
        return check_exclusive(_container(base, spec.container))
    if kind == "compose":
        return _compose(base, spec.compose)
    return check_exclusive(vms.with_vm(base, spec.vm, managed_volumes))


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


def _replicas(number: int, text: str) -> int:
    """Return how many copies are asked for, by the field or by the policy; 0: it is not said."""
    fields.number("spec.replicas", number, 0, MAX_REPLICAS)
    said = parse_replicas(text) or 0
    if number and said and number != said:
        raise InvalidInput("spec.replicas", f"{number} is not the {said} of spec.metadata.{REPLICAS_KEY}")
    return number or said


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
    found = tuple(_managed_volume(f"{field}[{i}]", each) for i, each in enumerate(volumes))
    return distinct_volumes(field, found)


def distinct_volumes(field: str, volumes: tuple[ManagedVolume, ...]) -> tuple[ManagedVolume, ...]:
    """Return the volumes if they are not too many, and no two have one name or one place."""
    fields.count(field, volumes, MAX_VOLUMES)
    fields.distinct(field, (one.name for one in volumes), "name")
    fields.distinct(field, (one.mount_path for one in volumes if one.mount_path), "mount_path")
    return volumes


def check_exclusive(spec: WorkloadSpec) -> WorkloadSpec:
    """Return the spec unless it allows two copies at once and a volume that only one node may have."""
    once = [v.name for v in spec.managed_volumes if v.access_mode == volume.READ_WRITE_ONCE]
    if once and not is_exclusive(spec):
        raise InvalidInput(
            f"spec.metadata.{EXCLUSIVE_KEY}",
            f"must not be false with volume {once[0]}, which is {volume.READ_WRITE_ONCE}",
        )
    return spec


def _managed_volume(here: str, wanted: pb.ManagedVolumeSpec) -> ManagedVolume:
    fs_type = wanted.fs_type
    if fs_type:
        fields.matching(f"{here}.fs_type", fs_type, FS_TYPE, FS_TYPE_WORDS)
    access_mode = fields.choice(f"{here}.access_mode", wanted.access_mode, ACCESS_MODES, blank="")
    return ManagedVolume(
        name=check_id(f"{here}.name", wanted.name),
        driver=fields.choice(f"{here}.driver", wanted.driver, DRIVERS, blank="local"),
        size_gb=fields.number(f"{here}.size_gb", wanted.size_gb, 0, MAX_DISK_GB),
        access_mode=access_mode,
        fs_type=fs_type,
        mount_path=fields.path(f"{here}.mount_path", wanted.mount_path) if wanted.mount_path else "",
        read_only=wanted.read_only or access_mode == volume.READ_ONLY_MANY,
        retain_policy=fields.choice(f"{here}.retain_policy", wanted.retain_policy, RETAIN_POLICIES, blank="Delete"),
    )


def _compose(base: WorkloadSpec, wanted: pb.ComposeSpec) -> WorkloadSpec:
    here = "spec.compose"
    source = fields.choice(
        f"{here}.source_type", wanted.source_type, {"inline": "inline", "git": "git"}, blank="inline"
    )
    if source == "git":
        return _compose_from_git(base, wanted)
    for name in ("git_repo", "git_ref"):
        if getattr(wanted, name):
            raise InvalidInput(f"{here}.{name}", "belongs to source_type git")
    return base.replace(
        compose_yaml=check_compose(f"{here}.inline_yaml", wanted.inline_yaml),
        env_vars=fields.environment(f"{here}.env", wanted.env),
        project_name=project_name(base.id),
    )


def _compose_from_git(base: WorkloadSpec, wanted: pb.ComposeSpec) -> WorkloadSpec:
    """Return the spec without its compose file, which front/git.py fetches."""
    here = "spec.compose"
    if wanted.inline_yaml:
        raise InvalidInput(f"{here}.inline_yaml", "does not belong to source_type git")
    return base.replace(
        git_repo=fields.line(f"{here}.git_repo", wanted.git_repo, 1024, blank=False),
        git_branch=fields.line(f"{here}.git_ref", wanted.git_ref, 256),
        env_vars=fields.environment(f"{here}.env", wanted.env),
        project_name=project_name(base.id),
    )


def desired_state(field: str, value: str) -> str:
    """Return Running, Stopped or Deleted; blank means Running."""
    return fields.choice(field, value, {one.lower(): str(one) for one in Desired}, blank=Desired.RUNNING)
