"""A TCP proxy for tests without an event loop of their own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from tests.support.servers import Server
from tests.support.tcp_proxy import TcpProxy


@contextlib.contextmanager
def proxied(server: Server) -> Iterator[TcpProxy]:
    """Run a proxy before a server, in a thread, for a block. Its flags may be set from outside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = TcpProxy(server.port)
    try:
        asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(5)
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(_stop(proxy), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def _stop(proxy: TcpProxy) -> None:
    await proxy.stop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:  # the connections that were cut
        await asyncio.wait(others, timeout=2)
