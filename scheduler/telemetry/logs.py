"""Logs of every process: structlog, one line an event, JSON or text, on stderr.

Lines of libraries that use the standard logging module come out in the same form.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_NAMES = {"workload": "workload_id", "node_id": "node"}
"""One name for each thing on every line, whatever its writer calls it."""
_NOISY = ("grpc", "asyncio", "urllib3", "docker", "opentelemetry")


def set_up_logs(level: str, form: str, *, component: str = "") -> None:
    """Log from this level (debug, info, warning, error) in this form (json, text); call it once, first thing.

    `component` is on every line of the process, so that mixed logs can be told apart.
    """
    number = logging.getLevelName(level.upper())

    def add_component(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
        if component:
            line.setdefault("component", component)
        return line

    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _same_names,
        add_component,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=_renderers(form)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _same_names(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    for name, ours in _NAMES.items():
        if name in line:
            line[ours] = line.pop(name)
    return line


def _renderers(form: str) -> list[Processor]:
    shared: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if form == "json":
        return [*shared, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # Not the default formatter of tracebacks: it prints local variables, and with them passwords.
    plain = structlog.dev.plain_traceback
    return [*shared, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
