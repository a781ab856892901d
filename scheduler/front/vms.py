"""VMs: from the wire's VMSpec, or from the JSON that clients embed in the metadata, to the stored spec."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable, Sequence
from itertools import product
from string import ascii_lowercase

import msgspec

from scheduler.domain.errors import InvalidInput
from scheduler.domain.workload import CloudInit, ManagedVolume, VmDisk, VmNetwork, VmSpec, WorkloadSpec
from scheduler.front import fields
from scheduler.front.metadata import EMBEDDED_VM_KEY
from scheduler.front.validate import MAX_DISK_GB, MAX_MEMORY_MB
from scheduler.pb import control_pb2 as pb

MAX_VCPUS = 1024
DEFAULT_DISK_GB = 20
MAX_CLOUD_INIT = 65_536

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_BRIDGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAC = re.compile(r"([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}")
_FORMATS = {one: one for one in ("qcow2", "raw", "iso")}
_DISK_TYPES = {one: one for one in ("disk", "cdrom")}
_DOCUMENTS = ("user_data", "meta_data", "network_config", "vendor_data")

ToVolumes = Callable[[str, Sequence[pb.ManagedVolumeSpec]], tuple[ManagedVolume, ...]]


class _Disk(msgspec.Struct):
    path: str = ""
    device: str = ""
    format: str = "qcow2"
    size_gb: int = 0
    type: str = "disk"
    boot: bool = False
    backing_file: str = ""
    storage: str = ""


class _Network(msgspec.Struct):
    network: str = ""
    mac_address: str = ""
    ip_address: str = ""
    host_dev_name: str = ""
    model: str = ""
    bridge: str = ""


class _CloudInit(msgspec.Struct):
    user_data: str = ""
    meta_data: str = ""
    network_config: str = ""
    vendor_data: str = ""


class _Volume(msgspec.Struct):
    name: str = ""
    driver: str = ""
    size_gb: int = 0
    access_mode: str = ""
    fs_type: str = ""
    mount_path: str = ""
    read_only: bool = False
    retain_policy: str = ""


class _Embedded(msgspec.Struct):
    """The JSON of `persys.vm_spec_b64`."""

    name: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    os_image: str = ""
    disks: list[_Disk] = []
    networks: list[_Network] = []
    cloud_init: str = ""
    metadata: dict[str, str] = {}
    cloud_init_config: _CloudInit | None = None
    managed_volumes: list[_Volume] = []


def with_vm(base: WorkloadSpec, wanted: pb.VMSpec, to_volumes: ToVolumes) -> WorkloadSpec:
    """Return the spec with its VM: the embedded one, which is then cut from the metadata, else the wire's."""
    packed = base.metadata.get(EMBEDDED_VM_KEY)
    if packed is None:
        volumes = to_volumes("spec.vm.managed_volumes", wanted.managed_volumes)
        return base.replace(vm=_from_wire(base.id, wanted), managed_volumes=volumes)
    here = f"spec.metadata.{EMBEDDED_VM_KEY}"
    embedded = _unpack(here, packed)
    names = _Volume.__struct_fields__
    as_wire = [pb.ManagedVolumeSpec(**{n: getattr(v, n) for n in names}) for v in _in_range(here, embedded)]
    return base.replace(
        vm=_from_embedded(base.id, here, embedded),
        managed_volumes=to_volumes(f"{here}.managed_volumes", as_wire),
        metadata={k: v for k, v in base.metadata.items() if k != EMBEDDED_VM_KEY},
    )


def _in_range(here: str, embedded: _Embedded) -> list[_Volume]:
    """JSON numbers have no width: check what would not fit into the wire's before it is put there."""
    for i, volume in enumerate(embedded.managed_volumes):
        fields.number(f"{here}.managed_volumes[{i}].size_gb", volume.size_gb, 0, MAX_DISK_GB)
    return embedded.managed_volumes


def _unpack(field: str, packed: str) -> _Embedded:
    try:
        return msgspec.json.decode(base64.b64decode(packed, validate=True), type=_Embedded)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(field, f"must be base64 of the JSON of a VM: {error}") from None


def _from_wire(workload_id: str, wanted: pb.VMSpec) -> VmSpec:
    here = "spec.vm"
    _figures(here, wanted.vcpus, wanted.memory_mb)
    os_image = fields.line(f"{here}.os_image", wanted.os_image, 512)
    if not os_image and not wanted.disks:
        raise InvalidInput(f"{here}.os_image", "must not be blank when there are no disks")
    init = wanted.cloud_init if wanted.HasField("cloud_init") else None
    return VmSpec(
        name=workload_id,
        vcpus=wanted.vcpus,
        memory_mb=wanted.memory_mb,
        os_image=os_image,
        disks=_wire_disks(f"{here}.disks", wanted.disks),
        networks=_wire_networks(f"{here}.networks", wanted.networks),
        cloud_init_config=_cloud_init(f"{here}.cloud_init", *(getattr(init, n) for n in _DOCUMENTS)) if init else None,
    )


def _figures(here: str, vcpus: int, memory_mb: int) -> None:
    fields.number(f"{here}.vcpus", vcpus, 1, MAX_VCPUS)
    fields.number(f"{here}.memory_mb", memory_mb, 1, MAX_MEMORY_MB)


def _wire_disks(field: str, disks: Sequence[pb.DiskConfig]) -> tuple[VmDisk, ...]:
    fields.count(field, disks, 64)
    devices = _devices(field, "mount_point", [disk.mount_point for disk in disks])
    return tuple(
        VmDisk(
            device=device,
            size_gb=fields.number(f"{field}[{i}].size_gb", disk.size_gb, 0, MAX_DISK_GB) or DEFAULT_DISK_GB,
            pool_name=fields.line(f"{field}[{i}].pool_name", disk.pool_name, 128),
            mount_point=disk.mount_point,
        )
        for i, (disk, device) in enumerate(zip(disks, devices, strict=True))
    )


def _devices(field: str, name: str, given: Sequence[str]) -> list[str]:
    """Return the guest's device names: the given ones, and for the rest the first free of vda, vdb, …, vdaa."""
    for i, device in enumerate(given):
        if device:
            fields.matching(f"{field}[{i}].{name}", device, _DEVICE, "a device name such as vda", 32)
    fields.distinct(field, filter(None, given), name)
    letters = [*ascii_lowercase, *("".join(pair) for pair in product(ascii_lowercase, repeat=2))]
    free = (f"vd{letter}" for letter in letters if f"vd{letter}" not in given)
    return [device or next(free) for device in given]


def _wire_networks(field: str, networks: Sequence[pb.NetworkConfig]) -> tuple[VmNetwork, ...]:
    fields.count(field, networks, 32)
    found = []
    for i, network in enumerate(networks):
        if network.bridge:
            fields.matching(f"{field}[{i}].bridge", network.bridge, _BRIDGE, "a bridge's name")
        address = _address(f"{field}[{i}].static_ip", network.static_ip)
        found.append(VmNetwork(network=network.bridge, bridge=network.bridge, dhcp=network.dhcp, ip_address=address))
    return tuple(found)


def _address(field: str, value: str) -> str:
    if value:
        fields.line(field, value, 64)
        try:
            ipaddress.ip_interface(value)
        except ValueError:
            raise InvalidInput(field, f"{fields.shown(value)} must be an IP address, such as 10.0.0.7/24") from None
    return value


def _cloud_init(field: str, *documents: str) -> CloudInit:
    values = {
        name: fields.text(f"{field}.{name}", text, MAX_CLOUD_INIT)
        for name, text in zip(_DOCUMENTS, documents, strict=True)
    }
    return CloudInit(**values)


def _from_embedded(workload_id: str, here: str, wanted: _Embedded) -> VmSpec:
    _figures(here, wanted.vcpus, wanted.memory_mb)
    init = wanted.cloud_init_config
    return VmSpec(
        name=fields.line(f"{here}.name", wanted.name, 128) or workload_id,
        vcpus=wanted.vcpus,
        memory_mb=wanted.memory_mb,
        os_image=fields.line(f"{here}.os_image", wanted.os_image, 512),
        disks=_embedded_disks(f"{here}.disks", wanted.disks),
        networks=_embedded_networks(f"{here}.networks", wanted.networks),
        cloud_init=fields.text(f"{here}.cloud_init", wanted.cloud_init, MAX_CLOUD_INIT),
        cloud_init_config=(
            _cloud_init(f"{here}.cloud_init_config", *(getattr(init, n) for n in _DOCUMENTS)) if init else None
        ),
        metadata=fields.labels(f"{here}.metadata", wanted.metadata, 128, 4_096),
    )


def _embedded_disks(field: str, disks: Sequence[_Disk]) -> tuple[VmDisk, ...]:
    fields.count(field, disks, 64)
    devices = _devices(field, "device", [disk.device for disk in disks])
    return tuple(
        VmDisk(
            path=fields.path(f"{field}[{i}].path", disk.path) if disk.path else "",
            device=device,
            format=fields.choice(f"{field}[{i}].format", disk.format, _FORMATS, blank="qcow2"),
            size_gb=fields.number(f"{field}[{i}].size_gb", disk.size_gb, 0, MAX_DISK_GB) or DEFAULT_DISK_GB,
            type=fields.choice(f"{field}[{i}].type", disk.type, _DISK_TYPES, blank="disk"),
            boot=disk.boot,
            backing_file=fields.path(f"{field}[{i}].backing_file", disk.backing_file) if disk.backing_file else "",
            storage=fields.line(f"{field}[{i}].storage", disk.storage, 128),
        )
        for i, (disk, device) in enumerate(zip(disks, devices, strict=True))
    )


def _embedded_networks(field: str, networks: Sequence[_Network]) -> tuple[VmNetwork, ...]:
    fields.count(field, networks, 32)
    found = []
    for i, one in enumerate(networks):
        if one.network:
            fields.matching(f"{field}[{i}].network", one.network, _BRIDGE, "a network's name")
        for name in ("bridge", "host_dev_name", "model"):
            if getattr(one, name):
                fields.matching(f"{field}[{i}].{name}", getattr(one, name), _BRIDGE, "a name")
        if one.mac_address:
            fields.matching(f"{field}[{i}].mac_address", one.mac_address, _MAC, "a MAC address")
        address = _address(f"{field}[{i}].ip_address", one.ip_address)
        found.append(
            VmNetwork(
                network=one.network,
                mac_address=one.mac_address,
                ip_address=address,
                bridge=one.bridge,
                model=one.model,
                host_dev_name=one.host_dev_name,
            )
        )
    return tuple(found)
