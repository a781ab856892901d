"""Ask a child whether it works, and make sure that the one who answers is that child."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import psutil

_ASK_SECONDS = 2.0
_ANSWER_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Subject:
    """The process that a probe asks about, and where its own part of the log begins."""

    pid: int
    log: pathlib.Path
    log_start: int


Probe = Callable[[Subject], Awaitable[bool]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def etcd_works(port: int) -> Probe:
    """Probe etcd: it has a leader and serves clients."""
    return all_work(listens(port), http_works(port, "/health", b'"true"'))


def redis_works(port: int) -> Probe:
    """Probe Redis: its data are loaded, and the process that answers is the child."""

    async def works(subject: Subject) -> bool:
        async with _closing(await asyncio.open_connection("127.0.0.1", port)) as (reader, writer):
            writer.write(b"PING\r\nINFO server\r\n")
            answer = await _read_until(reader, b"\r\nlru_clock:")
        return answer.startswith(b"+PONG") and f"process_id:{subject.pid}\r\n".encode() in answer

    return _patiently(works)


def http_works(port: int, path: str, contains: bytes = b"") -> Probe:
    """Probe an HTTP server of the child: 200 and, where given, these bytes in the answer."""

    async def works(_subject: Subject) -> bool:
        async with _closing(await asyncio.open_connection("127.0.0.1", port)) as streams:
            return await _answers_well(streams, path, contains)

    return _patiently(works)


async def docker_answers(socket_path: str) -> bool:
    """Say whether a Docker engine answers at this socket."""

    async def works(_subject: Subject) -> bool:
        async with _closing(await asyncio.open_unix_connection(socket_path)) as streams:
            return await _answers_well(streams, "/_ping", b"")

    return await _patiently(works)(Subject(0, pathlib.Path(os.devnull), 0))


async def _answers_well(streams: Streams, path: str, contains: bytes) -> bool:
    reader, writer = streams
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = await _read_until(reader, contains or b"\r\n")
    return answer.split(b" ", 2)[1:2] == [b"200"] and contains in answer


async def _read_until(reader: asyncio.StreamReader, wanted: bytes) -> bytes:
    """Read until these bytes have come, or the end, or the bound."""
    answer = b""
    while wanted not in answer and len(answer) < _ANSWER_BYTES_MAX and (more := await reader.read(4096)):
        answer += more
    return answer


def listens(port: int) -> Probe:
    """Probe that the child, or a child of its own, listens on this port."""

    async def works(subject: Subject) -> bool:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(subject.pid)
            for one in (process, *process.children(recursive=True)):
                for socket in one.net_connections(kind="tcp"):
                    if socket.status == psutil.CONN_LISTEN and socket.laddr.port == port:
                        return True
        return False

    return works


def log_says(words: bytes) -> Probe:
    """Probe that the child has written these words to its log since it was started."""

    async def works(subject: Subject) -> bool:
        with subject.log.open("rb") as file:
            file.seek(subject.log_start)
            return words in file.read()

    return works


def all_work(*probes: Probe) -> Probe:
    """Probe several things."""

    async def works(subject: Subject) -> bool:
        for probe in probes:
            if not await probe(subject):
                return False
        return True

    return works


def _patiently(probe: Probe) -> Probe:
    async def works(subject: Subject) -> bool:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return await probe(subject)
        except (OSError, TimeoutError):
            return False

    return works


@contextlib.asynccontextmanager
async def _closing(streams: Streams) -> AsyncIterator[Streams]:
    try:
        yield streams
    finally:
        streams[1].close()
        with contextlib.suppress(OSError):
            await streams[1].wait_closed()
