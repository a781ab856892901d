"""Work that must not be left half done when its caller goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")
_running: set[asyncio.Task[Any]] = set()
"""The loop itself keeps tasks only by weak references."""


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run the work to its end, also when the caller is cancelled: a client that hangs up cancels its call."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_tell_failure)
        raise


def _tell_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception():
        log.warning("work_failed_after_its_caller_left", error=str(task.exception()))
