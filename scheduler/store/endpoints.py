"""Connections to the etcd members: which one to ask, how to sign in, and what a failure means.

One channel a member. All calls go to the current member until it fails; then the next one
becomes current. A call is sent only over a connection that stands, so a member that is down
costs no doubt: what was never sent was not applied.
"""

from __future__ import annotations

import asyncio
import pathlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

import grpc

from scheduler.domain.errors import FleetbeatError, StoreUnavailable
from scheduler.pb import etcdmin_pb2 as pb
from scheduler.store.kv import Compacted, LeaseNotFound, StoreRefused, UnknownOutcome

A = TypeVar("A")
Metadata = tuple[tuple[str, str], ...]

_MAX_MESSAGE_BYTES = 64 << 20
_OPTIONS = (
    # Pings on an idle channel make etcd hang up (ENHANCE_YOUR_CALM); open streams are pinged anyway.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # gRPC itself must never send a write a second time.
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
CONNECT_SECONDS = 1.0
"""A member that has not completed a connection by then is passed over."""
_POLL_SECONDS = 0.005
_PAUSE_SECONDS = 0.02
_PAUSE_CAP_SECONDS = 0.2
_MAX_SIGN_INS = 2


@dataclass(frozen=True)
class TlsFiles:
    """PEM files for TLS towards etcd; cert and key together for a client certificate."""

    ca: str
    cert: str = ""
    key: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files."""
        ca, cert, key = (pathlib.Path(p).read_bytes() if p else None for p in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


@dataclass(frozen=True)
class Method:
    """An RPC of etcd: its path and the class of its answer."""

    path: str
    answer: Any


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnResponse)
GRANT = Method("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse)
KEEPALIVE = Method("/etcdserverpb.Lease/LeaseKeepAlive", pb.LeaseKeepAliveResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", pb.WatchResponse)
STATUS = Method("/etcdserverpb.Maintenance/Status", pb.StatusResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)


class Failure(Enum):
    """What a failed call means."""

    NOT_SENT = auto()
    """It was certainly not applied; another try may succeed."""
    UNCLEAR = auto()
    """It may have been applied."""
    SIGN_IN = auto()
    """The token is missing, expired or too old; not applied."""
    REFUSED = auto()
    """It was not applied and never will be."""
    COMPACTED = auto()
    LEASE_GONE = auto()


_UNCLEAR_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
}
_NOT_APPLIED_TEXTS = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")
SIGN_IN_TEXTS = ("user name is empty", "invalid auth token", "revision of auth store is old")


def failure_of(error: grpc.aio.AioRpcError) -> Failure:
    """Classify a failed call by its code, and by etcd's fixed texts where the code leaves it open."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNAUTHENTICATED or any(text in details for text in SIGN_IN_TEXTS):
        return Failure.SIGN_IN
    if any(text in details for text in _NOT_APPLIED_TEXTS):
        return Failure.NOT_SENT
    if code is grpc.StatusCode.OUT_OF_RANGE:  # else a future revision: this member lags behind
        return Failure.COMPACTED if "compacted" in details else Failure.NOT_SENT
    if code is grpc.StatusCode.NOT_FOUND and "lease" in details:
        return Failure.LEASE_GONE
    return Failure.UNCLEAR if code in _UNCLEAR_CODES else Failure.REFUSED


class Endpoint:
    """One member and the channel to it, opened on first use."""

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        """Take host:port."""
        self.address = address.removeprefix("http://").removeprefix("https://")
        self._tls = tls
        self._channel: grpc.aio.Channel | None = None
        self._callables: dict[str, Any] = {}

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel; must first be used in the loop that goes on using it."""
        if self._channel is None:
            if self._tls:
                self._channel = grpc.aio.secure_channel(self.address, self._tls.credentials(), _OPTIONS)
            else:
                self._channel = grpc.aio.insecure_channel(self.address, _OPTIONS)
        return self._channel

    def unary(self, method: Method) -> Any:
        """Return the callable of a unary RPC."""
        if method.path not in self._callables:
            self._callables[method.path] = self.channel.unary_unary(method.path, _serialize, method.answer.FromString)
        return self._callables[method.path]

    def stream(self, method: Method) -> Any:
        """Return the callable of a bidirectional RPC."""
        return self.channel.stream_stream(method.path, _serialize, method.answer.FromString)

    async def connected(self, timeout_seconds: float) -> bool:
        """Wait until the connection stands; False when it fails or takes too long."""
        deadline = time.monotonic() + timeout_seconds
        while (state := self.channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE or time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_POLL_SECONDS)
        return True

    async def close(self) -> None:
        """Close the channel."""
        self._callables.clear()
        channel, self._channel = self._channel, None
        if channel:
            await channel.close()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


Invoke = Callable[[Endpoint, float, Metadata], Awaitable[A]]
"""Sends a call to a member with a timeout in seconds and metadata."""


class Endpoints:
    """All members, of which one is current; and the token of the user."""

    def __init__(
        self, addresses: Sequence[str], tls: TlsFiles | None = None, user: str = "", password: str = ""
    ) -> None:
        """Take host:port of each member, and how to get in."""
        if not addresses:
            raise ValueError("etcd needs at least one endpoint")
        self.all = tuple(Endpoint(address, tls) for address in addresses)
        self._current = 0
        self._user = user
        self._password = password
        self._token = ""
        self._signing_in = asyncio.Lock()

    @property
    def current(self) -> Endpoint:
        """The member that calls go to."""
        return self.all[self._current]

    def move_on(self, failed: Endpoint) -> None:
        """Make the next member current, unless somebody has already moved on from the failed one."""
        if self.current is failed:
            self._current = (self._current + 1) % len(self.all)

    async def call(self, invoke: Invoke[A], *, timeout_seconds: float, repeatable: bool, anonymous: bool = False) -> A:
        """Make a call at the current member, and at the next ones as long as that is safe.

        repeatable: it may be sent again although it may have been carried out (reads, and
        what has the same effect twice). Raises StoreUnavailable, UnknownOutcome,
        StoreRefused, LeaseNotFound, Compacted.
        """
        deadline = time.monotonic() + timeout_seconds
        tries = sign_ins = 0
        while True:
            endpoint = self.current
            try:
                return await self._try(invoke, endpoint, deadline, half=repeatable, anonymous=anonymous)
            except _NotConnected as error:
                problem: Exception = error
            except grpc.aio.AioRpcError as error:
                problem = error
                failure = failure_of(error)
                if failure is Failure.SIGN_IN and self._user and sign_ins < _MAX_SIGN_INS:
                    sign_ins += 1
                    continue
                if failure is Failure.UNCLEAR and not repeatable:
                    self.move_on(endpoint)
                    raise UnknownOutcome(f"{_describe(endpoint, error)}; the write may have been applied") from error
                if failure not in (Failure.UNCLEAR, Failure.NOT_SENT):
                    raise _raised(failure, endpoint, error) from error
            self.move_on(endpoint)
            pause = random.uniform(0.5, 1) * min(_PAUSE_CAP_SECONDS, _PAUSE_SECONDS * 2**tries)  # noqa: S311
            tries += 1
            if time.monotonic() + pause >= deadline:
                raise StoreUnavailable(f"no answer in {timeout_seconds:g} s; {_describe(endpoint, problem)}")
            await asyncio.sleep(pause)

    async def _try(self, invoke: Invoke[A], endpoint: Endpoint, deadline: float, *, half: bool, anonymous: bool) -> A:
        left = deadline - time.monotonic()
        if not await endpoint.connected(min(left, CONNECT_SECONDS)):
            raise _NotConnected("cannot connect")
        token = "" if anonymous else await self.token(deadline - time.monotonic())
        left = deadline - time.monotonic()
        # A member that hangs must leave time to ask another one.
        timeout = left / 2 if half and len(self.all) > 1 else left
        try:
            return await invoke(endpoint, max(timeout, 0.001), metadata_of(token))
        except grpc.aio.AioRpcError as error:
            if failure_of(error) is Failure.SIGN_IN:
                self.forget_token(token)
            raise

    async def token(self, timeout_seconds: float) -> str:
        """Return the user's token, signing in when there is none; blank without a user."""
        if not self._user or self._token:
            return self._token
        try:
            async with asyncio.timeout(timeout_seconds), self._signing_in:
                if not self._token:
                    self._token = await self._sign_in(timeout_seconds)
                return self._token
        except TimeoutError:
            raise StoreUnavailable(f"could not sign in to etcd within {timeout_seconds:g} s") from None

    def forget_token(self, token: str) -> None:
        """Sign in again before the next call, unless that has been done since this token was used."""
        if self._token == token:
            self._token = ""

    async def _sign_in(self, timeout_seconds: float) -> str:
        request = pb.AuthenticateRequest(name=self._user, password=self._password)

        async def invoke(endpoint: Endpoint, seconds: float, metadata: Metadata) -> str:
            answer = await endpoint.unary(AUTHENTICATE)(request, timeout=seconds, metadata=metadata)
            token: str = answer.token
            return token

        try:
            return await self.call(invoke, timeout_seconds=timeout_seconds, repeatable=True, anonymous=True)
        except StoreRefused as error:
            if "authentication is not enabled" in str(error):
                return ""
            raise

    async def close(self) -> None:
        """Close all channels."""
        for endpoint in self.all:
            await endpoint.close()


def metadata_of(token: str) -> Metadata:
    """Ask the member to fail at once without a leader, and carry the user's token."""
    # Without "hasleader" a member cut off from the quorum hangs, and its watches look healthy.
    return (("hasleader", "true"), ("token", token)) if token else (("hasleader", "true"),)


class _NotConnected(Exception):  # noqa: N818 - private
    """The connection does not stand."""


def _describe(endpoint: Endpoint, error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"etcd {endpoint.address}: {error.code().name} {error.details()}"
    return f"etcd {endpoint.address}: {error}"


def _raised(failure: Failure, endpoint: Endpoint, error: grpc.aio.AioRpcError) -> FleetbeatError:
    text = _describe(endpoint, error)
    if failure is Failure.COMPACTED:
        return Compacted(text)
    return LeaseNotFound(text) if failure is Failure.LEASE_GONE else StoreRefused(text)
