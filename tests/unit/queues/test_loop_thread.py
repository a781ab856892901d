"""The bridge from synchronous tasks to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from scheduler.queues.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A running loop thread."""
    made = LoopThread("test")
    yield made
    made.close()


def test_a_call_returns_what_the_coroutine_returns(thread: LoopThread) -> None:
    """And runs it in the other thread."""

    async def where() -> str:
        return threading.current_thread().name

    assert thread.call(where()) == "test"


def test_an_error_rises_in_the_caller(thread: LoopThread) -> None:
    """With its type."""

    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        thread.call(fail())


def test_an_interrupted_wait_cancels_the_coroutine_and_the_loop_lives_on(thread: LoopThread) -> None:
    """A soft time limit raises in the waiting thread; nothing of the task may go on during the next one."""
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def answer() -> int:
        return 42

    with pytest.raises(TimeoutError):
        thread.call(hang(), timeout_seconds=0.05)
    assert cancelled.wait(5)
    assert thread.call(answer()) == 42


def test_close_cancels_what_runs_and_frees_who_waits(thread: LoopThread) -> None:
    """Nobody waits for a loop that is gone."""
    started, seen = threading.Event(), []

    async def hang() -> None:
        started.set()
        await asyncio.sleep(60)

    def wait() -> None:
        try:
            thread.call(hang())
        except CancelledError as error:
            seen.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(5)
    thread.close()
    waiter.join(5)
    assert len(seen) == 1


def test_after_close_a_call_fails_at_once(thread: LoopThread) -> None:
    """And close may be called again."""

    async def nothing() -> None:
        return

    thread.close()
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.call(nothing())
