"""The Celery app: `celery -A tasks worker -Q shard-0`, `celery -A tasks beat`, `celery -A tasks flower`.

Pool, queues, limits, beat's scheduler and everything else stand in its configuration, so
the commands need no flags. Tasks are thin: parse the message, hand it to the worker's event
loop, return a few words.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any

from celery import Celery, signals
from structlog.contextvars import bind_contextvars, unbind_contextvars

from scheduler.domain.shard import LOOPS
from scheduler.queues.app import make_app
from scheduler.queues.messages import CHUNK_TASK, WORKLOAD_TASK, CycleMessage, WorkloadMessage
from scheduler.settings import Settings, SettingsError, load
from scheduler.telemetry.logs import set_up_logs
from tasks import runtime, steps

_ABOUT = {"loop": "loop", "shard": "shard", "slot": "cycle", "workload_id": "workload_id"}
"""Fields of messages, and what log lines call them."""


def _configured() -> tuple[Settings, Celery]:
    try:
        found = load()
        return found, make_app(found)
    except SettingsError as error:  # without its traceback: it names the variable and what is allowed
        raise SystemExit(f"fleetbeat cannot start:\n{error}") from None


settings, app = _configured()
app.set_current()
steps.install(app)


def _opener(loop: str) -> None:
    @app.task(name=f"tasks.{loop}")
    def open_cycle(**message: Any) -> str:
        return runtime.of_this_process(app, settings).open_cycle(CycleMessage(**message))


for _loop in LOOPS:
    _opener(_loop)


@app.task(name=CHUNK_TASK)
def chunk(**message: Any) -> str:
    """Run a chunk of a cycle."""
    return runtime.of_this_process(app, settings).run_chunk(CycleMessage(**message))


@app.task(name=WORKLOAD_TASK)
def reconcile_workload(**message: Any) -> str:
    """Look at one workload."""
    return runtime.of_this_process(app, settings).reconcile_now(WorkloadMessage(**message))


@signals.setup_logging.connect
def _set_up_logs(**_signal: Any) -> None:
    component = next((word for word in ("worker", "beat", "flower") if word in sys.argv), "")
    set_up_logs(settings.log_level, settings.log_format, component=component)
    if settings.log_level == "info":
        # One line a task is enough: that it ended, and with which words.
        logging.getLogger("celery.worker.strategy").setLevel(logging.WARNING)


@signals.task_prerun.connect
def _begin_lines(kwargs: dict[str, Any] | None = None, **_signal: Any) -> None:
    """Have Celery's own lines about a task say what it is about, too."""
    bind_contextvars(**{name: (kwargs or {})[field] for field, name in _ABOUT.items() if field in (kwargs or {})})


@signals.task_postrun.connect
def _end_lines(**_signal: Any) -> None:
    unbind_contextvars(*_ABOUT.values())


@signals.worker_init.connect
def _listen_to_children(**_signal: Any) -> None:
    signal.signal(runtime.END_SIGNAL, runtime.end_worker)


@signals.worker_process_init.connect
def _warm_up(**_signal: Any) -> None:
    runtime.of_this_process(app, settings).warm_up()


@signals.worker_process_shutdown.connect  # a child of the pool
@signals.worker_shutdown.connect  # the worker itself, which runs the tasks on threads and solo
def _close(**_signal: Any) -> None:
    runtime.close()
