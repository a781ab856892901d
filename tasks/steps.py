"""What a worker checks before it starts, and refuses to start with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from celery import Celery, bootsteps
from celery.concurrency.prefork import TaskPool

from scheduler.domain.errors import StoreUnavailable
from scheduler.domain.shard import queue_name
from scheduler.leadership.shards import current_map
from scheduler.queues.config import known_shards
from scheduler.settings import Settings, load

_log = logging.getLogger(__name__)


def install(app: Celery) -> None:
    """Have the app's workers make these checks."""
    app.steps["worker"].add(Checks)


class Checks(bootsteps.Step):
    """Refuses a pool that forks, and queues that nobody feeds."""

    def __init__(self, worker: Any, **options: Any) -> None:
        """Check the worker; raises SystemExit with the reason."""
        super().__init__(worker, **options)
        if worker.pool_start_method == "fork" and issubclass(worker.pool_cls, TaskPool):
            raise SystemExit("a pool that forks can hang in gRPC; leave --pool-start-method at spawn")
        settings = load()
        served = set(worker.app.amqp.queues.consume_from)
        if served != {queue_name(shard) for shard in range(known_shards(settings))}:
            check_served(served, settings)


def check_served(served: Iterable[str], settings: Settings) -> None:
    """Raise SystemExit when a queue is of no shard: its worker would wait for ever, and seem well.

    A shard counts when it is in the shard map, or below this worker's SCHEDULER_SHARD_COUNT: to
    grow a cluster, the workers of the new shards are started first, with the new count.
    """
    try:
        mapped = asyncio.run(_mapped_shards(settings))
    except StoreUnavailable as error:
        _log.warning("the queues of this worker are not checked: %s", error)
        return
    count = max(mapped, settings.shard_count)
    unknown = sorted(set(served) - {queue_name(shard) for shard in range(count)})
    if unknown:
        raise SystemExit(
            f"nobody feeds {', '.join(unknown)}: there are {count} shards, {queue_name(0)} to {queue_name(count - 1)}; "
            "serve one of these, or set SCHEDULER_SHARD_COUNT to the count that the cluster is about to grow to"
        )


async def _mapped_shards(settings: Settings) -> int:
    from scheduler.bootstrap import open_map  # noqa: PLC0415 - most of it is not for the worker's main process

    parts = await open_map(settings)
    try:
        shards = current_map(parts.cache)
        return shards.count if shards else 0
    finally:
        await parts.close()
