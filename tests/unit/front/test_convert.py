"""From the wire's spec to the stored one, where all is well; what is not is in the table of bad input."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import project_name
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import CloudInit, Desired, ManagedVolume, Resources, VmDisk, VmNetwork
from scheduler.front import compose
from scheduler.front.compose import check_compose
from scheduler.front.convert import desired_state, to_spec
from scheduler.pb import control_pb2 as pb


def converted(**fields: object) -> object:
    """Convert a spec called web."""
    return to_spec("web", pb.WorkloadSpec(**fields), Desired.RUNNING)  # type: ignore[arg-type]


def test_a_container_is_taken_over_whole() -> None:
    """Units, strings of ports and volumes, defaults, and nothing dropped."""
    spec = to_spec(
        "web",
        pb.WorkloadSpec(
            type="Docker-Container",
            resources=pb.ResourceRequirements(cpu_millicores=1500, memory_mb=256, disk_gb=3),
            container=pb.ContainerSpec(
                image="registry.local:5000/team/nginx:1.27@sha256:abc",
                command=["nginx", "-g", "daemon off;"],
                env={"A": "1", "B_2": ""},
                volumes=[
                    pb.VolumeMount(host_path="/srv", container_path="/data", read_only=True),
                    pb.VolumeMount(host_path="/opt/x", container_path="/x"),
                ],
                ports=[
                    pb.Port(host_port=8080, container_port=80),
                    pb.Port(host_port=8080, container_port=53, protocol="UDP"),
                    pb.Port(container_port=9000),
                    pb.Port(container_port=9001),
                ],
                restart_policy="On-Failure",
                privileged=True,
                managed_volumes=[
                    pb.ManagedVolumeSpec(name="db", driver="CEPH_RBD", size_gb=5, access_mode="readwriteonce",
                                         fs_type="ext4", mount_path="/db", retain_policy="retain"),
                    pb.ManagedVolumeSpec(name="cache"),
                ],
            ),
            metadata={"team": "a", "fleetbeat.node_selector": "zone=eu, disk=ssd", "allow_move": "true"},
        ),
        Desired.STOPPED,
    )  # fmt: skip
    assert (spec.id, spec.name, spec.type, spec.desired_state) == ("web", "web", "container", "Stopped")
    assert spec.resources == Resources(cpu_usage=1.5, memory_usage=256, disk_usage=3)
    assert spec.image.endswith("@sha256:abc")
    assert (spec.command, spec.command_list) == ("nginx -g daemon off;", ("nginx", "-g", "daemon off;"))
    assert spec.env_vars == {"A": "1", "B_2": ""}
    assert spec.volumes == ("/srv:/data:ro", "/opt/x:/x")
    assert spec.ports == ("8080:80/tcp", "8080:53/udp", "0:9000/tcp", "0:9001/tcp")
    assert (spec.restart_policy, spec.privileged) == ("on-failure", True)
    assert spec.managed_volumes == (
        ManagedVolume(name="db", driver="ceph-rbd", size_gb=5, access_mode="ReadWriteOnce", fs_type="ext4",
                      mount_path="/db", retain_policy="Retain"),
        ManagedVolume(name="cache", driver="local", retain_policy="Delete"),
    )  # fmt: skip
    assert spec.labels == {"zone": "eu", "disk": "ssd"}
    assert spec.metadata["team"] == "a"


def test_a_compose_stack_keeps_its_text_and_has_a_name_of_its_own() -> None:
    """Ids that would become the same project name do not; blank source_type means inline."""
    text = "services:\n  web:\n    image: nginx\n"
    spec = to_spec("Web.1", pb.WorkloadSpec(type="compose", compose=pb.ComposeSpec(inline_yaml=text)), "Running")
    assert spec.compose_yaml == text
    names = {project_name(one) for one in ("web-1", "Web.1", "web.1", "WEB-1")}
    assert len(names) == 4
    assert spec.project_name in names
    assert project_name("web-1") == "web-1"


def test_a_vm_gets_distinct_devices_and_a_size_for_each_disk() -> None:
    """Disks without a device take the free names in order; a size of 0 means 20 GB; os_image is kept."""
    spec = to_spec(
        "vm1",
        pb.WorkloadSpec(
            type="vm",
            vm=pb.VMSpec(
                vcpus=2,
                memory_mb=1024,
                os_image="debian-12",
                disks=[pb.DiskConfig(), pb.DiskConfig(mount_point="vda", size_gb=5, pool_name="fast"), pb.DiskConfig()],
                networks=[pb.NetworkConfig(bridge="br0", dhcp=True), pb.NetworkConfig(static_ip="10.0.0.7/24")],
                cloud_init=pb.CloudInitConfig(user_data="#cloud-config"),
                managed_volumes=[pb.ManagedVolumeSpec(name="data")],
            ),
        ),
        Desired.RUNNING,
    )
    assert spec.vm
    assert (spec.vm.name, spec.vm.vcpus, spec.vm.memory_mb, spec.vm.os_image) == ("vm1", 2, 1024, "debian-12")
    assert spec.vm.disks == (
        VmDisk(device="vdb", size_gb=20),
        VmDisk(device="vda", size_gb=5, pool_name="fast", mount_point="vda"),
        VmDisk(device="vdc", size_gb=20),
    )
    assert spec.vm.networks == (
        VmNetwork(network="br0", bridge="br0", dhcp=True),
        VmNetwork(ip_address="10.0.0.7/24"),
    )
    assert spec.vm.cloud_init_config == CloudInit(user_data="#cloud-config")
    assert [volume.name for volume in spec.managed_volumes] == ["data"]


def test_F85_an_embedded_vm_is_taken_over_whole_without_the_wires_member() -> None:
    """Every field the reference system reads from it; the key is cut from the metadata."""
    vm = {
        "name": "box", "vcpus": 4, "memory_mb": 2048,
        "disks": [{"path": "/d.img", "device": "sda", "format": "raw", "size_gb": 9, "type": "cdrom", "boot": True}],
        "networks": [{"network": "lan", "mac_address": "52:54:00:00:00:01", "ip_address": "10.0.0.2"}],
        "cloud_init": "old", "metadata": {"k": "v"},
        "cloud_init_config": {"user_data": "u", "meta_data": "m", "network_config": "n", "vendor_data": "v"},
        "managed_volumes": [{"name": "data", "driver": "nfs", "size_gb": 1, "read_only": True}],
        "something_new": 1,
    }  # fmt: skip
    packed = base64.b64encode(json.dumps(vm).encode()).decode()
    spec = to_spec("v", pb.WorkloadSpec(type="vm", metadata={"persys.vm_spec_b64": packed}), Desired.RUNNING)
    assert spec.vm
    assert (spec.vm.name, spec.vm.vcpus, spec.vm.cloud_init, spec.vm.metadata) == ("box", 4, "old", {"k": "v"})
    assert spec.vm.disks == (VmDisk(path="/d.img", device="sda", format="raw", size_gb=9, type="cdrom", boot=True),)
    assert spec.vm.networks == (VmNetwork(network="lan", mac_address="52:54:00:00:00:01", ip_address="10.0.0.2"),)
    assert spec.vm.cloud_init_config == CloudInit(user_data="u", meta_data="m", network_config="n", vendor_data="v")
    assert spec.managed_volumes[0].driver == "nfs"
    assert spec.metadata == {}


@pytest.mark.parametrize(
    ("given_as", "means"),
    [("", "Running"), (" ", "Running"), ("running", "Running"), ("STOPPED", "Stopped"), ("Deleted", "Deleted")],
)
def test_desired_states_are_taken_in_any_case(given_as: str, means: str) -> None:
    """Blank means Running."""
    assert desired_state("desired_state", given_as) == means


@given(st.text(max_size=300))
def test_any_text_as_a_compose_file_is_taken_or_refused_with_the_fields_name(text: str) -> None:
    """Never another exception, whatever YAML makes of it."""
    try:
        found = check_compose("f", text)
    except InvalidInput as error:
        found = error.field
    assert found in (text, "f")


def test_anchors_and_merges_of_a_usual_size_are_fine() -> None:
    """People use them in compose files."""
    text = "x-common: &c {image: a, restart: always}\nservices:\n" + "".join(
        f"  s{i}:\n    <<: *c\n" for i in range(50)
    )
    assert check_compose("f", text) == text


def test_a_file_that_expands_for_ever_is_refused_before_it_is_built() -> None:
    """Merges of merges would grow ninefold a line; an alias to what is still open never ends."""
    lines = ["x0: &a0 {k: v}"]
    lines += [f"x{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 30)]
    for text in ("\n".join([*lines, "services: {a: {image: x}}"]), "a: &a [*a]\nservices: {a: {image: x}}"):
        with pytest.raises(InvalidInput, match=str(compose.MAX_ELEMENTS)):
            check_compose("f", text)


@given(
    st.dictionaries(
        st.sampled_from("ABCDEFGH"), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
    )
)
def test_F14_the_order_of_maps_does_not_change_the_revision(env: dict[str, str]) -> None:
    """Revisions are over the content."""
    backwards = dict(reversed(env.items()))
    specs = [
        to_spec("w", pb.WorkloadSpec(type="container", container=pb.ContainerSpec(image="a", env=one)), "Running")
        for one in (env, backwards)
    ]
    assert revision_of(specs[0]) == revision_of(specs[1])
