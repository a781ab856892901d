"""`fleetbeat front`: the gRPC server, its pumps and its HTTP pages, from start to a graceful stop."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any

import structlog
from grpc import aio
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection

from scheduler.domain.errors import FleetbeatError, StoreUnavailable
from scheduler.front import control, fleet, sandboxes
from scheduler.front.acceptance import Acceptance
from scheduler.front.authorization import Authorization, Names
from scheduler.front.automation import Automation
from scheduler.front.calls import Outcomes
from scheduler.front.certificates import follow_files, is_loopback, renewal_of
from scheduler.front.control import AgentControl
from scheduler.front.control_plane import ControlPlane
from scheduler.front.disks import Disks
from scheduler.front.drifts import Drifts
from scheduler.front.events import EventFeed
from scheduler.front.fencing import Fencing
from scheduler.front.figures import Figures
from scheduler.front.fleet import Fleet
from scheduler.front.fleet_nodes import FleetNodes
from scheduler.front.frozen import Gate
from scheduler.front.health import Health
from scheduler.front.heartbeats import Heartbeats
from scheduler.front.history import WorkloadHistory
from scheduler.front.http import TEXT, HttpServer, Page, json_page
from scheduler.front.index import FleetIndex
from scheduler.front.operators import Operators
from scheduler.front.parts import FrontParts
from scheduler.front.presence import Presence
from scheduler.front.reader import Reader
from scheduler.front.replicas import Copies, Scaling
from scheduler.front.services import handlers_of
from scheduler.front.vitals import Vitals
from scheduler.placement.fleet import Measured
from scheduler.settings import Settings, SettingsError
from scheduler.store.etcd import Etcd
from scheduler.telemetry.logs import set_up_logs
from scheduler.telemetry.redis import end_task
from scheduler.telemetry.shared import SharedMetrics
from scheduler.tls.credentials import server_credentials
from scheduler.tracing import set_up_tracing

SERVICES = (control.SERVICE.full_name, fleet.SERVICE.full_name, sandboxes.SERVICE.full_name)
MAX_RECEIVE_BYTES = 4 * 1024 * 1024
MAX_SEND_BYTES = 64 * 1024 * 1024
GRACE_SECONDS = 4.5
"""How long calls in flight may go on when the front stops; with the rest it stays below ten seconds."""
CLOSE_SECONDS = 1.2
"""For each of the steps after that."""
LAST_RESORT_SECONDS = 10.0
MEASURE_SECONDS = 5.0
OPEN_PAUSE_SECONDS = 1.0
_MEASURE_SLICE = 500

OpenParts = Callable[[Settings], Coroutine[Any, Any, FrontParts]]

_log = structlog.get_logger("scheduler.front.server")


def server_options(*, reuse_port: bool) -> list[tuple[str, int]]:
    """Return gRPC's options, each measured to matter."""
    return [
        ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
        ("grpc.max_send_message_length", MAX_SEND_BYTES),
        # The default rejects all but 1,000 calls that arrive at once with a bare CANCELLED: a restart
        # in front of thousands of agents.
        ("grpc.server.max_pending_requests", 100_000),
        ("grpc.server.max_pending_requests_hard_limit", 200_000),
        # With it, a second front on the same port would silently take half of the connections.
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


class Front:
    """One front in one event loop."""

    def __init__(self, parts: FrontParts) -> None:
        """Put the services together."""
        self._parts = parts
        index = FleetIndex(parts.cache)
        self._health = Health(parts, SERVICES)
        self.heartbeats = Heartbeats(parts, index, listening=lambda: self._health.ready)
        self._vitals = Vitals(parts.pulses, self.heartbeats)
        self.reader = Reader(parts, index, self._vitals)
        self._fleet = Fleet(parts, self.reader)
        copies = Copies(parts, self.reader)
        self._events = EventFeed(parts)
        self._control_services: tuple[object, ...] = (
            AgentControl(parts, self.reader, self.heartbeats, copies),
            Automation(parts, self.reader, copies),
            Operators(parts, self.reader),
            Disks(parts, self.reader),
            self._events,
        )
        self._fleet_services: tuple[object, ...] = (
            self._fleet,
            Drifts(parts, self.reader),
            WorkloadHistory(parts, self.reader),
            FleetNodes(parts, self.reader),
            Fencing(parts, self.reader),
            Scaling(parts, self.reader, copies),
            Acceptance(parts),
        )
        self._control_plane = ControlPlane(parts, self._fleet.status)
        self._figures = Figures(
            parts,
            index,
            self._vitals,
            heartbeats=self.heartbeats,
            health=self._health,
            control_plane=self._control_plane,
        )
        self._presence = Presence(parts)
        self._tls = follow_files(parts.settings, parts.metrics)
        self._figures.certificate = self._tls
        self._shared = SharedMetrics(parts.redis, parts.metrics)
        parts.metrics.follow_store(parts.store)
        if isinstance(parts.etcd, Etcd):
            parts.metrics.follow_etcd(parts.etcd)
        parts.metrics.observe_fleet(self._figures)
        self._http = HttpServer({
            "/metrics": lambda: Page(parts.metrics.exposition(), TEXT),
            "/healthz": lambda: json_page(self._health.report()),
            "/health": lambda: json_page(self._health.report()),
            "/readyz": self._readiness,
        })  # fmt: skip
        self._server: aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.grpc_port = 0
        self.http_port = 0

    async def start(self, host: str, grpc_port: int, http_port: int, *, reuse_port: bool = False) -> None:
        """Listen; port 0 takes a free one. Calls are welcome from when etcd has been read. Raises OSError."""
        self._server = aio.server(interceptors=self._interceptors(), options=server_options(reuse_port=reuse_port))
        handlers = (
            handlers_of(control.SERVICE, *self._gated(self._control_services)),
            handlers_of(fleet.SERVICE, *self._gated(self._fleet_services)),
            sandboxes.sandbox_handlers(),
        )
        self._server.add_generic_rpc_handlers(handlers)
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server)
        await self._health.start(self._server)
        try:
            self.grpc_port = self._listen(self._server, _address(host, grpc_port))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {_address(host, grpc_port)}: {error}") from error
        self.http_port = await self._http.start(host, http_port)
        await self._server.start()
        self._parts.modes.start()
        self.heartbeats.start()
        self._shared.start(show=True)
        await self._health.serve()
        self._presence.start(host, self.grpc_port)
        self._tasks = [
            asyncio.create_task(self._measure(), name="measure"),
            asyncio.create_task(self._control_plane.run(), name="control plane"),
        ]
        _log.info(
            "front listens",
            host=host,
            port=self.grpc_port,
            metrics=self.http_port,
            front=self._parts.front_id,
            tls=self._tls is not None,
            authorization=self._parts.settings.authorization,
        )
        if self._tls is None and not is_loopback(host):
            _log.warning(
                "the front speaks plaintext on an address that others reach: whoever reaches it may do everything; "
                "give it certificates by PERSYS_TLS_CA, PERSYS_TLS_CERT and PERSYS_TLS_KEY",
                host=host,
            )

    def _interceptors(self) -> list[aio.ServerInterceptor]:
        """Return what stands around every call, outermost first."""
        found: list[aio.ServerInterceptor] = [
            Outcomes(self._parts.metrics, SERVICES, unbounded=[control.HEARTBEAT_METHOD])
        ]
        settings = self._parts.settings
        if settings.authorization == "names":
            found.append(Authorization(Names(settings.operator_names, settings.node_names)))
        return found

    def _listen(self, server: aio.Server, address: str) -> int:
        if self._tls is None:
            return int(server.add_insecure_port(address))
        return int(server.add_secure_port(address, server_credentials(self._tls)))

    async def stop(self) -> None:
        """Send calls away, let those in flight end, write what is left. Takes less than ten seconds."""
        await self._health.stop()
        await _within("DNS records", self._presence.close())
        await self._parts.modes.close()
        self._fleet.stop()
        self._events.stop()
        for task in self._tasks:
            await end_task(task)
        if self._server:
            await self._server.stop(GRACE_SECONDS)
        await _within("pumps", self._stop_pumps())
        await _within("shared metrics", self._shared.close())
        await _within("http", self._http.close())

    def _gated(self, services: Sequence[object]) -> list[Gate]:
        """Let writes pass only while the mode is normal."""
        return [Gate(service, self._parts.modes, self._parts.now) for service in services]

    def _readiness(self) -> Page:
        status = HTTPStatus.OK if self._health.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_page(self._health.report(), status)

    async def _stop_pumps(self) -> None:
        if left := await self.heartbeats.close():
            _log.warning("reported changes were not written; agents send them again", count=left)

    async def _measure(self) -> None:
        """Tell the placer from time to time what nodes use; it bends scores, so old figures do no harm."""
        while True:
            vitals = iter((await self._vitals.of()).items())
            while some := dict(islice(vitals, _MEASURE_SLICE)):
                self._parts.placer.measure(
                    {n: Measured(v.use.cpu_used_millicores, v.use.memory_used_mb) for n, v in some.items()}
                )
                await asyncio.sleep(0)
            await asyncio.sleep(MEASURE_SECONDS)


async def _within(what: str, step: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await step
    except TimeoutError:
        _log.warning("a step of the stop took too long, going on", step=what)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def serve(
    settings: Settings, open_parts: OpenParts, *, reuse_port: bool = False, stop: asyncio.Event | None = None
) -> None:
    """Run a front until SIGTERM or SIGINT, or until `stop` is set. Raises OSError, FleetbeatError: it cannot start."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    end_tracing = set_up_tracing(
        settings.otlp_endpoint, insecure=settings.otlp_insecure, ratio=settings.trace_ratio, component="front"
    )
    renewal = renewal_of(settings)
    renew_in_seconds = await renewal.open(stop) if renewal else 0.0
    parts = await _open(settings, open_parts, stop)
    if parts is None:
        return
    renewing: asyncio.Task[None] | None = None
    try:
        front = Front(parts)
    except SettingsError:
        await _within("parts", parts.close())
        raise
    try:
        if renewal:
            renewal.on_issue = parts.metrics.certificate_issued
            renewing = asyncio.create_task(renewal.run(renew_in_seconds), name="certificates")
        await front.start(settings.grpc_addr, settings.grpc_port, settings.metrics_port, reuse_port=reuse_port)
        freezing = asyncio.create_task(_calm_collector(parts))
        await stop.wait()
        _log.info("front stops")
        # Whatever hangs from here on, also the event loop itself: the process ends, and says where it hung.
        faulthandler.dump_traceback_later(LAST_RESORT_SECONDS, exit=True)
        freezing.cancel()
    finally:
        if renewing:
            await end_task(renewing)
        await front.stop()
        await _within("events", parts.events.close())
        await _within("parts", parts.close())
        await _within("traces", asyncio.to_thread(end_tracing))


async def _open(settings: Settings, open_parts: OpenParts, stop: asyncio.Event) -> FrontParts | None:
    """Open the parts, waiting for etcd as long as it takes; None when the front was stopped meanwhile."""
    while not stop.is_set():
        try:
            return await open_parts(settings)
        except StoreUnavailable as error:
            _log.warning("the front waits for etcd", endpoints=settings.etcd_endpoints, error=str(error))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), OPEN_PAUSE_SECONDS)
    return None


async def _calm_collector(parts: FrontParts) -> None:
    """Keep Python's collector off what lives for ever: with thousands of nodes a full pass stalls the loop."""
    while not parts.cache.freshness().synced:
        with contextlib.suppress(StoreUnavailable):
            await parts.cache.ready(60.0)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1000)


def run(settings: Settings, open_parts: OpenParts) -> int:
    """Run one front in this process; return its exit code."""
    return run_until_stopped(serve(settings, open_parts))


def run_until_stopped(serving: Coroutine[Any, Any, None]) -> int:
    """Run a front's coroutine on the loop made for it; return the process's exit code."""
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serving)
    except (OSError, FleetbeatError, SettingsError) as error:
        _log.error("the front cannot run", error=str(error))
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - there is none for Windows
    except ImportError:
        return None
    return uvloop.new_event_loop


def main(settings: Settings, workers: int, open_parts: OpenParts) -> int:
    """Run a front with so many processes on one port; return the exit code. `open_parts` is bootstrap.open_front."""
    set_up_logs(settings.log_level, settings.log_format, component="front")
    if workers == 1:
        return run(settings, open_parts)
    from scheduler.front.workers import supervise  # noqa: PLC0415 - it imports this module

    return supervise(settings, workers, open_parts)
