"""Sending messages: many at once, quickly or not at all.

`Publisher` is synchronous, as Celery is; `WakeUps` is the side of it that asyncio code uses.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from kombu import Producer

from scheduler.domain.shard import ShardMap, shard_of_workload
from scheduler.queues.config import backlog, shard_queue
from scheduler.queues.messages import WAKE_UP_SECONDS, CycleMessage, Message, WorkloadMessage
from scheduler.queues.seldom import Seldom
from scheduler.tracing import traceparent

_BATCH = 500
_CLOSE_SECONDS = 2.0


class PublishRefused(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The sender is no longer entitled to send."""


class Publisher:
    """Sends messages to their shards' queues. Safe for any number of threads."""

    def __init__(self, app: Celery) -> None:
        """Take the app whose broker to use."""
        self._app = app

    def send(self, messages: Sequence[Message], *, entitled: Callable[[], bool] = lambda: True) -> None:
        """Send all messages in one round trip, or raise; nothing is tried twice.

        entitled: asked before each message, and last thing before the batch leaves; when it says
        no, PublishRefused is raised and nothing more leaves (on brokers with batches: nothing at all).

        Raises what kombu raises; then it is unknown whether the broker has them.
        """
        producer: Any  # the stubs do not know kombu 5.7
        with self._app.producer_pool.acquire(block=True) as producer, producer.batch(max_size=_unbroken(messages)):
            for message in messages:
                _check(entitled)
                self._put(message, producer)
            _check(entitled)

    def backlog(self, shards: Sequence[int]) -> list[int]:
        """Return how many messages wait in the queue of each shard."""
        with self._app.producer_pool.acquire(block=True) as producer:
            return backlog(producer.channel, [shard_queue(shard) for shard in shards])

    def _put(self, message: Message, producer: Producer) -> None:
        app: Any = self._app  # the stubs know queues by name only
        app.send_task(
            message.task,
            kwargs=message.model_dump(mode="json", exclude_defaults=True),
            kwargsrepr=message.summary(),
            argsrepr="",
            queue=shard_queue(message.shard),
            expires=_expiry(message),
            ignore_result=True,
            retry=False,
            producer=producer,
            add_to_parent=False,
        )


def _check(entitled: Callable[[], bool]) -> None:
    if not entitled():
        raise PublishRefused


def _unbroken(messages: Sequence[Message]) -> int:
    # A message is at most two commands, itself and its task-sent event. The batch must not flush by
    # itself in the middle: `entitled` has not been asked yet.
    return 2 * len(messages) + 1


def _expiry(message: Message) -> datetime:
    when = message.expires if isinstance(message, CycleMessage) else time.time() + WAKE_UP_SECONDS
    return datetime.fromtimestamp(when, UTC)


class WakeUps:
    """Asks workers to look at workloads now. For one event loop; never blocks it, never raises.

    A wake-up that is lost costs waiting for the next cycle, nothing else. So the buffer is
    bounded, a workload is in it once, and what the broker does not take at once is dropped.
    """

    def __init__(
        self,
        send: Callable[[Sequence[WorkloadMessage]], None],
        shards: Callable[[], ShardMap | None],
        *,
        capacity: int = 10_000,
    ) -> None:
        """Take `Publisher.send` (called in a thread) and what returns the shard map, None while it is not known."""
        self._send = send
        self._shards = shards
        self._capacity = capacity
        self._waiting: dict[str, tuple[str, str]] = {}
        """Of each workload its node, and the trace that wants the look."""
        self._something = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._closing = False
        self._log = Seldom(logging.getLogger(__name__))
        self.counts: Counter[str] = Counter()
        """Wake-ups sent, and dropped: full, no_map, failed."""

    def start(self) -> None:
        """Begin to send, in the running loop."""
        self._pump = asyncio.create_task(self._run(), name="wake-ups")

    def wake(self, workload_id: str, node_id: str = "") -> None:
        """Ask for a look at this workload, which is on this node (blank: on none)."""
        if workload_id not in self._waiting and len(self._waiting) >= self._capacity:
            self.counts["full"] += 1
            return
        self._waiting[workload_id] = node_id, traceparent()
        self._something.set()

    async def close(self) -> None:
        """Send what waits, if the broker takes it at once, and stop. Idempotent."""
        self._closing = True
        self._something.set()
        pump, self._pump = self._pump, None
        if pump is None:
            return
        await asyncio.wait([pump], timeout=_CLOSE_SECONDS)
        pump.cancel()
        await asyncio.wait([pump])

    async def _run(self) -> None:
        while self._waiting or not self._closing:
            await self._something.wait()
            messages = self._next_batch()
            if messages:
                await self._deliver(messages)

    def _next_batch(self) -> list[WorkloadMessage]:
        ids = list(itertools.islice(self._waiting, _BATCH))
        batch = [(workload_id, *self._waiting.pop(workload_id)) for workload_id in ids]
        if not self._waiting and not self._closing:
            self._something.clear()
        shards = self._shards()
        if shards is None:
            self.counts["no_map"] += len(batch)
            return []
        return [
            WorkloadMessage(
                workload_id=w, shard=shard_of_workload(w, n, shards), generation=shards.generation, traceparent=trace
            )
            for w, n, trace in batch
        ]

    async def _deliver(self, messages: Sequence[WorkloadMessage]) -> None:
        try:
            await asyncio.to_thread(self._send, messages)
        except Exception as error:  # noqa: BLE001 - any failure of the broker means the same: the next cycle looks
            self._log.warning("wake-ups dropped, the broker does not take them: %r", error)
            self.counts["failed"] += len(messages)
        else:
            self.counts["sent"] += len(messages)
