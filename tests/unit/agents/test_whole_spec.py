"""Every field of the control wire reaches the agent, or is on a list that says why not."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from scheduler.agents.request import apply_request
from scheduler.front.convert import to_spec
from scheduler.pb import agent_pb2
from scheduler.pb import control_pb2 as pb

VOLUME = pb.ManagedVolumeSpec(
    name="v", driver="nfs", size_gb=3, access_mode="ReadWriteMany", fs_type="ext4", mount_path="/v",
    retain_policy="Delete",
)  # fmt: skip
WHOLE = {
    "container": pb.WorkloadSpec(
        type="container",
        resources=pb.ResourceRequirements(cpu_millicores=100, memory_mb=64, disk_gb=1),
        metadata={"team": "a"},
        container=pb.ContainerSpec(
            image="nginx:1",
            command=["serve"],
            env={"A": "1"},
            volumes=[pb.VolumeMount(host_path="/a", container_path="/b")],
            ports=[pb.Port(host_port=80, container_port=81, protocol="tcp")],
            restart_policy="always",
            managed_volumes=[VOLUME],
        ),
    ),
    "compose": pb.WorkloadSpec(
        type="compose",
        resources=pb.ResourceRequirements(cpu_millicores=100, memory_mb=64, disk_gb=1),
        compose=pb.ComposeSpec(inline_yaml="services: {a: {image: x}}", env={"A": "1"}),
    ),
    "vm": pb.WorkloadSpec(
        type="vm",
        vm=pb.VMSpec(
            vcpus=1,
            memory_mb=64,
            os_image="debian",
            disks=[pb.DiskConfig(pool_name="p", size_gb=2, mount_point="vda")],
            networks=[pb.NetworkConfig(bridge="br0", static_ip="10.0.0.1")],
            cloud_init=pb.CloudInitConfig(user_data="u", meta_data="m", network_config="n", vendor_data="v"),
            managed_volumes=[VOLUME],
        ),
    ),
}
OTHER: dict[str, Any] = {
    "protocol": "udp", "restart_policy": "no", "driver": "local", "access_mode": "ReadOnlyMany",
    "retain_policy": "Retain", "static_ip": "10.0.0.2", "inline_yaml": "services: {b: {image: y}}",
    "host_path": "/c", "container_path": "/d", "mount_path": "/e", "fs_type": "xfs",
}  # fmt: skip
ELSEWHERE = {
    "compose.source_type": "the compose file is fetched when it is applied: tests of front/git.py",
    "compose.git_repo": "the same",
    "compose.git_ref": "the same",
    "replicas": "how many copies there are; each copy is a workload of its own to its agent",
    "type": "it says which of the others is meant, and is carried as the type of the request",
}


def leaves(message: Message, path: str = "") -> Iterator[tuple[str, Message, Any]]:
    """Go through all fields that are no messages; of a list, its first entry stands for all."""
    for field in message.DESCRIPTOR.fields:
        here = f"{path}{field.name}"
        value = getattr(message, field.name)
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is None or is_map:
            yield here, message, field
        elif field.is_repeated:
            assert value, f"{here}: the example must have one"
            yield from leaves(value[0], f"{here}.")
        elif message.HasField(field.name):
            yield from leaves(value, f"{here}.")


def change(message: Message, field: Any) -> None:
    """Give a field another value that is allowed."""
    value = getattr(message, field.name)
    if field.is_repeated:
        value.update(Z="9") if field.message_type else value.append("more")
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        setattr(message, field.name, not value)
    elif isinstance(value, str):
        setattr(message, field.name, OTHER.get(field.name, f"{value}x"))
    else:
        setattr(message, field.name, value + 1)


def order(spec: pb.WorkloadSpec) -> bytes:
    """Return what the agent is sent, the revision aside."""
    request = apply_request(to_spec("w", spec, "Running"), desired="Running", epoch=1)
    request.revision_id = ""
    return request.SerializeToString(deterministic=True)


NO_PLACE = {("compose", "metadata"): "the agent's message of a project has no place for it; its file has labels"}
CASES = [
    pytest.param(kind, path, id=f"{kind}: {path}")
    for kind, spec in WHOLE.items()
    for path, _, _ in leaves(spec)
    if path not in ELSEWHERE and (kind, path) not in NO_PLACE
]


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_9_10_each_field_of_the_wire_changes_what_the_agent_is_sent(kind: str, path: str) -> None:
    """Whatever a client says differently, an agent is told differently."""
    spec = pb.WorkloadSpec()
    spec.CopyFrom(WHOLE[kind])
    before = order(spec)
    _, message, field = next(leaf for leaf in leaves(spec) if leaf[0] == path)
    change(message, field)
    assert order(spec) != before


def test_9_10_the_list_of_what_is_not_sent_names_fields_that_exist() -> None:
    """And no other message of the wire is left out of the examples."""
    known = {path for spec in WHOLE.values() for path, _, _ in leaves(spec)}
    assert ELSEWHERE.keys() <= known
    assert {"container", "compose", "vm"} == WHOLE.keys()


def test_1_2_the_login_of_a_vm_reaches_the_agent_where_it_looks_for_it() -> None:
    """As metadata of the VM for the reference system's agent, as fields of cloud-init for others; F84."""
    spec = pb.WorkloadSpec()
    spec.CopyFrom(WHOLE["vm"])
    for name, value in {
        "username": "ada", "ssh_public_key": "ssh-ed25519 AAAA", "password": "hush", "runtime": "firecracker",
        "disk_gb": "9", "host_dev.br0": "eth7",
    }.items():  # fmt: skip
        spec.metadata[f"persys.vm.{name}"] = value
    vm = apply_request(to_spec("w", spec, "Running"), desired="Running", epoch=1).spec.vm
    init = vm.cloud_init_config
    assert (init.username, init.ssh_public_key, init.password) == ("ada", "ssh-ed25519 AAAA", "hush")
    assert vm.metadata["persys.vm.username"] == "ada"
    assert (vm.runtime, vm.disk_gb, vm.networks[0].host_dev_name) == ("firecracker", 9, "eth7")


def test_1_2_a_microvm_is_a_vm_to_its_agent_and_says_what_it_is() -> None:
    """The reference system sends VM plus metadata."""
    spec = pb.WorkloadSpec()
    spec.CopyFrom(WHOLE["vm"])
    spec.type = "firecracker"
    request = apply_request(to_spec("w", spec, "Running"), desired="Running", epoch=1)
    assert request.type == agent_pb2.WORKLOAD_TYPE_VM
    assert (request.spec.vm.metadata["persys.workload.type"], request.spec.vm.runtime) == ("microvm", "firecracker")


def test_F85_the_fields_of_an_embedded_vm_reach_the_agent() -> None:
    """Also those that the wire of clients has no field for."""
    vm = {
        "vcpus": 1,
        "memory_mb": 64,
        "disks": [{"path": "/a.qcow2", "device": "vda", "backing_file": "/base.qcow2", "storage": "pool"}],
        "networks": [{"network": "lan", "bridge": "br0", "host_dev_name": "eth7", "model": "virtio"}],
    }
    packed = base64.b64encode(json.dumps(vm).encode()).decode()
    spec = to_spec("w", pb.WorkloadSpec(type="vm", metadata={"persys.vm_spec_b64": packed}), "Running")
    sent = apply_request(spec, desired="Running", epoch=1).spec.vm
    assert (sent.disks[0].backing_file, sent.disks[0].storage) == ("/base.qcow2", "pool")
    network = sent.networks[0]
    assert (network.network, network.bridge, network.host_dev_name, network.model) == ("lan", "br0", "eth7", "virtio")
