"""A small HTTP server for what Prometheus and load balancers ask: GET /metrics, /healthz, /readyz. Nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import structlog

MAX_CONNECTIONS = 64
REQUEST_SECONDS = 5.0
MAX_HEADER_BYTES = 8_192
TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"

_log = structlog.get_logger("scheduler.front.http")


@dataclass(frozen=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK


def json_page(content: dict[str, str], status: HTTPStatus = HTTPStatus.OK) -> Page:
    """Return an answer in JSON."""
    return Page(json.dumps(content).encode() + b"\n", JSON, status)


class HttpServer:
    """Serves pages by path, one request a connection."""

    def __init__(self, pages: dict[str, Callable[[], Page]]) -> None:
        """Take what makes the page of each path."""
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port, which is a free one when 0 was given. Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEADER_BYTES)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening."""
        if self._server:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                page = await self._answer(reader) if self._open <= MAX_CONNECTIONS else _refusal(503)
                await _send(writer, page)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.debug("an HTTP request came to nothing", error=repr(error))
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> Page:
        head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")
        path = rest.split(" ")[0].split("?")[0]
        if method not in ("GET", "HEAD"):
            return _refusal(405)
        make = self._pages.get(path)
        if make is None:
            return _refusal(404)
        try:
            page = make()
        except Exception:  # noqa: BLE001 - told as 500, and in the log
            _log.exception("a page hit a defect", path=path)
            return _refusal(500)
        return page if method == "GET" else Page(b"", page.content_type, page.status)


def _refusal(number: int) -> Page:
    status = HTTPStatus(number)
    return Page(f"{status.phrase}\n".encode(), "text/plain", status)


async def _send(writer: asyncio.StreamWriter, page: Page) -> None:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    writer.write(head.encode() + page.body)
    await writer.drain()
