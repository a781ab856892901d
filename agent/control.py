"""The agent's side of the talk with the control plane: register, then heartbeats, with one front at a time.

A change of a status is reported at once, otherwise a heartbeat goes out every interval that the
control plane names. When a front does not answer, the next one is tried right away; only when
none has answered does the agent wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import structlog

from agent import VERSION, wire
from agent.guardian import boot_seconds
from agent.host import Capacity, allocated
from agent.report import Report, Reports
from agent.roster import Roster
from agent.telemetry import Telemetry
from scheduler.pb import control_pb2, control_pb2_grpc

log = structlog.get_logger(__name__)

DEFAULT_INTERVAL_SECONDS = 10.0
MAX_INTERVAL_SECONDS = 600.0
LEAST_GAP_SECONDS = 0.1
"""Between two heartbeats, however much changes."""
CALL_SECONDS = 10.0
_LEAST_CALL_SECONDS = 2.0
_FIRST_BACKOFF_SECONDS = 1.0
_MAX_BACKOFF_SECONDS = 30.0
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 0),  # pings on an idle connection are answered with a GOAWAY
    ("grpc.use_local_subchannel_pool", 1),  # a new channel makes a new connection
    ("grpc.enable_retries", 0),
)


class Rejected(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The control plane does not take this node now."""


@dataclass(frozen=True)
class About:
    """What the agent says about itself when it registers."""

    node_id: str
    endpoint: str
    capacity: Capacity
    labels: Callable[[], dict[str, str]]
    workload_types: Callable[[], list[str]]
    agent_id: str = ""
    """Names the data folder, and so the copies here, over all starts."""
    instance_id: str = field(default_factory=lambda: uuid.uuid4().hex)


class Contact(Protocol):
    """Is told how the agent stands with the control plane."""

    def heard(self, sent_at: float) -> None:
        """Take note that a heartbeat sent then, in seconds since boot, was acknowledged."""
        ...

    def accepted(self, lease_seconds: float) -> None:
        """Take note that the registration was accepted, and after how much silence the node is missed; 0: not said."""
        ...

    def superseded(self, stop_after_seconds: float) -> None:
        """Take note that another agent has this node's id; 0: it was not said how long copies may go on."""
        ...


class Unheeded:
    """Takes note of nothing."""

    def heard(self, sent_at: float) -> None:
        """Ignore it."""

    def accepted(self, lease_seconds: float) -> None:
        """Ignore it."""

    def superseded(self, stop_after_seconds: float) -> None:
        """Ignore it."""


class Link:
    """The connection to the control plane."""

    def __init__(
        self,
        servers: Sequence[str],
        about: About,
        roster: Roster,
        telemetry: Telemetry,
        contact: Contact | None = None,
        *,
        credentials: Callable[[], grpc.ChannelCredentials] | None = None,
    ) -> None:
        """Take the addresses of the fronts, host:port, in the order in which to try them.

        credentials: returns those of a new connection; None: no TLS.
        """
        self._credentials = credentials
        self._contact: Contact = contact or Unheeded()
        self._servers = list(servers)
        self._about = about
        self._roster = roster
        self._telemetry = telemetry
        self._reports = Reports()
        self._changed = asyncio.Event()
        self._at = 0
        self._failures = 0
        self._channel: grpc.aio.Channel | None = None
        self._registered = False
        self._sequence = 0
        self._sent_at = 0.0
        self._due_at = 0.0
        self.interval_seconds = DEFAULT_INTERVAL_SECONDS

    def changed(self) -> None:
        """Have what changed reported at once."""
        self._changed.set()

    def register_again(self) -> None:
        """Have the node registered again: what it offers has changed."""
        self._registered = False
        self._changed.set()

    async def run(self) -> None:
        """Talk for ever."""
        try:
            while True:
                try:
                    await self._turn()
                except (grpc.aio.AioRpcError, Rejected) as error:
                    await self._recover(error)
                except Exception:
                    log.exception("link_failed", server=self._server)
                    self._failures += 1
                    await asyncio.sleep(self._backoff())
        finally:
            await self._disconnect()

    async def _turn(self) -> None:
        if not self._registered:
            await self._register()
            self._registered = True
            self._due_at = 0.0
        await self._wait_for_next()
        await self._beat()
        self._failures = 0

    async def _wait_for_next(self) -> None:
        """Wait until the next heartbeat is due or something has changed, but keep the least gap."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.0, self._due_at - time.monotonic()))
        await asyncio.sleep(max(0.0, self._sent_at + LEAST_GAP_SECONDS - time.monotonic()))
        self._changed.clear()

    async def _register(self) -> None:
        about = self._about
        request = control_pb2.RegisterNodeRequest(
            node_id=about.node_id,
            capabilities=control_pb2.NodeCapabilities(
                cpu_total_millicores=about.capacity.cpu_millicores,
                memory_total_mb=about.capacity.memory_mb,
                storage_pools=[control_pb2.StoragePool(name="default", type="local", total_gb=about.capacity.disk_gb)],
                supported_workload_types=about.workload_types(),
                supported_storage_drivers=["local"],
            ),
            labels=about.labels(),
            agent_version=VERSION,
            grpc_endpoint=about.endpoint,
            instance_id=about.instance_id,
            reports_epochs=True,
            enforces_stop_after=True,
            agent_id=about.agent_id,
        )
        request.timestamp.GetCurrentTime()
        answer = await self._stub().RegisterNode(request, timeout=CALL_SECONDS)
        if answer.superseded:
            self._contact.superseded(answer.stop_after_ms / 1000)
        if not answer.accepted:
            raise Rejected(f"registration was not accepted: {answer.reason}")
        self._contact.accepted(answer.lease_ms / 1000)
        self._set_interval(answer.heartbeat_interval_ms, answer.heartbeat_interval_seconds)
        log.info("registered", server=self._server, interval_seconds=self.interval_seconds)

    async def _beat(self) -> None:
        is_regular = time.monotonic() >= self._due_at
        report = self._reports.next(self._roster.all())
        request = await self._heartbeat(report, with_usage=is_regular)
        self._sent_at, sent_at = time.monotonic(), boot_seconds()
        deadline = min(CALL_SECONDS, max(_LEAST_CALL_SECONDS, self.interval_seconds))
        answer = await self._stub().Heartbeat(request, timeout=deadline)
        if not answer.acknowledged:
            raise Rejected("the heartbeat was not acknowledged")
        if not answer.unrecorded:
            self._contact.heard(sent_at)
        self._reports.acknowledge(report, send_full=answer.send_full)
        self._set_interval(answer.heartbeat_interval_ms, answer.heartbeat_interval_seconds)
        spread = random.uniform(0.9, 1.0)  # noqa: S311 - so that agents do not beat in step
        self._due_at = self._sent_at + self.interval_seconds * spread
        if answer.send_full:
            self._changed.set()
        if answer.drain_node:
            log.info("drain_requested")

    async def _heartbeat(self, report: Report, *, with_usage: bool) -> control_pb2.HeartbeatRequest:
        self._sequence += 1
        everything = self._roster.all()
        committed = allocated(w.record.order.limits for w in everything)
        used = await self._telemetry.node()
        request = control_pb2.HeartbeatRequest(
            node_id=self._about.node_id,
            usage=control_pb2.NodeUsage(
                cpu_allocated_millicores=committed.cpu_millicores,
                cpu_used_millicores=used.cpu_millicores,
                memory_allocated_mb=committed.memory_mb,
                memory_used_mb=used.memory_mb,
                disk_allocated_gb=committed.disk_gb,
                disk_used_gb=used.disk_gb,
            ),
            workload_statuses=[wire.control_status(w) for w in report.workloads],
            instance_id=self._about.instance_id,
            sequence=self._sequence,
            full=report.full,
        )
        request.timestamp.GetCurrentTime()
        if with_usage:
            types = {w.record.order.id: w.record.order.type for w in everything}
            request.workload_usage.extend(wire.usage_samples(await self._telemetry.workloads(), types))
        return request

    async def _recover(self, error: grpc.aio.AioRpcError | Rejected) -> None:
        """Turn to the next front at once; wait only when all have failed in turn."""
        self._reports.want_full()
        self._due_at = 0.0
        self._failures += 1
        text = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
        log.warning("control_plane_error", server=self._server, registered=self._registered, error=text)
        if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.NOT_FOUND and self._registered:
            self._registered = False
            if self._failures == 1:
                return
        else:
            await self._disconnect()
            self._at += 1
        if self._failures % len(self._servers) == 0:
            await asyncio.sleep(self._backoff())

    def _backoff(self) -> float:
        """Return the pause after a round of failures; heartbeats are not delayed beyond their interval."""
        most = self.interval_seconds if self._registered else _MAX_BACKOFF_SECONDS
        rounds = max(0, self._failures // len(self._servers) - 1)
        return min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(rounds, 10), most) * random.uniform(0.5, 1.0)  # noqa: S311

    @property
    def _server(self) -> str:
        return self._servers[self._at % len(self._servers)]

    def _stub(self) -> control_pb2_grpc.AgentControlAsyncStub:
        if self._channel is None:
            self._channel = self._dial()
        return control_pb2_grpc.AgentControlStub(self._channel)

    def _dial(self) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(self._server, options=_OPTIONS)
        return grpc.aio.secure_channel(self._server, self._credentials(), options=_OPTIONS)

    async def _disconnect(self) -> None:
        if self._channel:
            channel, self._channel = self._channel, None
            await channel.close()

    def _set_interval(self, milliseconds: int, seconds: int) -> None:
        """Take the interval that the control plane names, the exact one first; none: keep the present one."""
        named = milliseconds / 1000 if milliseconds > 0 else float(seconds)
        if named > 0:
            self.interval_seconds = min(max(named, LEAST_GAP_SECONDS), MAX_INTERVAL_SECONDS)
