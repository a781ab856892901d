"""Connections to Redis: short time-outs, one quick retry, one exception for "it does not answer"."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from scheduler.domain.errors import FleetbeatError
from scheduler.settings import Settings

CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
MAX_CONNECTIONS = 32
"""Of one process. Each caller holds one for the length of a call, so this is far more than the pumps need."""
_AGAIN_SECONDS = 0.2


class TelemetryUnavailable(FleetbeatError):  # noqa: N818 - reads as a sentence where it is raised
    """Redis does not answer."""

    reason = "TELEMETRY_UNAVAILABLE"


def make_redis(settings: Settings) -> Redis | None:
    """Connect, lazily, to the Redis that holds the telemetry; None when none is configured."""
    return _connect(settings.redis_url) if settings.redis_url else None


def _connect(url: str) -> Redis:
    # redis-py's own default retries three times with pauses of seconds: far too long for a pump that
    # keeps what it could not send. One immediate retry heals a pooled connection that went stale.
    client: Redis = Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        max_connections=MAX_CONNECTIONS,
        retry=Retry(NoBackoff(), 1),
        health_check_interval=30,
    )
    return client


def configured(redis: Redis | None) -> Redis:
    """Return the connection. Raises TelemetryUnavailable when there is none by configuration."""
    if redis is None:
        raise TelemetryUnavailable("no Redis is configured; set REDIS_ADDR")
    return redis


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task that talks to Redis until it has ended.

    Once is not enough: redis-py loses a cancellation that comes while it greets the server, and
    a loop goes on as if nothing had been.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN_SECONDS)


@contextlib.contextmanager
def answers() -> Iterator[None]:
    """Turn everything that means "Redis does not answer" inside the block into TelemetryUnavailable."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise TelemetryUnavailable(f"Redis does not answer: {error or type(error).__name__}") from error
