"""One agent, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from agent import VERSION, host
from agent.actions import Actions
from agent.control import About, Link
from agent.guard import Guard
from agent.guardian import boot_seconds
from agent.options import Address, Options, endpoint_of
from agent.process.cgroups import Cgroups, mounts
from agent.process.runtime import ProcessRuntime
from agent.roster import Roster
from agent.runtimes import Runtimes
from agent.service import AgentService, CallerCheck, IdentityCheck, NodeAgentService
from agent.shelf import FolderInUse, Identity, Shelf
from agent.telemetry import Telemetry
from agent.workload import SUPERSEDED, Parts
from scheduler.pb import agent_pb2_grpc, fleetbeat_pb2_grpc
from scheduler.tls.credentials import ChannelCredentials, server_credentials
from scheduler.tls.files import BadFiles, FollowedFiles

if TYPE_CHECKING:
    from agent.engine.offer import DockerOffer

log = structlog.get_logger(__name__)

_SERVICES = ("persys.agent.v1.AgentService", "fleetbeat.v1.NodeAgent")
_ADOPT_SECONDS = 10.0
_STOP_SECONDS = 1.0
_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a port has one agent
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
)


class CannotStart(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """Something that the agent needs cannot be had; the text says what."""


@dataclass
class Agent:
    """The parts of one agent."""

    options: Options
    identity: Identity
    shelf: Shelf
    runtimes: Runtimes
    process: ProcessRuntime
    roster: Roster
    actions: Actions
    telemetry: Telemetry
    docker: DockerOffer | None
    guard: Guard
    certificates: FollowedFiles | None = None
    link: Link | None = None

    def types(self) -> list[str]:
        """Return the types of workloads that can run here now."""
        found = ["container"] if "docker" in self.runtimes or self.process.is_offered else []
        return [*found, "compose"] if "compose" in self.runtimes else found

    def labels(self) -> dict[str, str]:
        """Return the operator's labels and those that name the runtimes."""
        own = {"fleetbeat.runtime.process": self.process.is_offered}
        own |= {"fleetbeat.runtime.docker": "docker" in self.runtimes}
        return self.options.labels | {name: "true" for name, offered in own.items() if offered}


class Standing:
    """How the agent stands with the control plane, and what follows from that for its workloads."""

    def __init__(self, agent: Agent) -> None:
        """Begin with a good standing."""
        self._agent = agent
        self._superseded_at: float | None = None
        self._gave_up = False

    def heard(self, sent_at: float) -> None:
        """Note that a heartbeat sent then, in seconds since boot, was acknowledged."""
        self._agent.guard.heard(sent_at)

    def accepted(self, lease_seconds: float) -> None:
        """Note that the node is ours, and how long it may be silent."""
        self._agent.guard.lease_seconds = lease_seconds or self._agent.guard.lease_seconds
        self._superseded_at, self._gave_up = None, False

    def superseded(self, stop_after_seconds: float) -> None:
        """Note that another agent has this node's id; when that has lasted for stop_after, nothing may run here."""
        now = boot_seconds()
        self._superseded_at = self._superseded_at or now
        wait_seconds = stop_after_seconds or self._agent.options.stop_after_seconds
        if self._gave_up or now < self._superseded_at + wait_seconds:
            return
        self._gave_up = True
        log.error("superseded_stopping", node=self._agent.options.node_id, workloads=len(self._agent.roster.all()))
        self._agent.roster.give_up_all(SUPERSEDED)


async def run(options: Options) -> None:
    """Run an agent until SIGTERM or SIGINT; raises CannotStart."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    shelf = Shelf(options.data)
    try:
        identity = shelf.open(options.node_id)
    except (OSError, FolderInUse) as error:
        raise CannotStart(f"--data: {error}") from None
    try:
        await _run(build(options, shelf, identity), stop)
    finally:
        shelf.close()


def build(options: Options, shelf: Shelf, identity: Identity) -> Agent:
    """Put an agent together; nothing runs yet."""
    actions, runtimes = Actions(), Runtimes()
    guard = Guard(
        shelf,
        grace_seconds=options.stop_grace_seconds,
        default_stop_after_seconds=options.stop_after_seconds,
    )
    cgroups = Cgroups(identity.agent_id, mounts())
    process = ProcessRuntime(
        identity,
        shelf,
        cgroups,
        allowed=options.allow_host_processes,
        output_most_bytes=options.output_most_bytes,
        not_after=guard.not_after,
    )
    runtimes.offer(process)
    docker = None
    if options.docker:
        from agent.engine.offer import DockerOffer  # noqa: PLC0415 - the SDK is slow to import

        docker = DockerOffer(identity, shelf, allow_privileged=options.allow_privileged)
    version = 0
    agent: Agent

    def changed() -> int:
        nonlocal version
        version += 1
        if agent.link:
            agent.link.changed()
        return version

    parts = Parts(shelf, runtimes, actions, options.stop_grace_seconds, changed, guard)
    roster = Roster(parts, shelf.load_deleted())
    telemetry = Telemetry(runtimes, options.data)
    try:
        certificates = FollowedFiles(options.tls) if options.tls else None
    except BadFiles as error:
        raise CannotStart(f"--ca, --cert and --key: {error}") from None
    agent = Agent(options, identity, shelf, runtimes, process, roster, actions, telemetry, docker, guard, certificates)
    return agent


async def _run(agent: Agent, stop: asyncio.Event) -> None:
    if agent.docker:
        await agent.docker.look(agent.runtimes)
    records = agent.shelf.load_records()
    await agent.guard.open(needed=any(record.order.exclusive for record in records))
    await agent.process.kill_orphans({record.order.id for record in records})
    agent.roster.restore(records)
    await agent.roster.adopted(_ADOPT_SECONDS)
    async with _serving(agent) as bound:
        agent.link = link = await _link(agent, bound)
        log.info("started", version=VERSION, node=agent.options.node_id, listen=str(bound), types=agent.types())
        jobs = [link.run(), agent.process.cut_outputs(), agent.guard.watch()]
        if agent.docker:
            jobs.append(agent.docker.keep_looking(agent.runtimes, link.register_again))
        await _until_stopped(stop, jobs)
        log.info("stopping", stop_workloads=agent.options.stop_workloads_on_exit)
    if agent.options.stop_workloads_on_exit:
        await agent.roster.stop_all()
    await agent.roster.close()
    agent.process.close()
    if agent.docker:
        agent.docker.close()
    log.info("stopped")


async def _link(agent: Agent, bound: Address) -> Link:
    options = agent.options
    about = About(
        node_id=options.node_id,
        endpoint=await asyncio.to_thread(endpoint_of, options.advertise, bound, options.servers[0]),
        capacity=host.detect(
            options.data,
            cpu_millicores=options.cpu_millicores,
            memory_mb=options.memory_mb,
            disk_gb=options.disk_gb,
        ),
        labels=agent.labels,
        workload_types=agent.types,
        agent_id=agent.identity.agent_id,
    )
    credentials = ChannelCredentials(agent.certificates).current if agent.certificates else None
    return Link(options.servers, about, agent.roster, agent.telemetry, Standing(agent), credentials=credentials)


async def _until_stopped(stop: asyncio.Event, jobs: list[Coroutine[Any, Any, None]]) -> None:
    """Run the jobs until the signal; a job that ends before takes the agent down with its error."""
    tasks = [asyncio.create_task(job) for job in jobs]
    stopping = asyncio.create_task(stop.wait())
    done, rest = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    for task in done:
        task.result()


@contextlib.asynccontextmanager
async def _serving(agent: Agent) -> AsyncIterator[Address]:
    """Serve the agent's services for the block; yields the address that was bound."""
    checks: list[grpc.aio.ServerInterceptor] = [IdentityCheck(agent.options.node_id)]
    if agent.options.callers:
        checks.insert(0, CallerCheck(agent.options.callers))
    server = grpc.aio.server(interceptors=checks, options=_OPTIONS)
    service = AgentService(agent.roster, agent.actions, agent.runtimes, agent.telemetry)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(service, server)
    fleetbeat_pb2_grpc.add_NodeAgentServicer_to_server(NodeAgentService(agent.roster, agent.runtimes), server)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    listen = agent.options.listen
    try:
        if agent.certificates:
            port = server.add_secure_port(str(listen), server_credentials(agent.certificates))
        else:
            port = server.add_insecure_port(str(listen))
    except RuntimeError as error:
        raise CannotStart(f"--listen: cannot listen on {listen}: {error}") from None
    if port == 0:
        raise CannotStart(f"--listen: cannot listen on {listen}")
    for name in ("", *_SERVICES):
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    try:
        yield Address(listen.host, port)
    finally:
        await server.stop(_STOP_SECONDS)
