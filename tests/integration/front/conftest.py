"""What the tests of the front stand on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from scheduler.store.etcd import Etcd
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd
from tests.support.servers import Server


@pytest.fixture(params=["memory", "etcd"])
async def etcd(request: pytest.FixtureRequest, etcd_prefix: str) -> AsyncIterator[EtcdApi]:
    """An empty etcd: one in memory, then a real one."""
    if request.param == "memory":
        yield MemoryEtcd()
        return
    server: Server = request.getfixturevalue("etcd_server")
    client = Etcd([server.address], prefix=etcd_prefix)
    yield client
    await client.close()


@pytest.fixture
async def redis(redis_server: Server) -> AsyncIterator[Redis]:
    """An empty Redis."""
    client: Redis = Redis.from_url(f"redis://{redis_server.address}/0")
    await client.flushdb()
    yield client
    await client.aclose()
