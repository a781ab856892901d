"""Reaching a front: which one, for how long, and what is said when it does not answer or refuses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from scheduler.cli.options import CommandError, Options
from scheduler.pb import control_pb2_grpc, fleetbeat_pb2_grpc

CONNECT_SECONDS = 3.0
"""A front that restarts is back within this."""
CALL_SECONDS = 15.0
HEAD_START_SECONDS = 0.3
"""How long the other fronts are left alone: the first one named is the one to use while it answers."""
_AGAIN_SECONDS = 0.2
_CHANNEL = [
    ("grpc.enable_http_proxy", 0),  # a proxy for the web is none for the fleet
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
_AWAY = (grpc.StatusCode.UNAVAILABLE,)


class UnreachableError(CommandError):
    """The front does not answer."""


class NoSuchRecordError(CommandError):
    """The front does not know what was asked for."""


def servers_of(options: Options) -> list[str]:
    """Return the fronts to try: those of --server, else the one of the cluster on this machine."""
    named = options.server or _server_in(options)
    servers = [s.strip() for s in named.split(",") if s.strip()]
    for server in servers:
        host, _, port = server.rpartition(":")
        is_bare_ipv6 = ":" in host and not host.startswith("[")
        if not host or is_bare_ipv6 or not port.isdecimal() or not 1 <= int(port) <= 65535:  # noqa: PLR2004
            raise CommandError(f"--server {server!r} is not HOST:PORT (an IPv6 host in brackets)")
    if not servers:
        raise CommandError("--server is blank; give HOST:PORT")
    return servers


def _server_in(options: Options) -> str:
    path = options.data / "cluster.json"
    try:
        server = json.loads(path.read_text())["server"]
    except FileNotFoundError:
        raise CommandError(
            f"no cluster runs here: there is no {path}; start one with `fleetbeat up`, "
            "or name a front with --server HOST:PORT or FLEETBEAT_SERVER"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(
            f"{path} cannot be used ({type(error).__name__}: {error}); name a front with --server"
        ) from None
    return str(server)


def _credentials_of(options: Options) -> grpc.ChannelCredentials | None:
    """Return what the certificate files make; None when there are none. Raises CommandError."""
    files = {"--ca": options.tls_ca, "--cert": options.tls_cert, "--key": options.tls_key}
    if not any(files.values()):
        return None
    if missing := [name for name, path in files.items() if not path]:
        raise CommandError(f"--ca, --cert and --key must be given together; {', '.join(missing)} is missing")
    from scheduler.tls.credentials import channel_credentials  # noqa: PLC0415 - few commands need them
    from scheduler.tls.files import BadFiles, TlsFiles, read_client_set  # noqa: PLC0415

    try:
        return channel_credentials(read_client_set(TlsFiles(options.tls_ca, options.tls_cert, options.tls_key)))
    except BadFiles as error:
        raise CommandError(f"--ca, --cert and --key: {error}") from None


class Front:
    """A connection to one front, for one command: `async with Front(options) as front`."""

    def __init__(self, options: Options) -> None:
        """Find out which fronts there are; raises CommandError."""
        self._servers = servers_of(options)
        self._is_embedded = not options.server
        self._credentials = None if self._is_embedded else _credentials_of(options)
        self.server = self._servers[0]

    async def __aenter__(self) -> Self:
        """Connect to the first front that answers; raises UnreachableError."""
        channels = [self._dial(server) for server in self._servers]
        found: int | None = None
        try:
            found = await _first_ready(channels)
        finally:
            for place, channel in enumerate(channels):
                if place != found:
                    await channel.close()
        if found is None:
            raise UnreachableError(f"no front answers at {', '.join(self._servers)}{self._hint()}")
        self._channel, self.server = channels[found], self._servers[found]
        self.control: Any = control_pb2_grpc.AgentControlStub(self._channel)
        self.fleet: Any = fleetbeat_pb2_grpc.FleetStub(self._channel)
        return self

    def _hint(self) -> str:
        if self._is_embedded:
            return "; is the cluster still up? `fleetbeat up` starts it"
        if self._credentials:
            return "; or its certificate is not of --ca, not for the name dialled, or it does not take that of --cert"
        return ""

    def _dial(self, server: str) -> grpc.aio.Channel:
        if self._credentials:
            return grpc.aio.secure_channel(server, self._credentials, options=_CHANNEL)
        return grpc.aio.insecure_channel(server, options=_CHANNEL)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self._channel.close()

    async def write(self, method: Callable[..., Any], request: Any, *, timeout_seconds: float = CALL_SECONDS) -> Any:
        """Call a method that changes something, once; raises CommandError."""
        try:
            return await method(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            told = self.told(error)
            unknown = isinstance(told, UnreachableError)
            hint = "; whether it was done is not known, it is safe to repeat the command" if unknown else ""
            raise type(told)(told.message + hint) from None

    async def read(self, method: Callable[..., Any], request: Any, *, timeout_seconds: float = CALL_SECONDS) -> Any:
        """Call a method that only reads; a front that is away for a moment is asked again. Raises CommandError."""
        give_up = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                return await method(request, timeout=timeout_seconds)
            except grpc.aio.AioRpcError as error:
                if error.code() not in _AWAY or time.monotonic() > give_up:
                    raise self.told(error) from None
            await asyncio.sleep(_AGAIN_SECONDS)

    async def stream(
        self, method: Callable[..., Any], request: Any, *, timeout_seconds: float | None
    ) -> AsyncIterator[Any]:
        """Read a stream; raises CommandError. Without a time-out it goes on until it is cancelled."""
        try:
            async for message in method(request, timeout=timeout_seconds):
                yield message
        except grpc.aio.AioRpcError as error:
            raise self.told(error) from None

    def told(self, error: grpc.aio.AioRpcError) -> CommandError:
        """Say in one line which front answered what."""
        code = error.code()
        details = " ".join((error.details() or "no reason given").split())
        if code in _AWAY:
            return UnreachableError(f"front {self.server} is not available: {details}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(f"front {self.server} did not answer in time")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return CommandError(f"front {self.server} does not offer this; is it of another version? ({details})")
        kind = NoSuchRecordError if code is grpc.StatusCode.NOT_FOUND else CommandError
        return kind(f"front {self.server}: {details} ({code.name})")


async def _first_ready(channels: Sequence[grpc.aio.Channel]) -> int | None:
    """Return the place of the first channel that connects, None when none does in time.

    All are tried at once: a front that is down must not cost each command its whole time-out.
    """
    waits = [asyncio.create_task(channels[0].channel_ready())]
    try:
        await asyncio.wait(waits, timeout=min(HEAD_START_SECONDS, CONNECT_SECONDS))
        if not waits[0].done():
            waits += [asyncio.create_task(channel.channel_ready()) for channel in channels[1:]]
            await asyncio.wait(waits, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return next((place for place, wait in enumerate(waits) if wait.done()), None)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def pages(front: Front, method: Callable[..., Any], request: Any) -> AsyncIterator[Any]:
    """Read all pages of a list; the request's page_size and page_token are set here."""
    request.page_size = 500
    while True:
        response = await front.read(method, request)
        yield response
        if not response.next_page_token or response.next_page_token == request.page_token:
            return
        request.page_token = response.next_page_token
