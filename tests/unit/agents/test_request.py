"""From a spec to the apply request."""

from __future__ import annotations

from scheduler.agents.request import apply_request, project_name
from scheduler.domain.workload import CloudInit, ManagedVolume, Resources, VmDisk, VmNetwork, VmSpec, WorkloadSpec
from scheduler.pb import agent_pb2

RESOURCES = Resources(cpu_usage=1.5, memory_usage=512, disk_usage=3)


def container(**fields: object) -> WorkloadSpec:
    """Return a container's spec."""
    return WorkloadSpec(**{"id": "web", "type": "container", "revision_id": "r1", "image": "nginx", **fields})


def test_F8_a_container_reaches_the_agent_whole() -> None:
    """Every field of the spec, in the reference system's units, and our two additions."""
    spec = container(
        command_list=("sh", "-c", "sleep 1"),
        command="sh -c sleep 1",
        env_vars={"A": "1"},
        ports=("8080:80/udp", "443:443"),
        volumes=("/data:/var/data:ro", "/srv:/srv"),
        restart_policy="always",
        resources=RESOURCES,
        managed_volumes=(ManagedVolume(name="v", driver="nfs", size_gb=2, mount_path="/v", read_only=True),),
    )
    assert apply_request(spec, desired="Running", epoch=9) == agent_pb2.ApplyWorkloadRequest(
        id="web",
        type=agent_pb2.WORKLOAD_TYPE_CONTAINER,
        revision_id="r1",
        desired_state=agent_pb2.DESIRED_STATE_RUNNING,
        assignment_epoch=9,
        generation=1,
        resources=agent_pb2.ResourceRequest(cpu_millicores=1500, memory_mb=512, disk_gb=3),
        spec=agent_pb2.WorkloadSpec(
            container=agent_pb2.ContainerSpec(
                image="nginx",
                command=["sh", "-c", "sleep 1"],
                env={"A": "1"},
                ports=[
                    agent_pb2.PortMapping(host_port=8080, container_port=80, protocol="udp"),
                    agent_pb2.PortMapping(host_port=443, container_port=443, protocol="tcp"),
                ],
                volumes=[
                    agent_pb2.VolumeMount(host_path="/data", container_path="/var/data", read_only=True),
                    agent_pb2.VolumeMount(host_path="/srv", container_path="/srv"),
                ],
                resources=agent_pb2.ResourceLimits(cpu_shares=1500, memory_bytes=512 * 1024 * 1024),
                restart_policy=agent_pb2.RestartPolicy(policy="always"),
                managed_volumes=[
                    agent_pb2.ManagedVolumeSpec(
                        name="v",
                        driver="nfs",
                        size_gb=2,
                        mount_path="/v",
                        read_only=True,
                        retain_policy="Delete",
                        volume_id="nfs:v",
                    )
                ],
            )
        ),
    )


def test_F19_a_stop_is_the_same_request_with_another_desired_state() -> None:
    """Only that field differs."""
    running = apply_request(container(), desired="Running", epoch=1)
    stopped = apply_request(container(), desired="Stopped", epoch=1)
    assert stopped.desired_state == agent_pb2.DESIRED_STATE_STOPPED
    stopped.desired_state = agent_pb2.DESIRED_STATE_RUNNING
    assert running == stopped


def test_9_21_internal_keys_do_not_become_container_labels() -> None:
    """The user's own metadata does."""
    metadata = {
        "team": "a", "persys.vm.password": "x", "fleetbeat.node": "n-1", "last_error": "boom", "usage_source": "x",
        "container.stderr": "secret", "retry_terminal": "true",
    }  # fmt: skip
    request = apply_request(container(metadata=metadata, labels={"zone": "a"}), desired="Running", epoch=1)
    assert dict(request.spec.container.labels) == {"team": "a"}


def test_F8_a_command_line_is_split_when_there_is_no_list() -> None:
    """Records of the reference system may only have the joined text."""
    request = apply_request(container(command="sleep  5"), desired="Running", epoch=1)
    assert list(request.spec.container.command) == ["sleep", "5"]


def test_F8_compose_carries_its_text_and_a_project_of_its_own() -> None:
    """compose_yaml wins over compose; env goes along."""
    spec = WorkloadSpec(
        id="Shop.1", type="docker-compose", compose_yaml="c2VydmljZXM6IHt9", compose="x", env_vars={"A": "1"}
    )
    request = apply_request(spec, desired="Running", epoch=1)
    assert request.type == agent_pb2.WORKLOAD_TYPE_COMPOSE
    assert request.spec.compose == agent_pb2.ComposeSpec(
        project_name="shop-1", compose_yaml="c2VydmljZXM6IHt9", env={"A": "1"}
    )


def test_F8_project_names() -> None:
    """The given name, else the workload's, else its id; never one name for all."""
    base = WorkloadSpec(id="shop", type="compose")
    assert project_name(base.replace(project_name="My Shop!")) == "my-shop"
    assert project_name(base.replace(name="Front")) == "front"
    assert project_name(base.replace(project_name="---")) == "shop"


def test_F84_a_vm_gets_the_reference_defaults() -> None:
    """Device, format, type, size and path are filled in; the four cloud-init documents go along."""
    spec = WorkloadSpec(
        id="vm1",
        type="vm",
        resources=RESOURCES,
        vm=VmSpec(
            disks=(
                VmDisk(),
                VmDisk(device="vda", format="raw", size_gb=5, boot=True),
                VmDisk(path="/a.iso", format="iso", type="cdrom", device="SDA"),
            ),
            networks=(VmNetwork(bridge="br0", ip_address="10.0.0.2"),),
            cloud_init="#cloud-config",
            cloud_init_config=CloudInit(user_data="u", meta_data="m", network_config="n", vendor_data="v"),
            metadata={"k": "v"},
        ),
        metadata={"persys.vm.runtime": "firecracker", "persys.vm.disk_gb": "9"},
    )
    request = apply_request(spec, desired="Running", epoch=1)
    assert request.type == agent_pb2.WORKLOAD_TYPE_VM
    vm = request.spec.vm
    assert (vm.name, vm.vcpus, vm.memory_mb, vm.runtime, vm.disk_gb) == ("vm1", 2, 512, "firecracker", 9)
    assert [(d.path, d.device, d.format, d.size_gb, d.type, d.boot) for d in vm.disks] == [
        ("/var/lib/libvirt/images/vm1-vda.qcow2", "vda", "qcow2", 20, "disk", False),
        ("/var/lib/libvirt/images/vm1-vdb.img", "vdb", "raw", 5, "disk", True),
        ("/a.iso", "SDA", "iso", 20, "cdrom", False),
    ]
    assert [(n.network, n.bridge, n.ip_address) for n in vm.networks] == [("br0", "br0", "10.0.0.2")]
    assert vm.cloud_init == "#cloud-config"
    assert vm.cloud_init_config == agent_pb2.CloudInitConfig(
        user_data="u", meta_data="m", network_config="n", vendor_data="v"
    )
    assert dict(vm.metadata) == {"k": "v"}


def test_F84_an_image_without_disks_stays_without() -> None:
    """The agent makes the disk from the image."""
    spec = WorkloadSpec(id="vm1", type="vm", vm=VmSpec(vcpus=2, memory_mb=256, os_image="debian-13"))
    vm = apply_request(spec, desired="Running", epoch=1).spec.vm
    assert (vm.os_image, len(vm.disks), vm.vcpus, vm.memory_mb) == ("debian-13", 0, 2, 256)
