"""The same client twice: in memory, and over the network to a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler.store.etcd import Etcd
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd
from tests.support.servers import Server


@pytest.fixture(params=["memory", "etcd"])
async def api(request: pytest.FixtureRequest, etcd_server: Server, etcd_prefix: str) -> AsyncIterator[EtcdApi]:
    """An empty store behind the interface that all others are written against."""
    client: EtcdApi = MemoryEtcd() if request.param == "memory" else Etcd([etcd_server.address], prefix=etcd_prefix)
    yield client
    await client.close()


@pytest.fixture
async def etcd_client(etcd_server: Server, etcd_prefix: str) -> AsyncIterator[Etcd]:
    """A client of the real etcd, with keys of its own."""
    client = Etcd([etcd_server.address], prefix=etcd_prefix)
    yield client
    await client.close()
