"""A TCP proxy that a test can cut: at once, after so many bytes, or between a request and its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from tests.support.servers import free_port

_CHUNK = 16_384


class TcpProxy:
    """Forwards connections to a server in the loop of the test."""

    def __init__(self, target_port: int) -> None:
        """Take the port of the server."""
        self.port = free_port()
        self.connections = 0
        self.mute = False
        """While set, what the server sends is thrown away."""
        self.cut_after: int | None = None
        """Cut the next connection after it brought so many bytes; then None again."""
        self.on_answer: Callable[[bytes], bytes] = lambda data: data
        self._target_port = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        """host:port of the proxy."""
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        """Stop listening and cut all connections."""
        if self._server:
            self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, up_writer}
        self._writers |= pair
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, up_writer))
                group.create_task(self._forward_answers(up_reader, writer))
        except* (OSError, _Cut):
            pass
        finally:
            self._writers -= pair
            for each in pair:
                each.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        raise _Cut

    async def _forward_answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        brought = 0
        while data := await reader.read(_CHUNK):
            brought += len(data)
            if self.mute:
                continue
            if self.cut_after is not None and brought >= self.cut_after:
                self.cut_after = None
                raise _Cut
            writer.write(data)
            await writer.drain()
        raise _Cut


class _Cut(Exception):  # noqa: N818 - private
    """Ends both directions of a connection."""


@contextlib.asynccontextmanager
async def proxied(target_port: int) -> AsyncIterator[TcpProxy]:
    """Run a proxy for a block."""
    proxy = TcpProxy(target_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
