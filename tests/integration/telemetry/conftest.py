"""What the tests of telemetry stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.support.servers import Server


@pytest.fixture
async def redis(redis_server: Server) -> AsyncIterator[Redis]:
    """An empty Redis."""
    client: Redis = Redis.from_url(f"redis://{redis_server.address}/0")
    await client.flushdb()
    yield client
    await client.aclose()
