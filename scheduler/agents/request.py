"""From a spec to the apply request, with the reference system's defaults but none of its leaks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from scheduler.domain.port import parse_port
from scheduler.domain.volume import volume_id
from scheduler.domain.workload import CloudInit, Desired, ManagedVolume, VmDisk, VmNetwork, VmSpec, WorkloadSpec
from scheduler.pb import agent_pb2
from scheduler.placement.request import request_of, workload_type

IMAGE_FOLDER = "/var/lib/libvirt/images"
VM_DISK_GB = 20
_TYPES = {
    "container": agent_pb2.WORKLOAD_TYPE_CONTAINER,
    "compose": agent_pb2.WORKLOAD_TYPE_COMPOSE,
    "vm": agent_pb2.WORKLOAD_TYPE_VM,
    "microvm": agent_pb2.WORKLOAD_TYPE_VM,
}
LOGIN_KEYS = {
    "username": "persys.vm.username", "ssh_public_key": "persys.vm.ssh_public_key", "password": "persys.vm.password",
}  # fmt: skip
"""Metadata that says who may log in to a VM, by the field of cloud-init that it becomes."""
HOST_DEVICE_PREFIX = "persys.vm.host_dev."
"""Metadata that gives a network of a VM a device of the host; the network's name follows."""
TYPE_KEY = "persys.workload.type"
_NOT_IN_A_PROJECT = re.compile(r"[^a-z0-9_-]")
_INTERNAL_PREFIXES = ("persys.", "fleetbeat.")
_INTERNAL = frozenset({
    "allow_move", "assignment_reason", "created_at", "disk_ids", "drift_reason", "drift_reconciled_at",
    "failureGraceUntil", "failureObservedAt", "failure_reason", "lastApplyRequestAt", "lastApplyRevision",
    "lastLaunchTime", "lastReconciliation", "lastReconciliationAction", "lastReconciliationSuccess", "last_action",
    "last_error", "last_runtime_error", "managed_storage_state", "previous_node", "reapplyAttempts", "reapplyNextAt",
    "reason_code", "reason_last_transition", "reason_message", "reason_next_retry_at", "reason_retryable",
    "reconciliationRetryCount", "retry_terminal", "retry_terminal_reason", "scheduler_last_error",
    "terminal_failure_reason", "vm.primary_ip",
})  # fmt: skip
"""Keys of the reference system's own bookkeeping, which its records may carry; never container labels."""
_INTERNAL_STARTS = ("container.", "usage_", *_INTERNAL_PREFIXES)


def apply_request(
    spec: WorkloadSpec, *, desired: str, epoch: int, stop_after_ms: int = 0
) -> agent_pb2.ApplyWorkloadRequest:
    """Return the request that orders this spec, running or stopped, for an assignment.

    stop_after_ms: for an exclusive workload; 0: it is none.
    """
    asked = request_of(spec)
    stopped = desired == Desired.STOPPED
    return agent_pb2.ApplyWorkloadRequest(
        id=spec.id,
        type=_TYPES.get(workload_type(spec.type), agent_pb2.WORKLOAD_TYPE_UNSPECIFIED),
        revision_id=spec.revision_id,
        desired_state=agent_pb2.DESIRED_STATE_STOPPED if stopped else agent_pb2.DESIRED_STATE_RUNNING,
        spec=_spec(spec),
        assignment_epoch=epoch,
        resources=agent_pb2.ResourceRequest(
            cpu_millicores=asked.cpu_millicores, memory_mb=asked.memory_mb, disk_gb=asked.disk_gb
        ),
        exclusive=stop_after_ms > 0,
        stop_after_ms=stop_after_ms,
        generation=spec.generation,
    )


def _spec(spec: WorkloadSpec) -> agent_pb2.WorkloadSpec:
    kind = workload_type(spec.type)
    if kind == "compose":
        return agent_pb2.WorkloadSpec(compose=_compose(spec))
    if kind == "container":
        return agent_pb2.WorkloadSpec(container=_container(spec))
    return agent_pb2.WorkloadSpec(vm=_vm(spec, spec.vm or VmSpec()))


def _container(spec: WorkloadSpec) -> agent_pb2.ContainerSpec:
    return agent_pb2.ContainerSpec(
        image=spec.image,
        command=spec.command_list or spec.command.split(),
        env=spec.env_vars,
        volumes=[_mount(text) for text in spec.volumes],
        ports=[_port(text) for text in spec.ports],
        resources=agent_pb2.ResourceLimits(
            cpu_shares=round(spec.resources.cpu_usage * 1000),
            memory_bytes=spec.resources.memory_usage * 1024 * 1024,
        ),
        restart_policy=agent_pb2.RestartPolicy(policy=spec.restart_policy),
        labels={k: v for k, v in spec.metadata.items() if not _is_internal(k)},
        managed_volumes=_volumes(spec.managed_volumes),
        privileged=spec.privileged,
    )


def _is_internal(key: str) -> bool:
    return key in _INTERNAL or key.startswith(_INTERNAL_STARTS)


def _mount(text: str) -> agent_pb2.VolumeMount:
    """Parse "host:container[:ro]"."""
    host, _, rest = text.partition(":")
    container, _, mode = rest.partition(":")
    return agent_pb2.VolumeMount(host_path=host, container_path=container, read_only=mode == "ro")


def _port(text: str) -> agent_pb2.PortMapping:
    port = parse_port(text)
    return agent_pb2.PortMapping(host_port=port.host, container_port=port.container, protocol=port.protocol)


def _volumes(volumes: Iterable[ManagedVolume]) -> list[agent_pb2.ManagedVolumeSpec]:
    return [
        agent_pb2.ManagedVolumeSpec(
            name=v.name,
            driver=v.driver,
            size_gb=v.size_gb,
            access_mode=v.access_mode,
            fs_type=v.fs_type,
            mount_path=v.mount_path,
            read_only=v.read_only,
            retain_policy=v.retain_policy,
            volume_id=volume_id(v),
        )
        for v in volumes
    ]


def _compose(spec: WorkloadSpec) -> agent_pb2.ComposeSpec:
    return agent_pb2.ComposeSpec(
        project_name=project_name(spec), compose_yaml=spec.compose_yaml or spec.compose, env=spec.env_vars
    )


def project_name(spec: WorkloadSpec) -> str:
    """Return the compose project: the given name, else the workload's, else its id, which is its own on every node."""
    for name in (spec.project_name, spec.name, spec.id):
        cleaned = _NOT_IN_A_PROJECT.sub("-", name.lower()).strip("-_")
        if cleaned:
            return cleaned
    return "workload"


def _vm(spec: WorkloadSpec, vm: VmSpec) -> agent_pb2.VMSpec:
    asked = request_of(spec)
    return agent_pb2.VMSpec(
        name=vm.name or spec.name or spec.id,
        vcpus=vm.vcpus or -(-asked.cpu_millicores // 1000),
        memory_mb=vm.memory_mb or asked.memory_mb,
        disks=_disks(spec.id, vm.disks),
        networks=[_network(n, spec.metadata) for n in vm.networks],
        cloud_init=vm.cloud_init,
        metadata=_vm_metadata(spec, vm),
        cloud_init_config=_cloud_init(spec, vm),
        managed_volumes=_volumes(spec.managed_volumes),
        os_image=vm.os_image or spec.metadata.get("persys.vm.os_image", ""),
        disk_gb=_whole(spec.metadata.get("persys.vm.disk_gb", "")) or spec.resources.disk_usage,
        runtime=spec.metadata.get("persys.vm.runtime", "") or _runtime(spec),
    )


def _runtime(spec: WorkloadSpec) -> str:
    return "firecracker" if workload_type(spec.type) == "microvm" else ""


def _vm_metadata(spec: WorkloadSpec, vm: VmSpec) -> dict[str, str]:
    """Return the user's metadata, the VM's own, and the login where the reference system's agent looks for it."""
    found = {k: v for k, v in spec.metadata.items() if not _is_internal(k) or k in LOGIN_KEYS.values()}
    if workload_type(spec.type) == "microvm":
        found[TYPE_KEY] = "microvm"
    return {**found, **vm.metadata}


def _cloud_init(spec: WorkloadSpec, vm: VmSpec) -> agent_pb2.CloudInitConfig | None:
    init = vm.cloud_init_config
    login = {name: spec.metadata.get(key, "") for name, key in LOGIN_KEYS.items()}
    if init is None and not any(login.values()):
        return None
    init = init or CloudInit()
    return agent_pb2.CloudInitConfig(
        user_data=init.user_data,
        meta_data=init.meta_data,
        network_config=init.network_config,
        vendor_data=init.vendor_data,
        **login,
    )


def _network(network: VmNetwork, metadata: Mapping[str, str]) -> agent_pb2.NetworkConfig:
    name = network.network or network.bridge
    return agent_pb2.NetworkConfig(
        network=name,
        mac_address=network.mac_address,
        ip_address=network.ip_address,
        host_dev_name=network.host_dev_name or metadata.get(f"{HOST_DEVICE_PREFIX}{name}", ""),
        model=network.model,
        bridge=network.bridge,
        dhcp=network.dhcp,
    )


def _disks(workload_id: str, disks: Iterable[VmDisk]) -> list[agent_pb2.DiskConfig]:
    """Fill in the defaults; a device that an earlier disk has becomes the next free one."""
    taken: set[str] = set()
    found = []
    for disk in disks:
        device = _free_device(disk.device or "vda", taken)
        taken.add(device)
        form = disk.format or "qcow2"
        ending = "img" if form == "raw" else form if form == "iso" else "qcow2"
        found.append(
            agent_pb2.DiskConfig(
                path=disk.path or f"{IMAGE_FOLDER}/{workload_id}-{device.lower()}.{ending}",
                device=device,
                format=form,
                size_gb=disk.size_gb or VM_DISK_GB,
                type=disk.type or "disk",
                boot=disk.boot,
                backing_file=disk.backing_file,
                storage=disk.storage,
                pool_name=disk.pool_name,
            )
        )
    return found


def _free_device(device: str, taken: set[str]) -> str:
    if device not in taken:
        return device
    letters = (chr(c) for c in range(ord("a"), ord("z") + 1))
    return next((f"{device[:-1]}{c}" for c in letters if f"{device[:-1]}{c}" not in taken), device)


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
