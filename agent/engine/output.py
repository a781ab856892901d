"""The output of containers, from the engine's own bounded logs, merged by time."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

import docker.errors

from agent.engine.engine import Engine
from agent.engine.watch import Container, Watch
from agent.process.output import CHUNK_BYTES

_FOLLOW_SECONDS = 0.5
_MAX_LINES = 5000
"""Lines taken from one container at a time; what a container writes beyond that between two looks is skipped."""


async def read_output(
    engine: Engine, watch: Watch, workload_id: str, tail_bytes: int, *, follow: bool
) -> AsyncGenerator[bytes, None]:
    """Yield the last bytes, then, when following, what comes until the containers are gone."""
    last = b""
    view = await watch.look(workload_id)
    lines = await _lines(engine, view, since=None)
    first = True
    while True:
        fresh = [(at, text) for at, text in lines if at > last]
        if fresh:
            last = fresh[-1][0]
        data = b"".join(text for _, text in fresh)
        if first:
            data, first = data[-tail_bytes:], False
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]
        view = watch.latest(workload_id) or ()
        if not follow or not view:
            return
        await asyncio.sleep(_FOLLOW_SECONDS)
        lines = await _lines(engine, view, since=last)


async def _lines(engine: Engine, view: tuple[Container, ...], *, since: bytes | None) -> list[tuple[bytes, bytes]]:
    """Return lines with their time stamps, which have a fixed width, so that their order is that of time."""
    found: list[tuple[bytes, bytes]] = []
    for container in view:
        try:
            raw = await engine.call(partial(_logs, container_id=container.id, since=since))
        except docker.errors.APIError:  # removed meanwhile
            continue
        prefix = f"{container.service} | ".encode() if container.service else b""
        for line in raw.splitlines(keepends=True):
            at, _, text = line.partition(b" ")
            found.append((at, prefix + text))
    return sorted(found, key=lambda pair: pair[0])


def _logs(client: Any, container_id: str, since: bytes | None) -> bytes:
    options: dict[str, Any] = {"timestamps": True, "tail": _MAX_LINES}
    if since:
        options["since"] = dt.datetime.fromisoformat(since.decode()[:26] + "+00:00").timestamp()
    data: bytes = client.api.logs(container_id, **options)
    return data
