"""Interleavings on purpose: a test decides which waiting call to etcd goes on next."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from unittest import mock

_SETTLE = 30
"""Rounds of the loop after which every task that could go on has reached its next call."""


class Turns:
    """Runs tasks so that each call they make to a MemoryEtcd waits for its turn."""

    def __init__(self, choose: Callable[[int], int]) -> None:
        """Take the choice: from how many calls wait to which one goes on."""
        self._choose = choose
        self._waiting: list[asyncio.Future[None]] = []

    async def pause(self) -> None:
        """Wait for a turn; set this as MemoryEtcd.pause."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    async def run(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Run all to their ends; return their results or exceptions, in order.

        Nobody pauses between two tries meanwhile: who is back first would depend on how busy the machine is.
        """
        with mock.patch.object(random, "uniform", return_value=0.0):
            return await self._run(coroutines)

    async def _run(self, coroutines: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
        try:
            while not all(task.done() for task in tasks):
                for _ in range(_SETTLE):
                    await asyncio.sleep(0)
                if self._waiting:
                    self._waiting.pop(self._choose(len(self._waiting))).set_result(None)
        finally:
            # Hypothesis ends an example by an exception, out of any draw. A task left with one would
            # tell of it whenever it is collected, in the midst of another test.
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                raise outcome
        return outcomes
