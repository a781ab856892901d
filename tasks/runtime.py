"""What a process that runs tasks keeps between them: an event loop, channels, caches.

Opened by each process for itself: children of the pool must not share what another process
opened. Building all this anew for each task would make a cycle four times as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery.worker import state
from opentelemetry.trace import SpanKind
from structlog.contextvars import bound_contextvars

from scheduler.domain.errors import StoreUnavailable, WrongCluster
from scheduler.queues.loop_thread import LoopThread
from scheduler.queues.messages import CycleMessage, Message, WorkloadMessage
from scheduler.queues.publish import Publisher
from scheduler.queues.seldom import Seldom
from scheduler.settings import Settings
from scheduler.tracing import set_up_tracing, span

if TYPE_CHECKING:
    from scheduler.bootstrap import WorkerParts

_CLOSE_SECONDS = 5.0
_LAST_RESORT_SECONDS = 10.0
EXIT_CODE = 70  # EX_SOFTWARE
END_SIGNAL = signal.SIGUSR2
"""By which a child of the pool asks for the end of the whole worker."""
_log = logging.getLogger(__name__)
_seldom = Seldom(_log)
_lock = threading.Lock()
_runtimes: dict[int, Runtime] = {}


class Runtime:
    """Runs coroutines of tasks, from any number of threads."""

    def __init__(self, settings: Settings, publisher: Publisher) -> None:
        """Start the event loop."""
        self._settings = settings
        self._publisher = publisher
        self._end_tracing = set_up_tracing(
            settings.otlp_endpoint, insecure=settings.otlp_insecure, ratio=settings.trace_ratio, component="worker"
        )
        self._thread = LoopThread("tasks")
        self._opening = asyncio.Lock()
        self._parts: WorkerParts | None = None
        self._in_pool = False
        """Whether this process is a child of the worker's pool; with threads it is the worker itself."""

    def warm_up(self) -> None:
        """Begin to open what tasks need, so that the first one need not wait: it may take seconds.

        Called in the children of a pool.
        """
        self._in_pool = True
        self._thread.start(self._warm_up())

    def open_cycle(self, message: CycleMessage) -> str:
        """Open a cycle."""
        from scheduler.loops import cycle  # noqa: PLC0415 - the worker's main process needs none of this

        return self._run(lambda parts: cycle.open_cycle(parts, message, self._publish), message)

    def run_chunk(self, message: CycleMessage) -> str:
        """Run a chunk of a cycle."""
        from scheduler.loops import cycle  # noqa: PLC0415

        return self._run(lambda parts: cycle.run_chunk(parts, message), message)

    def reconcile_now(self, message: WorkloadMessage) -> str:
        """Look at one workload."""
        from scheduler.loops import cycle  # noqa: PLC0415

        return self._run(lambda parts: cycle.reconcile_now(parts, message), message)

    def close(self) -> None:
        """Close what is open and end the loop."""
        try:
            self._thread.call(self._close(), timeout_seconds=_CLOSE_SECONDS)
        finally:
            self._thread.close()
            self._end_tracing()

    def _run(self, work: Callable[[WorkerParts], Coroutine[Any, Any, str]], message: Message) -> str:
        async def run() -> str:
            try:
                parts = await self._open()
            except (StoreUnavailable, TimeoutError) as error:
                _seldom.warning("etcd does not answer, left to the next cycle: %s", error)
                return "unavailable"
            with (
                bound_contextvars(**message.about),
                span(message.task, SpanKind.CONSUMER, parent=message.traceparent, attributes=_attributes(message)),
            ):
                return await work(parts)

        return self._thread.call(run())

    async def _warm_up(self) -> None:
        with contextlib.suppress(StoreUnavailable, TimeoutError):  # the first task tries again
            await self._open()

    async def _publish(self, messages: Sequence[CycleMessage]) -> None:
        await asyncio.to_thread(self._publisher.send, messages)

    async def _open(self) -> WorkerParts:
        async with self._opening, asyncio.timeout(self._settings.cycle_time_limit_seconds):
            if self._parts is None:
                self._parts = await open_parts(self._settings)
                self._parts.store.on_refused = self._end_worker
                if self._parts.store.refused:
                    self._end_worker(self._parts.store.refused)
            return self._parts

    def _end_worker(self, why: WrongCluster) -> None:
        """End the whole worker with an exit code that is not 0: a child of the pool would only be replaced."""
        _log.critical("the worker ends: %s", why)
        if self._in_pool:
            os.kill(os.getppid(), END_SIGNAL)
        else:
            end_worker()

    async def _close(self) -> None:
        if self._parts is not None:
            await self._parts.close()


def _attributes(message: Message) -> dict[str, str | int]:
    return {f"scheduler.{name}": value for name, value in message.about.items()}


async def open_parts(settings: Settings) -> WorkerParts:
    """Open what tasks need. Raises StoreUnavailable, WrongCluster."""
    from scheduler.bootstrap import open_worker  # noqa: PLC0415 - the worker's main process needs none of this

    return await open_worker(settings)


def end_worker(*_signal: object) -> None:
    """End this worker in good order, but with an exit code that is not 0, and at last in any order."""
    state.should_stop = EXIT_CODE  # type: ignore[assignment]  # the stubs know only None
    last_resort = threading.Timer(_LAST_RESORT_SECONDS, os._exit, [EXIT_CODE])
    last_resort.daemon = True
    last_resort.start()


def of_this_process(app: Celery, settings: Settings) -> Runtime:
    """Return the runtime of this process; the first call makes it."""
    with _lock:
        pid = os.getpid()
        if pid not in _runtimes:
            _runtimes[pid] = Runtime(settings, Publisher(app))
        return _runtimes[pid]


def close() -> None:
    """Close the runtime of this process, if there is one."""
    with _lock:
        runtime = _runtimes.pop(os.getpid(), None)
    if runtime:
        runtime.close()
