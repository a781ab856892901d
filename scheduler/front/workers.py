"""`fleetbeat front --workers N`: N processes share the gRPC port by SO_REUSEPORT; their parent keeps N of them alive.

The kernel spreads connections over the processes. Worker i serves its own pages on
METRICS_PORT + 100*i, so that each can be scraped by itself: counters of one port never jump.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.connection
import signal
import socket
import time
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from types import FrameType

import structlog

from scheduler.front.server import OpenParts, run_until_stopped, serve
from scheduler.settings import Settings
from scheduler.telemetry.logs import set_up_logs

METRICS_STEP = 100
STOP_SECONDS = 12.0
"""A worker stops within ten; one that does not is killed."""
_PAUSES_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
_STABLE_SECONDS = 30.0
_HIGHEST_PORT = 65_535

_log = structlog.get_logger("scheduler.front.workers")


@dataclass
class _Worker:
    index: int
    process: SpawnProcess | None = None
    started_at: float = 0.0
    failures: int = 0
    due_at: float = 0.0
    """When to start it (again)."""


def supervise(settings: Settings, count: int, open_parts: OpenParts) -> int:
    """Run so many workers until SIGTERM or SIGINT; return the exit code."""
    if problem := _problem(settings, count):
        _log.error("the front cannot run", error=problem)
        return 1
    return _Supervisor(settings, count, open_parts).run()


def _problem(settings: Settings, count: int) -> str:
    ports = [settings.metrics_port + METRICS_STEP * i for i in range(count)]
    if ports[-1] > _HIGHEST_PORT or settings.grpc_port in ports:
        return f"METRICS_PORT={settings.metrics_port}: {count} workers need {ports}, below 65536 and without GRPC_PORT"
    host = settings.grpc_addr
    try:
        # Without SO_REUSEPORT this fails when anybody has the port, also another front with it.
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, settings.grpc_port))
    except OSError as error:
        return f"cannot listen on {host} port {settings.grpc_port}: {error}"
    return ""


class _Supervisor:
    def __init__(self, settings: Settings, count: int, open_parts: OpenParts) -> None:
        self._settings = settings
        self._open_parts = open_parts
        self._workers = [_Worker(i) for i in range(count)]
        self._stopping = False
        self._context = multiprocessing.get_context("spawn")

    def run(self) -> int:
        before = {n: signal.signal(n, self._on_signal) for n in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._stopping:
                self._start_due()
                self._wait()
                self._reap()
        finally:
            self._stop_all()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _start_due(self) -> None:
        for worker in self._workers:
            if worker.process is None and worker.due_at <= time.monotonic() and not self._stopping:
                worker.process = self._context.Process(
                    target=_work, args=(_for_worker(self._settings, worker.index), self._open_parts), daemon=False
                )
                worker.process.start()
                worker.started_at = time.monotonic()

    def _wait(self) -> None:
        running = [worker.process.sentinel for worker in self._workers if worker.process]
        multiprocessing.connection.wait(running, timeout=0.5)

    def _reap(self) -> None:
        for worker in self._workers:
            if worker.process is None or worker.process.is_alive():
                continue
            lived = time.monotonic() - worker.started_at
            worker.failures = 0 if lived > _STABLE_SECONDS else worker.failures + 1
            pause = _PAUSES_SECONDS[min(max(worker.failures - 1, 0), len(_PAUSES_SECONDS) - 1)]
            if not self._stopping:
                code = worker.process.exitcode
                _log.error("a worker ended, starting another", worker=worker.index, code=code, in_seconds=pause)
            worker.process.close()
            worker.process, worker.due_at = None, time.monotonic() + pause

    def _stop_all(self) -> None:
        running = [worker.process for worker in self._workers if worker.process and worker.process.is_alive()]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for process in running:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()


def _for_worker(settings: Settings, index: int) -> Settings:
    changes: dict[str, object] = {"metrics_port": settings.metrics_port + METRICS_STEP * index}
    if settings.front_id:
        changes["front_id"] = f"{settings.front_id[:120]}-{index}"
    return settings.model_copy(update=changes)


def _work(settings: Settings, open_parts: OpenParts) -> None:
    set_up_logs(settings.log_level, settings.log_format, component="front")
    raise SystemExit(run_until_stopped(_serve_while_parent_lives(settings, open_parts)))


async def _serve_while_parent_lives(settings: Settings, open_parts: OpenParts) -> None:
    stop = asyncio.Event()
    parent = multiprocessing.parent_process()
    if parent:
        _on_end(parent.sentinel, stop)
    await serve(settings, open_parts, reuse_port=True, stop=stop)


def _on_end(sentinel: int, stop: asyncio.Event) -> None:
    """Stop once the sentinel is readable, which it is from when the parent is gone, however it went."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(sentinel)  # else it would be called again and again
        stop.set()

    loop.add_reader(sentinel, ended)
