"""An etcd client that writes down every call, for tests that count them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from scheduler.store.keys import CLUSTER, CLUSTER_ID, LEADER_PREFIX, RESTORE, RESTORE_ID
from scheduler.store.kv import KV, PAGE_SIZE, Batch, Compare, EtcdApi, Operation, TxnResult

_ASKED_ANYWAY = (LEADER_PREFIX, CLUSTER.key(CLUSTER_ID), RESTORE.key(RESTORE_ID))
"""What each front asks every few seconds, however large the fleet: who leads, and whose etcd this is."""


class CountingEtcd:
    """Hands every call on; `calls` has them in order, as (name, keys). Watches cost nothing once they stand."""

    def __init__(self, inner: EtcdApi) -> None:
        """Take the client that does the work."""
        self.inner = inner
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    @property
    def of_work(self) -> list[tuple[str, tuple[str, ...]]]:
        """The calls beyond those that a front makes every few seconds anyway."""
        return [call for call in self.calls if not all(key.startswith(_ASKED_ANYWAY) for key in call[1] or ("",))]

    async def get(self, key: str, **how: Any) -> tuple[KV | None, int]:
        """Count and read."""
        self.calls.append(("get", (key,)))
        return await self.inner.get(key, **how)

    async def get_many(self, keys: Sequence[str]) -> tuple[dict[str, KV], int]:
        """Count and read."""
        self.calls.append(("get_many", tuple(keys)))
        return await self.inner.get_many(keys)

    async def scan(self, prefix: str, *, page: int = PAGE_SIZE, **how: Any) -> tuple[list[KV], int]:
        """Count and read."""
        self.calls.append(("scan", (prefix,)))
        return await self.inner.scan(prefix, page=page, **how)

    async def txn(
        self, compares: Sequence[Compare] = (), then: Sequence[Operation] = (), otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Count and write."""
        self.calls.append(("txn", tuple(operation.key for operation in then)))
        return await self.inner.txn(compares, then, otherwise)

    async def grant(self, ttl_seconds: int) -> int:
        """Count and take a lease."""
        self.calls.append(("grant", ()))
        return await self.inner.grant(ttl_seconds)

    async def keepalive(self, lease: int) -> int:
        """Count and renew a lease."""
        self.calls.append(("keepalive", ()))
        return await self.inner.keepalive(lease)

    async def revoke(self, lease: int) -> None:
        """Count and end a lease."""
        self.calls.append(("revoke", ()))
        await self.inner.revoke(lease)

    def watch(self, prefixes: Sequence[str], start_revision: int) -> AsyncGenerator[Batch, None]:
        """Watch."""
        return self.inner.watch(prefixes, start_revision)

    async def close(self) -> None:
        """Close the client."""
        await self.inner.close()
