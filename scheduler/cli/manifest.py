"""What a manifest may say: the wire's field names, and the way to and from the wire."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from google.protobuf import json_format
from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from scheduler.cli.fields import (
    KINDS,
    AbsolutePath,
    Environment,
    Id,
    Image,
    PortNumber,
    Text,
    arguments,
    not_deleted,
    one_of,
    whole,
    workload_type,
)
from scheduler.cli.show import plain_set
from scheduler.domain.policy import MAX_REPLICAS
from scheduler.front.validate import MAX_CPU_MILLICORES, MAX_DISK_GB, MAX_MEMORY_MB
from scheduler.front.vms import MAX_VCPUS
from scheduler.pb import control_pb2


class _Part(BaseModel):
    """Part of a manifest: no unknown fields, no conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Resources(_Part):
    """What a workload asks for; 0 means nothing in particular."""

    cpu_millicores: Annotated[int, whole("an amount of CPU", 0, MAX_CPU_MILLICORES)] = 0
    memory_mb: Annotated[int, whole("an amount of memory", 0, MAX_MEMORY_MB)] = 0
    disk_gb: Annotated[int, whole("an amount of disk", 0, MAX_DISK_GB)] = 0


class Port(_Part):
    """A port of the node that leads to one of the container; without host_port the node chooses."""

    host_port: PortNumber = 0
    container_port: PortNumber
    protocol: Annotated[Literal["tcp", "udp", "sctp"], one_of("tcp", "udp", "sctp")] = "tcp"


class VolumeMount(_Part):
    """A folder of the node that the container sees."""

    host_path: AbsolutePath
    container_path: AbsolutePath
    read_only: bool = False


class ManagedVolume(_Part):
    """A volume that the platform keeps."""

    name: Id
    driver: Annotated[Literal["local", "nfs", "ceph-rbd"], one_of("local", "nfs", "ceph-rbd")] = "local"
    size_gb: Annotated[int, whole("a size", 0, MAX_DISK_GB)] = 0
    access_mode: Text = ""
    fs_type: Text = ""
    mount_path: Text = ""
    read_only: bool = False
    retain_policy: Annotated[Literal["Delete", "Retain"], one_of("Delete", "Retain")] = "Delete"


RestartPolicy = Literal["no", "always", "on-failure", "unless-stopped"]


class Container(_Part):
    """One container, or with the image "host" one process of the node."""

    image: Image
    command: Annotated[list[Text], BeforeValidator(arguments)] = []
    env: Environment = {}
    volumes: list[VolumeMount] = []
    ports: list[Port] = []
    restart_policy: Annotated[RestartPolicy | None, one_of(*get_args(RestartPolicy))] = None
    privileged: bool = False
    managed_volumes: list[ManagedVolume] = []


class Compose(_Part):
    """A compose project."""

    source_type: Annotated[Literal["inline", "git"], one_of("inline", "git")] = "inline"
    git_repo: Text = ""
    git_ref: Text = ""
    inline_yaml: Text = ""
    env: Environment = {}


class Disk(_Part):
    """A disk of a VM."""

    pool_name: Text = ""
    size_gb: Annotated[int, whole("a size", 0, MAX_DISK_GB)] = 0
    mount_point: Text = ""


class Network(_Part):
    """A network interface of a VM."""

    bridge: Text = ""
    dhcp: bool = False
    static_ip: Text = ""


class CloudInit(_Part):
    """The documents a VM starts with."""

    user_data: Text = ""
    meta_data: Text = ""
    network_config: Text = ""
    vendor_data: Text = ""


class Vm(_Part):
    """A virtual machine."""

    vcpus: Annotated[int, whole("a number of CPUs", 1, MAX_VCPUS)]
    memory_mb: Annotated[int, whole("an amount of memory", 1, MAX_MEMORY_MB)]
    disks: list[Disk] = []
    networks: list[Network] = []
    cloud_init: CloudInit | None = None
    os_image: Text = ""
    managed_volumes: list[ManagedVolume] = []


class Manifest(_Part):
    """One workload as its user wants it."""

    id: Id
    type: Annotated[str, BeforeValidator(workload_type)]
    """May be left out: it follows from which of container, compose and vm is there."""
    desired_state: Annotated[
        Literal["Running", "Stopped"], one_of("Running", "Stopped"), BeforeValidator(not_deleted)
    ] = "Running"
    resources: Resources = Resources()
    container: Container | None = None
    compose: Compose | None = None
    vm: Vm | None = None
    metadata: dict[Text, Text] = {}
    replicas: Annotated[int, whole("a number of copies", 1, MAX_REPLICAS)] | None = None
    """May be left out: as many as there are."""

    @model_validator(mode="before")
    @classmethod
    def _infer_type(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") is None:
            kinds = kinds_in(given)
            return {**given, "type": kinds[0] if kinds else "container"}
        return given


def kinds_in(given: dict[str, Any]) -> list[str]:
    """Return which of container, compose and vm are there."""
    return [kind for kind in KINDS if given.get(kind) is not None]


# To and from the wire


def request_of(manifest: Manifest) -> control_pb2.ApplyWorkloadRequest:
    """Return the request that asks for this workload."""
    content = manifest.model_dump(exclude={"id", "desired_state"}, exclude_none=True)
    spec = json_format.ParseDict(content, control_pb2.WorkloadSpec())
    return control_pb2.ApplyWorkloadRequest(workload_id=manifest.id, desired_state=manifest.desired_state, spec=spec)


def manifest_of(request: control_pb2.ApplyWorkloadRequest) -> Manifest:
    """Return the manifest that asks for the same; raises pydantic.ValidationError when none does."""
    return Manifest.model_validate(
        {"id": request.workload_id, "desired_state": request.desired_state, **plain_set(request.spec)}
    )


def dump(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest as plain data, defaults left out."""
    return manifest.model_dump(exclude_defaults=True)
