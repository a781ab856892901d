"""A table of malformed requests: each gets the right code and a message that names the field, and stores nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from scheduler.front import compose, convert, validate
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from tests.support.fronts import Rig, container, error_info, front_on

LONG = "x" * 129
HUGE = 2**63 - 1
BAD_IDS = {
    "blank": "",
    "spaces": "   ",
    "long": LONG,
    "slash": "a/b",
    "leading dash": "-a",
    "trailing dot": "a.",
    "line feed": "a\nb",
    "umlaut": "grün",
    "blank inside": "a b",
}


@dataclass(frozen=True)
class Case:
    """A request, the field at fault, and a word of the message."""

    name: str
    rpc: str
    request: Any
    field: str
    word: str = ""
    in_band: bool = False
    """Told in the answer (success or accepted false), not as an error."""


CASES: list[Case] = []


def bad(name: str, rpc: str, request: Any, field: str, word: str = "", *, in_band: bool = False) -> None:
    """Add a case."""
    CASES.append(Case(f"{rpc}: {name}", rpc, request, field, word, in_band))


# Ids, everywhere

for what, identifier in BAD_IDS.items():
    bad(f"id {what}", "ApplyWorkload", pb.ApplyWorkloadRequest(workload_id=identifier, spec=container()), "workload_id")
    bad(f"id {what}", "DeleteWorkload", pb.DeleteWorkloadRequest(workload_id=identifier), "workload_id")
    bad(f"id {what}", "RetryWorkload", pb.RetryWorkloadRequest(workload_id=identifier), "workload_id")
    bad(f"id {what}", "GetWorkload", pb.GetWorkloadRequest(workload_id=identifier), "workload_id")
    bad(f"id {what}", "GetNode", pb.GetNodeRequest(node_id=identifier), "node_id")
    bad(f"id {what}", "Heartbeat", pb.HeartbeatRequest(node_id=identifier), "node_id")
    bad(f"id {what}", "Fleet.ExplainWorkload", fb.ExplainWorkloadRequest(workload_id=identifier), "workload_id")
    bad(f"id {what}", "Fleet.GetWorkloadHistory", fb.GetWorkloadHistoryRequest(workload_id=identifier), "workload_id")
    bad(f"id {what}", "Fleet.ReadWorkloadLogs", fb.ReadWorkloadLogsRequest(workload_id=identifier), "workload_id")


# RegisterNode


def node(**changes: Any) -> pb.RegisterNodeRequest:
    """Describe a good registration with these changes."""
    capabilities = {"cpu_total_millicores": 1000, "memory_total_mb": 1024} | changes.pop("capabilities", {})
    good = {
        "node_id": "n1",
        "grpc_endpoint": "127.0.0.1:50051",
        "capabilities": pb.NodeCapabilities(**capabilities),
    }
    return pb.RegisterNodeRequest(**(good | changes))


for what, identifier in BAD_IDS.items():
    bad(f"id {what}", "RegisterNode", node(node_id=identifier), "node_id")
for endpoint in ("", "  ", "host", "host:", "host:x", "host:0", "host:65536", "host:-1", "::1:50051", "a b:1", "h:٣"):
    bad(f"endpoint {endpoint!r}", "RegisterNode", node(grpc_endpoint=endpoint), "grpc_endpoint")
for name in ("cpu_total_millicores", "memory_total_mb"):
    for value in (0, -1):
        bad(
            f"{name} {value}",
            "RegisterNode",
            node(capabilities={name: value}),
            f"capabilities.{name}",
            str(value),
            in_band=True,
        )
    bad(f"{name} overflow", "RegisterNode", node(capabilities={name: HUGE}), f"capabilities.{name}")
for name in ("agent_version", "cluster_id", "instance_id"):
    bad(f"{name} long", "RegisterNode", node(**{name: LONG}), name, "129")
    bad(f"{name} control character", "RegisterNode", node(**{name: "a\x1bb"}), name)
bad("label key", "RegisterNode", node(labels={"a b": "x"}), "labels['a b']")
bad("label key blank", "RegisterNode", node(labels={"": "x"}), "labels['']")
bad("label value long", "RegisterNode", node(labels={"zone": "x" * 257}), "labels.zone")
bad("too many labels", "RegisterNode", node(labels={f"k{i}": "" for i in range(65)}), "labels", "65")
for name in ("supported_workload_types", "supported_storage_drivers"):
    bad(f"{name} blank", "RegisterNode", node(capabilities={name: [""]}), f"capabilities.{name}[0]")
    bad(f"{name} characters", "RegisterNode", node(capabilities={name: ["ok", "a/b"]}), f"capabilities.{name}[1]")
    bad(f"{name} many", "RegisterNode", node(capabilities={name: ["a"] * 33}), f"capabilities.{name}", "33")
bad(
    "pool negative",
    "RegisterNode",
    node(capabilities={"storage_pools": [pb.StoragePool(name="p", type="local", total_gb=-1)]}),
    "capabilities.storage_pools[0].total_gb",
)
bad(
    "pool type",
    "RegisterNode",
    node(capabilities={"storage_pools": [pb.StoragePool(name="p", type="tape")]}),
    "capabilities.storage_pools[0].type",
    "local, nfs, iscsi",
)
bad(
    "pool sum overflow",
    "RegisterNode",
    node(capabilities={"storage_pools": [pb.StoragePool(total_gb=validate.MAX_DISK_GB)] * 2}),
    "capabilities.storage_pools",
)

# Heartbeat

for name in (
    "cpu_allocated_millicores",
    "cpu_used_millicores",
    "memory_allocated_mb",
    "memory_used_mb",
    "disk_allocated_gb",
    "disk_used_gb",
):
    for value in (-1, HUGE):
        usage = pb.NodeUsage(**{name: value})
        bad(f"{name} {value}", "Heartbeat", pb.HeartbeatRequest(node_id="n1", usage=usage), f"usage.{name}", str(value))
bad("instance long", "Heartbeat", pb.HeartbeatRequest(node_id="n1", instance_id=LONG), "instance_id")
bad(
    "too many statuses",
    "Heartbeat",
    pb.HeartbeatRequest(node_id="n1", workload_statuses=[pb.WorkloadStatus()] * (validate.MAX_STATUSES + 1)),
    "workload_statuses",
)
bad(
    "too many samples",
    "Heartbeat",
    pb.HeartbeatRequest(node_id="n1", workload_usage=[pb.WorkloadUsageSnapshot()] * (validate.MAX_STATUSES + 1)),
    "workload_usage",
)

# The request of ApplyWorkload


def apply(spec: pb.WorkloadSpec, **more: Any) -> pb.ApplyWorkloadRequest:
    """Ask for a workload."""
    return pb.ApplyWorkloadRequest(workload_id="web", spec=spec, **more)


def in_spec(name: str, spec: pb.WorkloadSpec, field: str, word: str = "") -> None:
    """Add a case of a bad spec."""
    bad(name, "ApplyWorkload", apply(spec), field, word, in_band=True)


bad("desired state", "ApplyWorkload", apply(container(), desired_state="Paused"), "desired_state", "Running, Stopped",
    in_band=True)  # fmt: skip
bad("desired Deleted", "ApplyWorkload", apply(container(), desired_state="Deleted"), "desired_state", in_band=True)
bad("desired state without spec", "ApplyWorkload", pb.ApplyWorkloadRequest(workload_id="web", desired_state="on"),
    "desired_state", in_band=True)  # fmt: skip
bad("revision long", "ApplyWorkload", apply(container(), revision_id=LONG), "revision_id", in_band=True)

# Specs of any type

in_spec("no type", pb.WorkloadSpec(container=pb.ContainerSpec(image="a")), "spec.type")
in_spec("unknown type", pb.WorkloadSpec(type="pod", container=pb.ContainerSpec(image="a")), "spec.type", "container")
in_spec("container missing", pb.WorkloadSpec(type="container"), "spec.container", "missing")
in_spec("compose missing", pb.WorkloadSpec(type="compose"), "spec.compose", "missing")
in_spec("vm missing", pb.WorkloadSpec(type="vm"), "spec.vm", "missing")
in_spec("other member", pb.WorkloadSpec(type="vm", container=pb.ContainerSpec(image="a")), "spec.container", "vm")
for name in ("cpu_millicores", "memory_mb", "disk_gb"):
    for value in (-1, HUGE):
        wanted = pb.ResourceRequirements(**{name: value})
        in_spec(
            f"{name} {value}",
            pb.WorkloadSpec(type="container", resources=wanted, container=pb.ContainerSpec(image="a")),
            f"spec.resources.{name}",
            str(value),
        )


def with_metadata(**values: str) -> pb.WorkloadSpec:
    """Describe a container with metadata; `__` in a name stands for a dot."""
    spec = container()
    for key, value in values.items():
        spec.metadata[key.replace("__", ".")] = value
    return spec


def with_entries(count: int) -> pb.WorkloadSpec:
    """Describe a container with so many entries of metadata."""
    return with_metadata(**{f"k{i}": "v" for i in range(count)})


in_spec("metadata many", with_entries(129), "spec.metadata", "129")
in_spec("metadata value long", with_metadata(note="x" * 4097), "spec.metadata.note", "4097")
in_spec("metadata key", with_metadata(**{"a b": "x"}), "spec.metadata['a b']")
in_spec("metadata NUL", with_metadata(note="a\0b"), "spec.metadata.note", "NUL")
for key in ("retry_terminal", "failure_reason", "last_action", "reapplyNextAt", "persys.scheduling.pinned_reason"):
    in_spec(f"internal key {key}", with_metadata(**{key: "true"}), f"spec.metadata.{key}", "system")
in_spec("unknown key of ours", with_metadata(fleetbeat__nod="n1"), "spec.metadata.fleetbeat.nod", "known")
in_spec("node", with_metadata(fleetbeat__node="a/b"), "spec.metadata.fleetbeat.node")
in_spec("toleration", with_metadata(fleetbeat__tolerations="a=b:Never"), "spec.metadata.fleetbeat.tolerations")
in_spec("selector", with_metadata(fleetbeat__node_selector="zone"), "spec.metadata.fleetbeat.node_selector")
in_spec("embedded VM elsewhere", with_metadata(persys__vm_spec_b64="e30="), "spec.metadata.persys.vm_spec_b64")
in_spec(
    "oversized",
    container(env={f"K{i}": "x" * 30_000 for i in range(20)}),
    "spec",
    str(convert.MAX_SPEC_BYTES),
)

# Specs of containers

for value in ("", " ", "nginx latest", "-x", "x" * 513, "a\nb", "bild:grün"):
    in_spec(f"image {value[:12]!r}", container(image=value), "spec.container.image")
in_spec("host without command", container(image="host", command=[]), "spec.container.command", "program")
in_spec("host with blank command", container(image="host", command=[" "]), "spec.container.command")
in_spec("command many", container(command=["a"] * 513), "spec.container.command", "513")
in_spec("command NUL", container(command=["a", "b\0"]), "spec.container.command[1]", "NUL")
in_spec("command long", container(command=["a" * 32_769]), "spec.container.command[0]")
for value in ("", "1A", "A=B", "A B", "x" * 257):
    in_spec(f"env name {value[:6]!r}", container(env={value: "x"}), "spec.container.env")
in_spec("env value long", container(env={"A": "x" * 32_769}), "spec.container.env.A")
in_spec("env value NUL", container(env={"A": "x\0"}), "spec.container.env.A", "NUL")
in_spec("env many", container(env={f"A{i}": "" for i in range(1001)}), "spec.container.env", "1001")
for value in (-1, 65_536, 2**31 - 1):
    port = pb.Port(host_port=value, container_port=80)
    in_spec(f"host port {value}", container(ports=[port]), "spec.container.ports[0].host_port", str(value))
for value in (0, -1, 65_536):
    port = pb.Port(host_port=80, container_port=value)
    in_spec(f"container port {value}", container(ports=[port]), "spec.container.ports[0].container_port", str(value))
in_spec(
    "protocol",
    container(ports=[pb.Port(host_port=1, container_port=1, protocol="icmp")]),
    "spec.container.ports[0].protocol",
    "tcp, udp, sctp",
)
in_spec(
    "host port twice",
    container(ports=[pb.Port(host_port=80, container_port=1), pb.Port(host_port=80, container_port=2, protocol="TCP")]),
    "spec.container.ports",
    "80/tcp",
)
in_spec("ports many", container(ports=[pb.Port(container_port=1)] * 129), "spec.container.ports", "129")
in_spec("restart policy", container(restart_policy="sometimes"), "spec.container.restart_policy", "on-failure")
for name in ("host_path", "container_path"):
    for value in ("", "data", "/a/../etc", "/a:b", "/a\nb", "/" + "x" * 1024):
        mount = {"host_path": "/a", "container_path": "/b"} | {name: value}
        in_spec(
            f"mount {name} {value[:8]!r}",
            container(volumes=[pb.VolumeMount(**mount)]),
            f"spec.container.volumes[0].{name}",
        )
in_spec(
    "mount twice",
    container(volumes=[pb.VolumeMount(host_path="/a", container_path="/c")] * 2),
    "spec.container.volumes",
    "twice",
)
for name, value in {
    "name": "a/b",
    "driver": "floppy",
    "size_gb": -1,
    "access_mode": "Always",
    "fs_type": "ext 4",
    "mount_path": "data",
    "retain_policy": "Maybe",
}.items():
    volume = pb.ManagedVolumeSpec(**({"name": "v", "mount_path": "/v"} | {name: value}))
    in_spec(
        f"volume {name}",
        container(managed_volumes=[volume]),
        f"spec.container.managed_volumes[0].{name}",
    )
in_spec("volume size overflow", container(managed_volumes=[pb.ManagedVolumeSpec(name="v", size_gb=HUGE)]),
        "spec.container.managed_volumes[0].size_gb")  # fmt: skip
in_spec("volume blank", container(managed_volumes=[pb.ManagedVolumeSpec()]), "spec.container.managed_volumes[0].name")
in_spec("too many volumes", container(managed_volumes=[pb.ManagedVolumeSpec(name=f"v{i}") for i in range(11)]),
        "spec.container.managed_volumes", "at most 10")  # fmt: skip
ONCE = pb.ManagedVolumeSpec(name="v", access_mode="ReadWriteOnce")
in_spec("ReadWriteOnce and not exclusive",
        pb.WorkloadSpec(type="container", container=pb.ContainerSpec(image="x", managed_volumes=[ONCE]),
                        metadata={"fleetbeat.exclusive": "false"}),
        "spec.metadata.fleetbeat.exclusive", "ReadWriteOnce")  # fmt: skip
in_spec("unknown disk", with_metadata(persys__disk__ids="disk-1"), "spec.metadata.persys.disk.ids", "disk-1")
in_spec("volume twice", container(managed_volumes=[pb.ManagedVolumeSpec(name="v")] * 2),
        "spec.container.managed_volumes", "twice")  # fmt: skip

# Specs of compose stacks


def stack(text: str, **more: Any) -> pb.WorkloadSpec:
    """Describe a compose stack."""
    return pb.WorkloadSpec(type="compose", compose=pb.ComposeSpec(inline_yaml=text, **more))


GOOD = "services:\n  web:\n    image: nginx\n"
HERE = "spec.compose.inline_yaml"
in_spec("compose blank", stack("  \n"), HERE, "blank")
in_spec("compose broken", stack("services:\n  web: [\n"), HERE, "line 3")
in_spec("compose tab", stack("services:\n\tweb: 1\n"), HERE, "line 2")
in_spec("compose list", stack("- a\n- b\n"), HERE, "services")
in_spec("compose without services", stack("version: '3'\n"), HERE, "services")
in_spec("compose empty services", stack("services: {}\n"), HERE, "services")
in_spec("compose service without image", stack("services: {web: {ports: [80]}}\n"), HERE, "services.web")
in_spec("compose deep", stack("services: " + "[" * 40 + "]" * 40), HERE, "nested")
LAUGHS = "".join(f"b{i}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9))
in_spec("compose laughs", stack("a: &a [x]\n" + LAUGHS + GOOD), HERE, "elements")
in_spec("compose no date", stack("services: {web: {image: 2026-99-99}}\n"), HERE, "cannot be read")
in_spec("compose two documents", stack(GOOD + "---\n" + GOOD), HERE, "YAML")
in_spec("compose oversized", stack(GOOD + "# " + "x" * compose.MAX_BYTES), HERE, str(compose.MAX_BYTES))
in_spec("compose source", stack(GOOD, source_type="svn"), "spec.compose.source_type", "inline")
in_spec(
    "compose git", stack("", source_type="git", git_repo="https://x/y"), "spec.compose.git_repo", "FLEETBEAT_GIT_HOSTS"
)
in_spec("compose git and a file", stack(GOOD, source_type="git", git_repo="https://x/y"), "spec.compose.inline_yaml")
in_spec("compose git without a repository", stack("", source_type="git"), "spec.compose.git_repo")
in_spec("compose git_ref", stack(GOOD, git_ref="main"), "spec.compose.git_ref")
in_spec("compose env", stack(GOOD, env={"A B": ""}), "spec.compose.env")

# Specs of VMs


def vm(**changes: Any) -> pb.WorkloadSpec:
    """Describe a VM."""
    good: dict[str, Any] = {"vcpus": 1, "memory_mb": 512, "os_image": "debian-12"}
    return pb.WorkloadSpec(type="vm", vm=pb.VMSpec(**(good | changes)))


for value in (0, -1, 1025):
    in_spec(f"vcpus {value}", vm(vcpus=value), "spec.vm.vcpus", str(value))
for value in (0, -1, HUGE):
    in_spec(f"memory {value}", vm(memory_mb=value), "spec.vm.memory_mb", str(value))
in_spec("nothing to boot", vm(os_image=""), "spec.vm.os_image")
in_spec("disk size", vm(disks=[pb.DiskConfig(size_gb=-1)]), "spec.vm.disks[0].size_gb")
in_spec("disk device", vm(disks=[pb.DiskConfig(mount_point="/data")]), "spec.vm.disks[0].mount_point")
in_spec("disk device twice", vm(disks=[pb.DiskConfig(mount_point="vda")] * 2), "spec.vm.disks", "twice")
in_spec("disks many", vm(disks=[pb.DiskConfig()] * 65), "spec.vm.disks", "65")
in_spec("bridge", vm(networks=[pb.NetworkConfig(bridge="br 0")]), "spec.vm.networks[0].bridge")
in_spec("address", vm(networks=[pb.NetworkConfig(static_ip="10.0.0.300")]), "spec.vm.networks[0].static_ip")
in_spec("cloud-init", vm(cloud_init=pb.CloudInitConfig(user_data="x" * 65_537)), "spec.vm.cloud_init.user_data")
in_spec("vm volume", vm(managed_volumes=[pb.ManagedVolumeSpec(name="")]), "spec.vm.managed_volumes[0].name")


def embedded(text: bytes) -> pb.WorkloadSpec:
    """Describe a VM whose figures stand in its metadata."""
    return pb.WorkloadSpec(type="vm", metadata={"persys.vm_spec_b64": base64.b64encode(text).decode()})


B64 = "spec.metadata.persys.vm_spec_b64"
in_spec("F85 not base64", pb.WorkloadSpec(type="vm", metadata={"persys.vm_spec_b64": "%%%"}), B64)
in_spec("F85 not JSON", embedded(b"{"), B64)
in_spec("F85 wrong type", embedded(b'{"vcpus": "two", "memory_mb": 1}'), B64, "vcpus")
in_spec("F85 no memory", embedded(b'{"vcpus": 1}'), f"{B64}.memory_mb")
for name, value in {"device": "/dev/x", "format": "vhd", "size_gb": -1, "type": "tape", "path": "x"}.items():
    text = json.dumps({"vcpus": 1, "memory_mb": 1, "disks": [{name: value}]}).encode()
    in_spec(f"F85 disk {name}", embedded(text), f"{B64}.disks[0].{name}")
in_spec(
    "F85 disk size beyond any number",
    embedded(b'{"vcpus": 1, "memory_mb": 1, "disks": [{"size_gb": 1e30}]}'),
    B64,
    "size_gb",
)
for name, value in {"mac_address": "1:2", "ip_address": "x", "network": "a b"}.items():
    text = json.dumps({"vcpus": 1, "memory_mb": 1, "networks": [{name: value}]}).encode()
    in_spec(f"F85 network {name}", embedded(text), f"{B64}.networks[0].{name}")
in_spec(
    "F85 volume",
    embedded(json.dumps({"vcpus": 1, "memory_mb": 1, "managed_volumes": [{"name": "v", "size_gb": -1}]}).encode()),
    f"{B64}.managed_volumes[0].size_gb",
)

# Lists and the rest

bad("status", "ListNodes", pb.ListNodesRequest(status="x" * 65), "status")
bad("status", "ListWorkloads", pb.ListWorkloadsRequest(status="a\nb"), "status")
bad("node", "ListWorkloads", pb.ListWorkloadsRequest(node_id="a/b"), "node_id")
bad("page_size", "Fleet.ListNodes", fb.ListNodesRequest(page_size=-1), "page_size", "-1")
bad("page_token", "Fleet.ListNodes", fb.ListNodesRequest(page_token="@@@"), "page_token")  # noqa: S106 - no password
bad("page_token of nothing", "Fleet.ListNodes", fb.ListNodesRequest(page_token="AAAA"), "page_token")  # noqa: S106 - no password
bad("status", "Fleet.ListNodes", fb.ListNodesRequest(status="x" * 65), "status")
bad("page_size", "Fleet.ListWorkloads", fb.ListWorkloadsRequest(page_size=-5), "page_size", "-5")
bad("page_token long", "Fleet.ListWorkloads", fb.ListWorkloadsRequest(page_token="A" * 2000), "page_token")
bad("node", "Fleet.ListWorkloads", fb.ListWorkloadsRequest(node_id="a/b"), "node_id")
bad("limit", "Fleet.GetWorkloadHistory", fb.GetWorkloadHistoryRequest(workload_id="a", limit=-1), "limit", "0 to 1000")
bad("limit large", "Fleet.GetWorkloadHistory", fb.GetWorkloadHistoryRequest(workload_id="a", limit=1001), "limit")
bad("tail", "Fleet.ReadWorkloadLogs", fb.ReadWorkloadLogsRequest(workload_id="a", tail_bytes=-1), "tail_bytes")
bad("tail large", "Fleet.ReadWorkloadLogs", fb.ReadWorkloadLogsRequest(workload_id="a", tail_bytes=HUGE), "tail_bytes")


async def call(rig: Rig, case: Case) -> Any:
    """Send the request; return the answer, or the error."""
    service, _, method = case.rpc.rpartition(".")
    rpc: Callable[[Any], Any] = getattr(rig.fleet if service else rig.control, method)
    try:
        if method == "ReadWorkloadLogs":
            return [chunk async for chunk in rpc(case.request)]
        return await rpc(case.request)
    except grpc.aio.AioRpcError as error:
        return error


def test_the_table_is_large_enough() -> None:
    """The table covers what the issue asks for, and no case stands in it twice."""
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
async def test_F10_F12_a_bad_request_is_refused_by_name_and_stores_nothing(case: Case) -> None:
    """The answer has the right code, names the field, and etcd holds the same bytes before and after."""
    async with front_on() as rig:
        before = await rig.stored()
        answer = await call(rig, case)
        if case.in_band:
            assert not isinstance(answer, Exception), answer
            message = told_in_band(answer)
        else:
            assert isinstance(answer, grpc.aio.AioRpcError), answer
            assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT, answer
            message = answer.details() or ""
            info = error_info(answer)
            assert (info.reason, info.domain) == ("INVALID_INPUT", "fleetbeat.v1")
            assert info.metadata["field"].startswith(case.field.split("[")[0])
        assert message.startswith(case.field), message
        assert case.word in message, message
        assert await rig.stored() == before
        assert not rig.woken


def told_in_band(answer: Any) -> str:
    """Return the message of an answer that says no."""
    if isinstance(answer, pb.RegisterNodeResponse):
        assert not answer.accepted
        return answer.reason
    assert not answer.success
    assert answer.failure_reason == pb.INVALID_SPEC
    return str(answer.error_message)


async def test_an_oversized_message_is_refused_before_it_is_parsed() -> None:
    """A message beyond four MiB gets RESOURCE_EXHAUSTED from the server itself, and stores nothing."""
    async with front_on() as rig:
        before = await rig.stored()
        request = apply(container(env={f"K{i}": "x" * 32_000 for i in range(200)}))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await rig.control.ApplyWorkload(request)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await rig.stored() == before


@pytest.mark.parametrize("method", ["AgentControl/ApplyWorkload", "AgentControl/Heartbeat", "Fleet/ReadWorkloadLogs"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(method: str) -> None:
    """Not an unknown error with a traceback in the log."""
    package = "fleetbeat.v1" if method.startswith("Fleet") else "persys.control.v1"
    async with front_on() as rig, grpc.aio.insecure_channel(f"127.0.0.1:{rig.front.grpc_port}") as channel:
        make = channel.unary_stream if method.endswith("Logs") else channel.unary_unary
        sent = make(f"/{package}.{method}")(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await (sent.read() if method.endswith("Logs") else sent)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "request: is not a" in (error.value.details() or "")
