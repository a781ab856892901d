"""F77: a real front process with real certificates: who gets in, what a change of the files does, who may call what."""

from __future__ import annotations

import pathlib
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2
from scheduler.tls.files import TlsFiles
from tests.support.agent_process import AgentProcess
from tests.support.certificates import Authority, needs_openssl
from tests.support.fronts import error_info, eventually, refused
from tests.support.servers import Server
from tests.support.tls_front import CALL_SECONDS, TlsFront, client_context, control, ending, fleet, settings_of

pytestmark = [pytest.mark.slow, needs_openssl]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
DENIED = grpc.StatusCode.PERMISSION_DENIED
LIST = pb.ListNodesRequest()
NAMES = {"FLEETBEAT_AUTHORIZATION": "names", "FLEETBEAT_OPERATOR_NAMES": "operator,*.gateways.test"}


@pytest.fixture
def ca(tmp_path: pathlib.Path) -> Authority:
    """The CA of front, agents and clients."""
    return Authority(tmp_path / "ca")


@pytest.fixture
def start(
    ca: Authority, tmp_path: pathlib.Path, etcd_server: Server, etcd_prefix: str, redis_server: Server
) -> Iterator[Callable[..., TlsFront]]:
    """Starts a front whose files are in tmp_path/tls, with more settings."""
    started: list[TlsFront] = []

    def start_one(**more: str) -> TlsFront:
        files = ca.issue(tmp_path / "tls", "front-1")
        front = TlsFront(tmp_path, etcd_server, etcd_prefix, redis_server, settings_of(files) | more)
        started.append(front)
        return front.start()

    yield start_one
    with ending(*(front.process for front in started if front.process)):
        pass


async def asked(front: TlsFront, given: TlsFiles | grpc.ChannelCredentials | None) -> pb.ListNodesResponse:
    """List the nodes over a connection of its own."""
    async with front.channel(given) as channel:
        answer: pb.ListNodesResponse = await control(channel).ListNodes(LIST, timeout=CALL_SECONDS)
        return answer


async def test_F77_only_a_certificate_of_the_ca_gets_in(
    start: Callable[..., TlsFront], ca: Authority, tmp_path: pathlib.Path
) -> None:
    """Without one, with one of another CA, an expired one, in plaintext, with TLS 1.1: no. With the right one: yes."""
    front = start()
    right = ca.issue(tmp_path / "right", "gateway")
    await asked(front, right)
    foreign = Authority(tmp_path / "foreign", "other-ca").sign("gateway")
    expired = ca.issue(tmp_path / "expired", "gateway", expired=True)
    without = grpc.ssl_channel_credentials(ca.ca.read_bytes())
    for given in (without, TlsFiles(right.ca, foreign.cert, foreign.key), expired, None):
        with refused(UNAVAILABLE):
            await asked(front, given)
    with pytest.raises((ssl.SSLError, ConnectionResetError), match=r"EOF|ALERT_PROTOCOL_VERSION|reset"):
        shake_hands(front, right, ssl.TLSVersion.TLSv1_1)
    shake_hands(front, right, ssl.TLSVersion.TLSv1_2)
    await asked(front, right)
    assert "PRIVATE KEY" not in front.log


def shake_hands(front: TlsFront, files: TlsFiles, version: ssl.TLSVersion) -> None:
    """Connect with exactly this version of TLS."""
    context = client_context(files)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else the client itself refuses 1.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 1.1 is asked for because it is one
        context.minimum_version = context.maximum_version = version
    with (
        socket.create_connection(("127.0.0.1", front.port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1"),
    ):
        pass


async def test_F77_replaced_files_are_used_without_a_restart_and_bad_ones_are_not(
    start: Callable[..., TlsFront], ca: Authority, tmp_path: pathlib.Path
) -> None:
    """New connections see the new certificate and CA, old connections go on; of bad files log and metrics tell."""
    front = start()
    client = ca.issue(tmp_path / "client", "gateway")
    async with front.channel(client) as old:
        await control(old).ListNodes(LIST, timeout=CALL_SECONDS)
        assert front.names_shown(client) == "front-1"
        ca.issue(tmp_path / "tls", "front-2")
        assert front.names_shown(client) == "front-2"

        pathlib.Path(tmp_path / "tls" / "tls.crt").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
        assert front.names_shown(client) == "front-2"
        await asked(front, client)
        text = front.metrics()
        assert 'persys_scheduler_certificate_reads_total{result="used"} 1.0' in text
        assert 'persys_scheduler_certificate_reads_total{result="refused"} 1.0' in text
        expires = next(
            float(line.split()[1])
            for line in text.splitlines()
            if line.startswith("persys_scheduler_certificate_expires_timestamp_seconds")
        )
        assert 80_000 < expires - time.time() <= 86_400
        assert "new certificate files are not used" in front.log

        other = Authority(tmp_path / "next-ca", "next-ca")
        other.issue(tmp_path / "tls", "front-3")
        next_client = other.issue(tmp_path / "next-client", "gateway")
        await asked(front, next_client)
        with refused(UNAVAILABLE):
            await asked(front, TlsFiles(next_client.ca, client.cert, client.key))
        await control(old).ListNodes(LIST, timeout=CALL_SECONDS)


async def test_F77_without_usable_files_a_front_does_not_start(
    ca: Authority, tmp_path: pathlib.Path, etcd_server: Server, etcd_prefix: str, redis_server: Server
) -> None:
    """It ends with exit code 1 and names the file; it does not fall back to plaintext."""
    files = ca.issue(tmp_path / "tls", "front")
    pathlib.Path(files.key).unlink()
    front = TlsFront(tmp_path, etcd_server, etcd_prefix, redis_server, settings_of(files))
    process = front.run("front", "scheduler.cli", "front")
    with ending(process):
        assert process.wait(40) == 1
    assert files.key in front.log
    assert "PERSYS_TLS_KEY" in front.log


async def test_F77_plaintext_on_an_open_address_is_warned_of(
    tmp_path: pathlib.Path, etcd_server: Server, etcd_prefix: str, redis_server: Server
) -> None:
    """0.0.0.0 without certificates: the log says so; on the loopback address it does not."""
    for host, is_warned in (("0.0.0.0", True), ("127.0.0.1", False)):  # noqa: S104 - that is what is tested
        folder = tmp_path / host
        folder.mkdir()
        front = TlsFront(folder, etcd_server, etcd_prefix, redis_server, {"PERSYS_GRPC_ADDR": host}).start()
        assert front.process
        with ending(front.process):
            await eventually(lambda front=front: "front listens" in front.log, 20)
        assert ("speaks plaintext" in front.log) is is_warned


async def test_F77_the_command_line_says_what_may_be_wrong_with_a_certificate(
    start: Callable[..., TlsFront], ca: Authority, tmp_path: pathlib.Path
) -> None:
    """One that is over reaches no front, and the message says where to look; a good one lists the nodes."""
    front = start()
    for folder, expired, code in (("good", False, 0), ("over", True, 1)):
        files = ca.issue(tmp_path / folder, "alice", expired=expired, uses="clientAuth")
        options = ("--ca", files.ca, "--cert", files.cert, "--key", files.key)
        command = front.run(folder, "scheduler.cli", "--server", front.address, *options, "node", "ls")
        assert command.wait(60) == code, (tmp_path / f"{folder}.log").read_text()
    assert "--cert" in (tmp_path / "over.log").read_text()


async def test_F77_names_decide_who_may_call_what(
    start: Callable[..., TlsFront], ca: Authority, tmp_path: pathlib.Path
) -> None:
    """A node registers and beats for itself only; operators do the rest; another name of the CA may do nothing."""
    front = start(**NAMES)
    node = ca.issue(tmp_path / "n1", "n-1.node.fleetbeat")
    operator = ca.issue(tmp_path / "op", "operator")
    gateway = ca.issue(tmp_path / "gw", "anything", names="DNS:a.gateways.test")
    stranger = ca.issue(tmp_path / "billing", "billing")
    register = pb.RegisterNodeRequest(
        node_id="n-1",
        grpc_endpoint="127.0.0.1:50051",
        capabilities=pb.NodeCapabilities(cpu_total_millicores=1000, memory_total_mb=1000),
    )
    async with front.channel(node) as channel:
        assert (await control(channel).RegisterNode(register, timeout=CALL_SECONDS)).accepted
        await control(channel).Heartbeat(pb.HeartbeatRequest(node_id="n-1"), timeout=CALL_SECONDS)
        for call, request in (
            (control(channel).Heartbeat, pb.HeartbeatRequest(node_id="n-2")),
            (control(channel).RegisterNode, pb.RegisterNodeRequest(node_id="n-2")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(request, timeout=CALL_SECONDS)
            assert caught.value.code() is DENIED
            assert "node_id: the certificate is one of node 'n-1', the call is for 'n-2'" in str(caught.value.details())
            info = error_info(caught.value)
            assert (info.reason, info.metadata["field"]) == ("FORBIDDEN", "node_id")
        with refused(DENIED, "only operators"):
            await control(channel).DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="w"), timeout=CALL_SECONDS)
        with refused(DENIED, "only operators"):
            async for _ in control(channel).WatchEvents(pb.WatchEventsRequest(), timeout=CALL_SECONDS):
                pass
    for files in (operator, gateway):
        async with front.channel(files) as channel:
            assert [n.node_id for n in (await control(channel).ListNodes(LIST, timeout=CALL_SECONDS)).nodes] == ["n-1"]
            await fleet(channel).GetClusterStatus(fleetbeat_pb2.GetClusterStatusRequest(), timeout=CALL_SECONDS)
            with refused(DENIED, "only nodes"):
                await control(channel).Heartbeat(pb.HeartbeatRequest(node_id="n-1"), timeout=CALL_SECONDS)
    async with front.channel(stranger) as channel:
        with refused(DENIED, "'billing'", "only operators"):
            await control(channel).ListNodes(LIST, timeout=CALL_SECONDS)
        with refused(DENIED, "'billing'", "only nodes"):
            await control(channel).RegisterNode(register, timeout=CALL_SECONDS)
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    assert 'code="PermissionDenied"' in front.metrics()


async def test_F77_work_runs_over_tls_from_end_to_end(
    start: Callable[..., TlsFront], ca: Authority, tmp_path: pathlib.Path
) -> None:
    """Command line, front, worker and agent, each with its certificate; that of node n-2 cannot order n-1's agent."""
    front = start(**NAMES)
    node = ca.issue(tmp_path / "n1", "n-1.node.fleetbeat")
    operator = ca.issue(tmp_path / "op", "operator", uses="clientAuth")
    agent = AgentProcess(
        tmp_path / "agent", [front.address], "--ca", node.ca, "--cert", node.cert, "--key", node.key,
        "--control-plane-names", "front-1",
    )  # fmt: skip
    worker = front.run("worker", "celery", "-A", "tasks", "worker", "-Q", "shard-0", "-c", "1")
    with ending(worker):
        agent.start()
        assert agent.process
        with ending(agent.process):
            async with front.channel(operator) as channel:

                async def is_registered() -> bool:
                    return bool((await control(channel).ListNodes(LIST, timeout=CALL_SECONDS)).nodes)

                await eventually(is_registered, 20)
                certificates = ("--ca", operator.ca, "--cert", operator.cert, "--key", operator.key)
                applied = front.run(
                    "cli", "scheduler.cli", "--server", front.address, *certificates, "apply", "--image", "host",
                    "--id", "web", "--timeout", "60s", "--", "sleep", "600",
                )  # fmt: skip
                assert applied.wait(90) == 0, (tmp_path / "cli.log").read_text() + (tmp_path / "worker.log").read_text()
            await _another_nodes_certificate_orders_nothing(agent, ca.issue(tmp_path / "n2", "n-2.node.fleetbeat"))
    logs = front.log + agent.log + (tmp_path / "worker.log").read_text()
    assert "PRIVATE KEY" not in logs


async def _another_nodes_certificate_orders_nothing(agent: AgentProcess, files: TlsFiles) -> None:
    from scheduler.pb import agent_pb2, agent_pb2_grpc  # noqa: PLC0415 - another "pb" than the rest of this file
    from tests.support.certificates import credentials  # noqa: PLC0415

    async with grpc.aio.secure_channel(f"127.0.0.1:{agent.port}", credentials(files)) as channel:
        service: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(channel)
        with refused(DENIED, "n-2.node.fleetbeat", "--control-plane-names"):
            await service.DeleteWorkload(agent_pb2.DeleteWorkloadRequest(id="web"), timeout=CALL_SECONDS)
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_SECONDS)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
