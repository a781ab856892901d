"""Celery is synchronous, our I/O is not: an event loop in a thread of its own, and a bridge to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

R = TypeVar("R")

_JOIN_SECONDS = 5.0
_CANCEL_SECONDS = 15.0


class LoopThread:
    """An event loop that runs until `close`.

    The loop must not run in the caller's own thread: a soft time limit raised out of
    run_until_complete leaves the coroutine's tasks behind, and they go on during the next call.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, R]) -> Future[R]:
        """Run a coroutine in the loop and do not wait for it. Raises RuntimeError after `close`."""
        self._check_open(coroutine)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, R], *, timeout_seconds: float | None = None) -> R:
        """Run a coroutine in the loop and wait for it; whatever interrupts the wait cancels the coroutine.

        Either way, when this returns nothing of the coroutine runs any more. Raises TimeoutError
        when it takes longer, RuntimeError after `close`.
        """
        self._check_open(coroutine)
        call = _Call(coroutine)
        self._loop.call_soon_threadsafe(call.begin)
        try:
            return call.future.result(timeout_seconds)
        except BaseException:
            # A loop that hangs is not helped by giving it the next task: wait for Celery's hard limit.
            if not call.ended.is_set():
                self._cancel(call.cancel)
                call.ended.wait(_CANCEL_SECONDS)
            raise

    def close(self) -> None:
        """Cancel what still runs and end the thread; calls that wait see CancelledError. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_SECONDS)

    def _check_open(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        if self._loop.is_closed():
            coroutine.close()
            raise RuntimeError("the event loop is closed")

    def _cancel(self, cancel: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(cancel)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_cancel_all())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


class _Call(Generic[R]):
    """One coroutine that a thread waits for. `begin` and `cancel` run in the loop, in this order."""

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        self.future: Future[R] = Future()
        self.ended = threading.Event()
        self._coroutine = coroutine
        self._task: asyncio.Task[R] | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._finish)

    def cancel(self) -> None:
        if self._task:
            self._task.cancel()

    def _finish(self, task: asyncio.Task[R]) -> None:
        self.ended.set()
        if task.cancelled():
            self.future.cancel()
        elif error := task.exception():
            self.future.set_exception(error)
        else:
            self.future.set_result(task.result())


async def _cancel_all() -> None:
    await asyncio.sleep(0)  # what was handed over before the stop begins, so that it can be cancelled
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_JOIN_SECONDS / 2)
