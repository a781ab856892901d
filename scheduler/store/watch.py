"""A watch that goes on: over cut connections, hung members, lost quorums and restarts.

* One watch over the range that spans all prefixes, not one a prefix: only so do the changes
  of one revision arrive together.
* It resumes after the last *event*, never after a header's revision: while etcd replays
  history, headers carry the newest revision of the store. A response in fragments counts
  only when its last fragment is there.
* Silence is no proof of health. After PROGRESS_SECONDS without a message it asks for a sign of
  life, after SILENCE_SECONDS it turns to the next member. The answers are taken as signs of
  life only: etcd before 3.4.25 and 3.5.8 may send one ahead of events it still owes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import groupby
from typing import Any

import grpc
import structlog

from scheduler.domain.errors import StoreUnavailable
from scheduler.pb import etcdmin_pb2 as pb
from scheduler.store.endpoints import CONNECT_SECONDS, SIGN_IN_TEXTS, WATCH, Endpoint, Endpoints, metadata_of
from scheduler.store.kv import Batch, Compacted, Event, StoreRefused

PROGRESS_SECONDS = 2.0
SILENCE_SECONDS = 5.0
_QUEUE = 64
"""Responses read ahead of the consumer; beyond that, flow control holds etcd back."""
_PAUSE_SECONDS = 0.05
_PAUSE_CAP_SECONDS = 1.0
_MAX_DENIALS = 2
_DENIAL_TEXTS = ("permission denied", *SIGN_IN_TEXTS)

log = structlog.get_logger(__name__)


class _Broken(Exception):  # noqa: N818 - private
    """The connection brings nothing more."""


class Watch:
    """The changes under some prefixes, from a revision on."""

    def __init__(self, endpoints: Endpoints, root: bytes, prefixes: Sequence[str], start_revision: int) -> None:
        """Take the members, the operator's prefix, the prefixes under it and the first revision."""
        self._endpoints = endpoints
        self._root = len(root)
        self._prefixes = tuple(root + prefix.encode() for prefix in prefixes)
        self._next = start_revision
        self._first = start_revision
        """Of the present connection."""
        self._denials = 0
        self._behind_since: float | None = None

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield whole revisions, for ever. Raises Compacted, and StoreRefused when the user may not watch."""
        pause, interrupted = _PAUSE_SECONDS, False
        while True:
            endpoint = self._endpoints.current
            try:
                async with contextlib.aclosing(self._responses(endpoint)) as responses:
                    async for response in responses:
                        if interrupted:
                            log.info("etcd watch resumed", endpoint=endpoint.address, revision=self._next)
                        pause, interrupted = _PAUSE_SECONDS, False
                        for batch in self._split(response):
                            self._next = max(self._next, batch.revision + 1)
                            yield batch
            except (_Broken, grpc.aio.AioRpcError, StoreUnavailable) as error:
                if isinstance(error, StoreRefused):
                    raise
                if not interrupted:
                    log.warning("etcd watch interrupted", endpoint=endpoint.address, error=_text(error))
                interrupted = True
            self._endpoints.move_on(endpoint)
            await asyncio.sleep(pause)
            pause = min(_PAUSE_CAP_SECONDS, pause * 2)

    async def _responses(self, endpoint: Endpoint) -> AsyncGenerator[pb.WatchResponse, None]:
        """Yield responses of one connection, fragments put together; ends by an error."""
        if not await endpoint.connected(CONNECT_SECONDS):
            raise _Broken("cannot connect")
        token = await self._endpoints.token(CONNECT_SECONDS)
        call = endpoint.stream(WATCH)(metadata=metadata_of(token))
        queue: asyncio.Queue[pb.WatchResponse | Exception] = asyncio.Queue(_QUEUE)
        reader = asyncio.create_task(_read(call, queue), name="etcd watch reader")
        fragments: list[pb.Event] = []
        try:
            await _write(call, self._create_request())
            while True:
                response = await _receive(call, queue)
                self._check(response, token)
                if response.fragment:
                    fragments.extend(response.events)
                    continue
                if fragments:
                    fragments.extend(response.events)
                    del response.events[:]
                    response.events.extend(fragments)
                    fragments.clear()
                yield response
        finally:
            call.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _create_request(self) -> pb.WatchRequest:
        self._first = self._next
        create = pb.WatchCreateRequest(
            key=min(self._prefixes) or b"\0",
            range_end=max((range_end(p) for p in self._prefixes), key=lambda end: (end == b"\0", end)),
            start_revision=self._next,
            fragment=True,
        )
        return pb.WatchRequest(create_request=create)

    def _check(self, response: pb.WatchResponse, token: str) -> None:
        if response.compact_revision:
            raise Compacted(
                f"revision {self._next} is compacted, history begins at {response.compact_revision}",
                compact_revision=response.compact_revision,
            )
        if response.canceled:
            # An expired token shows as "permission denied", too: sign in again once.
            self._endpoints.forget_token(token)
            self._denials += any(text in response.cancel_reason for text in _DENIAL_TEXTS)
            if self._denials >= _MAX_DENIALS:
                raise StoreRefused(f"etcd does not let us watch: {response.cancel_reason}")
            raise _Broken(f"cancelled: {response.cancel_reason}")
        self._denials = 0
        self._check_not_rewound(response.header.revision)

    def _check_not_rewound(self, store_revision: int) -> None:
        """Notice that the store is behind what we have seen for long: it was restored from a backup."""
        if store_revision >= self._next - 1:
            self._behind_since = None
            return
        now = time.monotonic()
        self._behind_since = self._behind_since or now
        if now - self._behind_since >= SILENCE_SECONDS:
            raise Compacted(f"etcd is at revision {store_revision}, but {self._next - 1} has been seen: it was rewound")

    def _split(self, response: pb.WatchResponse) -> Iterable[Batch]:
        """Cut a response into revisions; one without events is a sign of life."""
        store_revision = response.header.revision
        if not response.events:
            yield Batch(self._next - 1, (), current=not response.created or store_revision < self._next)
            return
        for revision, group in groupby(response.events, key=lambda event: event.kv.mod_revision):
            # Some releases of etcd replay what we have had; it must not count as new.
            if revision < self._first:
                continue
            events = tuple(self._event(e) for e in group if e.kv.key.startswith(self._prefixes))
            yield Batch(revision, events, current=revision >= store_revision)

    def _event(self, event: pb.Event) -> Event:
        kv = event.kv
        key = kv.key[self._root :].decode(errors="surrogateescape")
        value = None if event.type == pb.Event.DELETE else kv.value
        return Event(key, value, kv.mod_revision, kv.create_revision)


def range_end(prefix: bytes) -> bytes:
    """Return the first key after all those that begin with a prefix."""
    if not prefix:
        return b"\0"
    return prefix[:-1] + bytes([prefix[-1] + 1])


async def _write(call: Any, request: pb.WatchRequest) -> None:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await call.write(request)
    except (TimeoutError, asyncio.InvalidStateError) as error:
        raise _Broken("cannot write to the stream") from error


async def _read(call: Any, queue: asyncio.Queue[pb.WatchResponse | Exception]) -> None:
    try:
        while (response := await call.read()) is not grpc.aio.EOF:
            await queue.put(response)
        await queue.put(_Broken("etcd ended the stream"))
    except grpc.aio.AioRpcError as error:
        await queue.put(error)


async def _receive(call: Any, queue: asyncio.Queue[pb.WatchResponse | Exception]) -> pb.WatchResponse:
    """Wait for a message; ask for a sign of life when none comes."""
    waited = 0.0
    while waited < SILENCE_SECONDS:
        step = min(PROGRESS_SECONDS, SILENCE_SECONDS - waited)
        try:
            async with asyncio.timeout(step):
                item = await queue.get()
        except TimeoutError:
            waited += step
            await _write(call, pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            continue
        if isinstance(item, Exception):
            raise item
        return item
    raise _Broken(f"no sign of life for {SILENCE_SECONDS:g} s")


def _text(error: Exception) -> str:
    return f"{error.code().name} {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
