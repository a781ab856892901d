"""The agent's log: structlog, on stderr, JSON or text."""

from __future__ import annotations

import logging
import sys
from typing import Literal

import structlog

Form = Literal["json", "text"]


def set_up_logs(level: str, form: str) -> None:
    """Log from this level (debug, info, warning, error) in this form (json, text)."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if form == "text":
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            *([structlog.processors.format_exc_info] if form == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
