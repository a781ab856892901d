"""Workloads as containers of a real engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from scheduler.pb import agent_pb2 as pb
from scheduler.pb import fleetbeat_pb2
from tests.integration.agent.conftest import Node, a_node
from tests.support.agent_process import order
from tests.support.waiting import eventually

IMAGE = "debian:bookworm-slim"


def docker(*arguments: str) -> str:
    """Run a docker command; return what it says, blank when it fails."""
    try:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def reason_to_skip() -> str:
    """Say what is missing, blank when nothing is."""
    if not docker("version", "--format", "{{.Server.Version}}"):
        return "no Docker engine answers (DOCKER_HOST)"
    return "" if docker("images", "--quiet", IMAGE) else f"the engine has no image {IMAGE}"


REASON = reason_to_skip()
HAS_COMPOSE = not REASON and bool(docker("compose", "version"))
pytestmark = [pytest.mark.docker, pytest.mark.skipif(bool(REASON), reason=REASON)]


@pytest.fixture
async def node(tmp_path: pathlib.Path) -> AsyncIterator[Node]:
    """A node that offers containers."""
    async with a_node(tmp_path, "--docker") as node:
        try:
            yield node
        finally:
            node.agent.kill()
            left = docker("ps", "--all", "--quiet", "--filter", f"label=fleetbeat.agent={node.agent_id}").split()
            if left:
                docker("rm", "--force", "--volumes", *left)


def containers(node: Node, workload_id: str = "w") -> list[str]:
    """Return the ids of the workload's containers, running or not."""
    filters = (f"label=fleetbeat.agent={node.agent_id}", f"label=fleetbeat.workload={workload_id}")
    return docker("ps", "-a", "-q", *(part for f in filters for part in ("--filter", f))).split()


def image(workload_id: str = "w", *command: str, **changes: object) -> pb.ApplyWorkloadRequest:
    """Return a request for a container."""
    return order(workload_id, *(command or ("sleep", "600")), image=IMAGE, **changes)  # type: ignore[arg-type]


async def test_a_node_with_an_engine_offers_containers(node: Node) -> None:
    """In its types, labels and health."""
    request = node.front.registrations[0]
    types = ["container", "compose"] if HAS_COMPOSE else ["container"]
    assert list(request.capabilities.supported_workload_types) == types
    assert request.labels["fleetbeat.runtime.docker"] == "true"
    health = await node.client.service.HealthCheck(pb.HealthCheckRequest())
    assert health.runtime_status["docker"].startswith("available; Docker ")


async def test_a_container_runs_with_what_the_spec_says(node: Node, tmp_path: pathlib.Path) -> None:
    """Command, environment, mounts and limits; named and labelled; the same apply is skipped."""
    (tmp_path / "shared").mkdir()
    request = image("w", "sh", "-c", "echo $COLOR > /shared/out; sleep 600", env={"COLOR": "a b"}, memory_mb=64)
    request.resources.cpu_millicores = 250
    request.spec.container.volumes.add(host_path=str(tmp_path / "shared"), container_path="/shared")
    request.spec.container.ports.add(host_port=21987, container_port=80, protocol="tcp")
    await node.client.apply(request)
    await node.front.reported("w", "Running", 30)
    await eventually((tmp_path / "shared" / "out").exists)
    assert (tmp_path / "shared" / "out").read_text() == "a b\n"
    (container,) = containers(node)
    shown = docker("inspect", "--format", "{{.HostConfig.Memory}} {{.HostConfig.NanoCpus}} {{.Name}}", container)
    assert shown == f"{64 * 2**20} {250 * 10**6} /fleetbeat-w-{node.agent_id[:8]}"
    assert "21987" in docker("inspect", "--format", "{{json .HostConfig.PortBindings}}", container)
    assert (await node.client.apply(request)).skipped
    assert containers(node) == [container]


async def test_F81_a_container_has_its_volume_where_the_spec_says(node: Node) -> None:
    """The data outlives the container and is gone with the workload; who may only read cannot write."""
    data = pb.ManagedVolumeSpec(name="data", mount_path="/data")
    await node.client.apply(order("w", "sh", "-c", "echo kept >> /data/f; sleep 600", image=IMAGE, volumes=[data]))
    folder = node.data / "volumes" / "local_data"
    await eventually((folder / "f").exists, 20, "the container writes")
    data.read_only = True
    command = ("sh", "-c", "cat /data/f; echo x > /data/g; sleep 600")
    await node.client.apply(order("w", *command, image=IMAGE, revision="r2", volumes=[data]))
    await eventually(lambda: any("kept" in docker("logs", c) for c in containers(node)), 20, "it reads")
    assert (folder / "f").read_text() == "kept\n"
    assert not (folder / "g").exists()
    await node.client.delete("w")
    await eventually(lambda: not folder.exists(), 20, "the data is gone")


async def test_9_10_a_privileged_container_runs_only_where_the_agent_allows_it(node: Node) -> None:
    """Elsewhere it is refused by the name of the option."""
    request = order("w", "sleep", "600", image=IMAGE)
    request.spec.container.privileged = True
    await node.client.apply(request)
    status = await node.front.reported("w", "Failed")
    assert "--allow-privileged" in status.message


async def test_a_killed_agent_finds_its_container_again(node: Node) -> None:
    """By its labels, also when the record was lost before; no second one is started."""
    await node.client.apply(image())
    await node.front.reported("w", "Running", 30)
    (container,) = containers(node)
    await node.signal(signal.SIGKILL)
    await node.start()
    await node.front.reported("w", "Running")
    assert (await node.client.apply(image())).skipped
    assert containers(node) == [container]


async def test_a_new_revision_replaces_the_container_and_delete_removes_it(node: Node) -> None:
    """No container of the old revision stays, none at all after the delete."""
    await node.client.apply(image())
    await node.front.reported("w", "Running", 30)
    (old,) = containers(node)
    await node.client.apply(image("w", "sh", "-c", "trap exit TERM; sleep 601 & wait", revision="r2"))
    await eventually(lambda: containers(node) not in ([], [old]), 30)
    await node.front.reported("w", "Running", 30)
    await node.client.delete("w", 1)
    await eventually(lambda: containers(node) == [], 30)


async def test_what_becomes_of_a_container_is_reported(node: Node) -> None:
    """Its exit code; that it vanished; and the same order starts it again."""
    await node.client.apply(image("good", "true"))
    await node.client.apply(image("bad", "sh", "-c", "exit 7"))
    await node.client.apply(image("w"))
    await node.front.reported("good", "Stopped", 30)
    assert (await node.front.reported("bad", "Failed", 30)).message == "exited with code 7"
    await node.front.reported("w", "Running", 30)
    await asyncio.to_thread(docker, "rm", "--force", *containers(node))
    status = await node.front.reported("w", "Unknown", 30)
    assert status.message == "container not found"
    await node.client.apply(image("w"))
    await node.front.reported("w", "Running", 30)


async def test_a_stop_keeps_the_log_and_the_engine_carries_out_the_restart_policy(node: Node) -> None:
    """A crashing container is restarted by the engine; a stopped one stays, and its output can be read."""
    await node.client.apply(image("w", "sh", "-c", "echo once more; sleep 0.3; exit 1", restart="always"))
    (container,) = await _some(node)
    await eventually(lambda: int(docker("inspect", "--format", "{{.RestartCount}}", container) or 0) >= 2, 30)
    await node.client.apply(image("w", "x", restart="always", desired="STOPPED"))
    await node.front.reported("w", "Stopped", 30)
    assert containers(node) == [container]
    request = fleetbeat_pb2.ReadLogsRequest(workload_id="w", tail_bytes=10)
    text = b"".join([c.data async for c in node.client.node_agent.ReadLogs(request)])
    assert text == b"once more\n"


async def _some(node: Node) -> list[str]:
    await eventually(lambda: containers(node), 30)
    return containers(node)


async def test_output_is_followed_without_gaps_or_repeats(node: Node) -> None:
    """Until the container goes."""
    script = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.05; done; sleep 600"
    await node.client.apply(image("w", "sh", "-c", script))
    await node.front.reported("w", "Running", 30)
    seen = b""

    async def follow() -> None:
        nonlocal seen
        request = fleetbeat_pb2.ReadLogsRequest(workload_id="w", follow=True)
        async for chunk in node.client.node_agent.ReadLogs(request):
            seen += chunk.data

    follower = asyncio.create_task(follow())
    await eventually(lambda: b"line 39" in seen, 30)
    assert seen.decode().splitlines() == [f"line {n}" for n in range(40)]
    await node.client.delete("w", 1)
    await asyncio.wait_for(follower, 30)


async def test_an_image_that_cannot_be_had_is_told(node: Node) -> None:
    """Whatever the reason, it fails with a code and names the image."""
    request = order("w", image="127.0.0.1:9/no/such:image")
    await node.client.apply(request)
    status = await node.front.reported("w", "Failed", 60)
    assert "cannot pull image 127.0.0.1:9/no/such:image" in status.message
    assert status.reason.code == "NETWORK_UNREACHABLE"


async def test_a_command_that_the_image_lacks_is_told(node: Node) -> None:
    """And no container stays."""
    await node.client.apply(image("w", "no-such-program"))
    status = await node.front.reported("w", "Failed", 30)
    assert status.reason.code == "INVALID_CONFIGURATION"
    assert containers(node) == []


COMPOSE = """
services:
  web:
    image: debian:bookworm-slim
    command: [sh, -c, "echo web says $GREETING; trap exit TERM; sleep 600 & wait"]
    network_mode: none
  worker:
    image: debian:bookworm-slim
    command: [sh, -c, "trap exit TERM; sleep 600 & wait"]
    network_mode: none
"""


def project(workload_id: str = "w", yaml: str = COMPOSE, **changes: object) -> pb.ApplyWorkloadRequest:
    """Return a request for a compose project."""
    request = order(workload_id, **changes)  # type: ignore[arg-type]
    request.type = pb.WORKLOAD_TYPE_COMPOSE
    request.spec.compose.compose_yaml = yaml
    request.spec.compose.env["GREETING"] = "hello"
    return request


@pytest.mark.skipif(not HAS_COMPOSE, reason="no docker compose")
async def test_a_compose_project_runs_is_found_again_and_goes(node: Node) -> None:
    """All services; one that fails is named; output of all is merged."""
    await node.client.apply(project())
    await node.front.reported("w", "Running", 60)
    assert len(containers(node)) == 2
    await node.signal(signal.SIGKILL)
    await node.start()
    await node.front.reported("w", "Running", 30)
    before = containers(node)
    assert (await node.client.apply(project())).skipped
    assert containers(node) == before
    request = fleetbeat_pb2.ReadLogsRequest(workload_id="w")
    text = b"".join([c.data async for c in node.client.node_agent.ReadLogs(request)])
    assert text == b"web | web says hello\n"
    web = docker("ps", "-q", "--filter", f"label=fleetbeat.agent={node.agent_id}", "--filter", "name=web")
    await asyncio.to_thread(docker, "kill", web)
    status = await node.front.reported("w", "Failed", 30)
    assert status.message == "service web: exited with code 137"
    await node.client.apply(project())
    await node.front.reported("w", "Running", 60)
    await node.client.apply(project(desired="STOPPED"))
    await node.front.reported("w", "Stopped", 60)
    await node.client.delete("w", 1)
    await eventually(lambda: containers(node) == [], 60)


@pytest.mark.skipif(not HAS_COMPOSE, reason="no docker compose")
@pytest.mark.parametrize(
    ("yaml", "text"),
    [
        ("services: {web: {imagine: x}}", "docker compose config"),
        ("services: {}\nvolumes: {}", "no service"),
        ("web: [", "docker compose config"),
    ],
)
async def test_a_compose_file_that_is_none_is_told(node: Node, yaml: str, text: str) -> None:
    """INVALID_SPECIFICATION, with what docker compose says."""
    await node.client.apply(project(yaml=yaml))
    status = await node.front.reported("w", "Failed", 60)
    assert status.reason.code == "INVALID_SPECIFICATION"
    assert text in status.message


async def test_an_engine_that_goes_away_leaves_an_unknown_state(tmp_path: pathlib.Path) -> None:
    """Nothing is given up: when it answers again, the container is found."""
    relay = tmp_path / "relay.sock"
    command = [sys.executable, "-c", RELAY, str(relay), _socket()]
    process = subprocess.Popen(command)
    try:
        await eventually(relay.exists)
        async with a_relayed_node(tmp_path, relay) as node:
            await node.client.apply(image())
            await node.front.reported("w", "Running", 30)
            process.kill()
            process.wait()
            relay.unlink()
            await node.front.reported("w", "Unknown", 30)
            process = subprocess.Popen(command)
            await node.front.reported("w", "Running", 30)
            assert len(containers(node)) == 1
            await node.client.delete("w", 1)
            await eventually(lambda: containers(node) == [], 30)
    finally:
        process.kill()
        process.wait()


RELAY = """
import asyncio, sys
async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data); await writer.drain()
    writer.close()
async def serve(reader, writer):
    far_reader, far_writer = await asyncio.open_unix_connection(sys.argv[2])
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)
async def main():
    await (await asyncio.start_unix_server(serve, sys.argv[1])).serve_forever()
asyncio.run(main())
"""


def _socket() -> str:
    address = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not address.startswith("unix://"):
        pytest.skip("the engine is not on a local socket")
    return address.removeprefix("unix://")


@contextlib.asynccontextmanager
async def a_relayed_node(folder: pathlib.Path, relay: pathlib.Path) -> AsyncIterator[Node]:
    """Run a node whose engine is behind the relay."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{relay}")
        async with a_node(folder, "--docker") as node:
            patch.undo()
            yield node
