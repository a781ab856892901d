"""The etcd client: thin, on grpc.aio, with a deadline on every call.

It is our own because no package survives what tests/integration/store puts it through.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from scheduler.domain.errors import StoreUnavailable
from scheduler.pb import etcdmin_pb2 as pb
from scheduler.store.endpoints import (
    CONNECT_SECONDS,
    GRANT,
    KEEPALIVE,
    RANGE,
    REVOKE,
    STATUS,
    TXN,
    Endpoint,
    Endpoints,
    Metadata,
    Method,
    TlsFiles,
)
from scheduler.store.kv import (
    KV,
    MAX_TXN_OPERATIONS,
    PAGE_SIZE,
    Batch,
    Compacted,
    Compare,
    Delete,
    Get,
    LeaseNotFound,
    Operation,
    Put,
    TxnResult,
    UnknownOutcome,
)
from scheduler.store.watch import Watch, range_end

__all__ = ["KV", "Batch", "Compacted", "Etcd", "MemberStatus", "TlsFiles", "UnknownOutcome", "risk_of_version"]

_FIRST_SAFE_3_4 = (3, 4, 22)
_FIRST_SAFE_3_5 = (3, 5, 6)


@dataclass(frozen=True)
class MemberStatus:
    """What a member says of itself."""

    version: str
    leads: bool
    revision: int
    """Raft applied index: how far this member is."""


class Etcd:
    """A client of one etcd cluster; implements EtcdApi. Belongs to the event loop that first uses it."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        timeout_seconds: float = 3.0,
        prefix: str = "",
        user: str = "",
        password: str = "",
        tls: TlsFiles | None = None,
    ) -> None:
        """Take host:port of each member.

        timeout_seconds: deadline of one call, all its tries included.
        prefix: the operator's root, put before every key and cut off again.
        """
        self._endpoints = Endpoints(endpoints, tls, user, password)
        self._timeout = timeout_seconds
        self.on_call: Callable[[str, str, float], None] = lambda _rpc, _code, _seconds: None
        """Told of each unary call: its RPC, OK or the reason of its failure, how long it took with all its tries."""
        self._root = prefix.encode()

    # Reads

    async def get(self, key: str, *, serializable: bool = False, revision: int = 0) -> tuple[KV | None, int]:
        """Read a key (revision 0: now); return it, or None, with the store's revision."""
        request = pb.RangeRequest(key=self._key(key), serializable=serializable, revision=revision)
        answer = await self._read(RANGE, request)
        return self._first(answer.kvs), answer.header.revision

    async def get_many(self, keys: Sequence[str]) -> tuple[dict[str, KV], int]:
        """Read keys, all at one revision; absent ones are left out. Return them with that revision."""
        found: dict[str, KV] = {}
        revision = 0
        for start in range(0, len(keys) or 1, MAX_TXN_OPERATIONS):
            request = pb.TxnRequest()
            for key in keys[start : start + MAX_TXN_OPERATIONS]:
                request.success.add().request_range.MergeFrom(pb.RangeRequest(key=self._key(key), revision=revision))
            answer = await self._read(TXN, request)
            revision = revision or answer.header.revision
            for response in answer.responses:
                found.update((kv.key, kv) for kv in map(self._kv, response.response_range.kvs))
        return found, revision

    async def scan(
        self, prefix: str, *, page: int = PAGE_SIZE, revision: int = 0, serializable: bool = False
    ) -> tuple[list[KV], int]:
        """Read all keys under a prefix at one revision (0: now), page by page, in key order."""
        start = self._key(prefix)
        request = pb.RangeRequest(
            key=start or b"\0", range_end=range_end(start), limit=page, revision=revision, serializable=serializable
        )
        found: list[KV] = []
        while True:
            answer = await self._read(RANGE, request)
            request.revision = request.revision or answer.header.revision
            found += map(self._kv, answer.kvs)
            if not answer.more:
                return found, request.revision
            request.key = answer.kvs[-1].key + b"\0"

    async def _read(self, method: Method, request: Any) -> Any:
        return await self._unary(method, request, repeatable=True)

    # Writes

    async def txn(
        self, compares: Sequence[Compare] = (), then: Sequence[Operation] = (), otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run one transaction; at most 128 entries in each list. Raises UnknownOutcome when the answer is lost."""
        request = pb.TxnRequest()
        request.compare.extend(self._compare(compare) for compare in compares)
        request.success.extend(self._operation(operation) for operation in then)
        request.failure.extend(self._operation(operation) for operation in otherwise)
        only_reads = all(isinstance(operation, Get) for operation in (*then, *otherwise))
        answer = await self._unary(TXN, request, repeatable=only_reads)
        responses = tuple(self._first(response.response_range.kvs) for response in answer.responses)
        return TxnResult(answer.succeeded, answer.header.revision, responses)

    def _compare(self, compare: Compare) -> pb.Compare:
        key = self._key(compare.key)
        if compare.target == "mod":
            return pb.Compare(key=key, target=pb.Compare.MOD, mod_revision=compare.value)
        return pb.Compare(key=key, target=pb.Compare.CREATE, create_revision=compare.value)

    def _operation(self, operation: Operation) -> pb.RequestOp:
        key = self._key(operation.key)
        match operation:
            case Put():
                return pb.RequestOp(request_put=pb.PutRequest(key=key, value=operation.value, lease=operation.lease))
            case Delete():
                return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
            case Get():
                return pb.RequestOp(request_range=pb.RangeRequest(key=key))

    # Leases: all repeatable. A grant sent twice leaves a lease that nobody renews and that ends by itself.

    async def grant(self, ttl_seconds: int) -> int:
        """Create a lease; return its id."""
        answer = await self._unary(GRANT, pb.LeaseGrantRequest(TTL=ttl_seconds), repeatable=True)
        lease: int = answer.ID
        return lease

    async def keepalive(self, lease: int) -> int:
        """Renew a lease; return the seconds it now has, 0 when it is gone."""

        async def invoke(endpoint: Endpoint, seconds: float, metadata: Metadata) -> int:
            call = endpoint.stream(KEEPALIVE)(timeout=seconds, metadata=metadata)
            try:
                await call.write(pb.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
                await call.done_writing()
            finally:
                call.cancel()
            return 0 if answer is grpc.aio.EOF else int(answer.TTL)

        return await self._endpoints.call(invoke, timeout_seconds=self._timeout, repeatable=True)

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; no error when it is gone already."""
        try:
            await self._unary(REVOKE, pb.LeaseRevokeRequest(ID=lease), repeatable=True)
        except LeaseNotFound:
            return

    # Watch, members

    def watch(self, prefixes: Sequence[str], start_revision: int) -> AsyncGenerator[Batch, None]:
        """Yield every change from start_revision on, a whole revision at a time; see EtcdApi."""
        return Watch(self._endpoints, self._root, prefixes, start_revision).batches()

    async def status(self) -> dict[str, MemberStatus]:
        """Ask each member; those that do not answer within a second are left out."""
        answers = {}
        for endpoint in self._endpoints.all:
            if not await endpoint.connected(CONNECT_SECONDS):
                continue
            try:
                answer = await endpoint.unary(STATUS)(pb.StatusRequest(), timeout=CONNECT_SECONDS)
            except grpc.aio.AioRpcError:
                continue
            leads = answer.leader == answer.header.member_id
            answers[endpoint.address] = MemberStatus(answer.version, leads, answer.raftAppliedIndex)
        return answers

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoints.close()

    # Wire

    async def _unary(self, method: Method, request: Any, *, repeatable: bool) -> Any:
        async def invoke(endpoint: Endpoint, seconds: float, metadata: Metadata) -> Any:
            return await endpoint.unary(method)(request, timeout=seconds, metadata=metadata)

        started, code = time.monotonic(), "CANCELLED"
        try:
            answer = await self._endpoints.call(invoke, timeout_seconds=self._timeout, repeatable=repeatable)
            code = "OK"
        except StoreUnavailable as error:
            code = error.reason
            raise
        finally:
            self.on_call(method.path.rpartition("/")[2], code, time.monotonic() - started)
        return answer

    def _key(self, key: str) -> bytes:
        return self._root + key.encode(errors="surrogateescape")

    def _kv(self, kv: pb.KeyValue) -> KV:
        key = kv.key[len(self._root) :].decode(errors="surrogateescape")
        return KV(key, kv.value, kv.mod_revision, kv.create_revision, kv.version, kv.lease)

    def _first(self, kvs: Iterable[pb.KeyValue]) -> KV | None:
        return next(map(self._kv, kvs), None)


def risk_of_version(version: str) -> str:
    """Say what is known to be wrong with a release of etcd; blank for one that is fit to hold the truth."""
    numbers = tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".") if part.isdigit())
    lost_writes = f"etcd {version} can lose acknowledged writes when it is killed"
    if numbers < _FIRST_SAFE_3_4:
        return f"etcd {version} is too old; use 3.5.23 or newer"
    if (3, 5, 0) <= numbers < _FIRST_SAFE_3_5:
        return f"{lost_writes} (etcd issue 14370); use 3.5.23 or newer"
    return ""
