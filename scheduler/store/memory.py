"""etcd in memory, for tests: the same interface, the same semantics, and mishaps on request.

The contract tests in tests/integration/test_store_contract.py run over this and over a
real etcd. Several stores may share one instance, as several processes share one etcd.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from enum import Enum

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.kv import (
    KV,
    MAX_TXN_OPERATIONS,
    PAGE_SIZE,
    Batch,
    Compacted,
    Compare,
    Delete,
    Event,
    Get,
    LeaseNotFound,
    Operation,
    Put,
    StoreRefused,
    TxnResult,
    UnknownOutcome,
)

_PROGRESS_SECONDS = 1.0
_MAX_REQUEST_BYTES = 1_572_864


class Mishap(Enum):
    """What can go wrong with one call."""

    UNAVAILABLE = "the call never reaches etcd"
    ANSWER_LOST = "the write is applied, the answer is lost"
    LATE = "the answer is lost, and the write is applied only when apply_late() is called"


class MemoryEtcd:
    """A single etcd, shared by whoever holds the object.

    `mishap` is asked before each call, with the call's name (get, get_many, scan, txn, grant,
    keepalive, revoke), what shall go wrong with it. `pause` is awaited at the start of each
    call: a property test decides there who goes on.
    """

    def __init__(self) -> None:
        """Start empty, at revision 1 as etcd does."""
        self.revision = 1
        self.compacted = 0
        self.mishap: Callable[[str], Mishap | None] = lambda _call: None
        self.pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
        self.calls = 0
        self._versions: dict[str, list[tuple[int, KV | None]]] = {}
        self._history: list[Batch] = []
        self._leases: dict[int, int] = {}
        self._lease_ids = itertools.count(0x1000)
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._late: list[Callable[[], object]] = []
        self._changed = asyncio.Event()

    # Reads

    async def get(self, key: str, *, serializable: bool = False, revision: int = 0) -> tuple[KV | None, int]:  # noqa: ARG002 - there is one member
        """Read a key."""
        await self._enter("get")
        return self._at(key, self._readable(revision)), self.revision

    async def get_many(self, keys: Sequence[str]) -> tuple[dict[str, KV], int]:
        """Read keys, all at one revision."""
        await self._enter("get_many")
        found = {key: self._at(key, self.revision) for key in keys}
        return {key: kv for key, kv in found.items() if kv}, self.revision

    async def scan(
        self,
        prefix: str,
        *,
        page: int = PAGE_SIZE,  # noqa: ARG002 - a page costs nothing here
        revision: int = 0,
        serializable: bool = False,  # noqa: ARG002
    ) -> tuple[list[KV], int]:
        """Read all keys under a prefix."""
        await self._enter("scan")
        at = self._readable(revision)
        found = (self._at(key, at) for key in sorted(self._versions) if key.startswith(prefix))
        return [kv for kv in found if kv], at

    def _readable(self, revision: int) -> int:
        if revision and revision < self.compacted:
            raise Compacted(f"revision {revision} is compacted", compact_revision=self.compacted)
        if revision > self.revision:
            raise StoreUnavailable(f"revision {revision} lies in the future")
        return revision or self.revision

    def _at(self, key: str, revision: int) -> KV | None:
        versions = self._versions.get(key, [])
        index = bisect.bisect_right(versions, revision, key=lambda entry: entry[0])
        return versions[index - 1][1] if index else None

    # Writes

    async def txn(
        self, compares: Sequence[Compare] = (), then: Sequence[Operation] = (), otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run one transaction."""
        _check_txn(compares, then, otherwise)
        mishap = await self._enter("txn")
        if mishap is Mishap.LATE:
            self._late.append(lambda: self._apply(compares, then, otherwise))
            raise UnknownOutcome
        result = self._apply(compares, then, otherwise)
        if mishap is Mishap.ANSWER_LOST:
            raise UnknownOutcome
        return result

    def apply_late(self) -> None:
        """Apply the writes that were on the way (Mishap.LATE), in order."""
        late, self._late = self._late, []
        for apply in late:
            apply()

    def _apply(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        succeeded = all(self._holds(compare) for compare in compares)
        branch = then if succeeded else otherwise
        for operation in branch:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise LeaseNotFound
        responses = tuple(self._at(op.key, self.revision) if isinstance(op, Get) else None for op in branch)
        self._commit([operation for operation in branch if not isinstance(operation, Get)])
        return TxnResult(succeeded, self.revision, responses)

    def _holds(self, compare: Compare) -> bool:
        kv = self._at(compare.key, self.revision)
        if kv is None:
            return compare.value == 0
        return (kv.mod_revision if compare.target == "mod" else kv.create_revision) == compare.value

    def _commit(self, writes: Sequence[Put | Delete]) -> None:
        revision = self.revision + 1
        events = [event for event in (self._write(operation, revision) for operation in writes) if event]
        if not events:
            return
        self.revision = revision
        self._history.append(Batch(revision, tuple(events)))
        self._wake()

    def _write(self, operation: Put | Delete, revision: int) -> Event | None:
        key = operation.key
        before = self._at(key, self.revision)
        if isinstance(operation, Delete):
            if before is None:
                return None
            self._versions[key].append((revision, None))
            return Event(key, None, revision, 0)
        created, version = (before.create_revision, before.version + 1) if before else (revision, 1)
        kv = KV(key, operation.value, revision, created, version, operation.lease)
        self._versions.setdefault(key, []).append((revision, kv))
        return Event(key, operation.value, revision, created)

    # Leases

    async def grant(self, ttl_seconds: int) -> int:
        """Create a lease."""
        await self._enter("grant")
        lease = next(self._lease_ids)
        self._leases[lease] = ttl_seconds
        self._extend(lease)
        return lease

    async def keepalive(self, lease: int) -> int:
        """Renew a lease."""
        mishap = await self._enter("keepalive")
        if lease in self._leases:
            self._extend(lease)
        if mishap:
            raise StoreUnavailable
        return self._leases.get(lease, 0)

    async def revoke(self, lease: int) -> None:
        """End a lease."""
        await self._enter("revoke")
        self.expire(lease)

    def expire(self, lease: int) -> None:
        """End a lease as if its time had run out, and delete its keys."""
        self._leases.pop(lease, None)
        if timer := self._timers.pop(lease, None):
            timer.cancel()
        bound = [key for key in self._versions if (kv := self._at(key, self.revision)) and kv.lease == lease]
        self._commit([Delete(key) for key in bound])

    def _extend(self, lease: int) -> None:
        if timer := self._timers.pop(lease, None):
            timer.cancel()
        self._timers[lease] = asyncio.get_running_loop().call_later(self._leases[lease], self.expire, lease)

    # Watch

    async def watch(self, prefixes: Sequence[str], start_revision: int) -> AsyncGenerator[Batch, None]:
        """Yield every change from start_revision on, a whole revision at a time."""
        following = start_revision
        while True:
            changed = self._changed
            if following < self.compacted:
                raise Compacted(f"revision {following} is compacted", compact_revision=self.compacted)
            if self.mishap("watch"):
                await _wait(changed)
                continue
            batch = self._next_batch(prefixes, following)
            if batch is None:
                yield Batch(following - 1, ())
                await _wait(changed)
                continue
            following = batch.revision + 1
            if batch.events:
                yield batch

    def _next_batch(self, prefixes: Sequence[str], revision: int) -> Batch | None:
        index = bisect.bisect_left(self._history, revision, key=lambda batch: batch.revision)
        if index == len(self._history):
            return None
        batch = self._history[index]
        return Batch(batch.revision, tuple(e for e in batch.events if e.key.startswith(tuple(prefixes))))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # Upkeep

    def compact(self, revision: int) -> None:
        """Forget the history before this revision."""
        self.compacted = revision
        self._history = [batch for batch in self._history if batch.revision >= revision]
        self._wake()

    async def close(self) -> None:
        """Forget the timers of leases; the data stays."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def _enter(self, call: str) -> Mishap | None:
        self.calls += 1
        await self.pause()
        mishap = self.mishap(call)
        if mishap is Mishap.UNAVAILABLE:
            raise StoreUnavailable
        return mishap


async def _wait(changed: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(_PROGRESS_SECONDS):
            await changed.wait()
    except TimeoutError:
        return


def _check_txn(compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> None:
    if max(len(compares), len(then), len(otherwise)) > MAX_TXN_OPERATIONS:
        raise StoreRefused("etcdserver: too many operations in txn request")
    written = [operation.key for operation in then if not isinstance(operation, Get)]
    if len(set(written)) != len(written):
        raise StoreRefused("etcdserver: duplicate key given in txn request")
    if sum(len(operation.value) for operation in then if isinstance(operation, Put)) > _MAX_REQUEST_BYTES:
        raise StoreRefused("etcdserver: request is too large")
