"""The kept output of a workload: one file that its processes append to, cut when it grows too long.

The processes write by themselves, so that output survives the agent. Cutting copies the tail
to `{name}.1` and empties the file; what is written in the moment between the two is lost.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, Callable

CHUNK_BYTES = 64 * 1024
_FOLLOW_SECONDS = 0.2


class Output:
    """One workload's output. Positions count all bytes since this object was made, so that cuts do not move them."""

    def __init__(self, path: pathlib.Path, most_bytes: int) -> None:
        """Take the file at the path, which need not exist yet, and the size at which it is cut."""
        self.path = path
        self._older = path.with_name(path.name + ".1")
        self._most = most_bytes
        self._base = _size(self._older)
        self._lock = asyncio.Lock()

    async def cut(self) -> None:
        """Keep the last half when the file has grown beyond its bound."""
        async with self._lock:
            if _size(self.path) > self._most:
                self._base += await asyncio.to_thread(self._cut)

    def _cut(self) -> int:
        scratch = self._older.with_name(self._older.name + ".new")
        with self.path.open("r+b") as file, scratch.open("wb") as kept:
            file.seek(-(self._most // 2), os.SEEK_END)
            kept.write(file.read())
            kept.write(file.read())  # what came while the first part was written
            size = file.tell()
            scratch.replace(self._older)
            file.truncate(0)
        return size

    async def read(self, position: int, most_bytes: int) -> tuple[bytes, int]:
        """Return some bytes from the position on, and the position after them; what was cut away is skipped."""
        async with self._lock:
            return await asyncio.to_thread(self._read, position, most_bytes)

    def _read(self, position: int, most_bytes: int) -> tuple[bytes, int]:
        start = max(position, self._base - _size(self._older))
        file, offset = (self._older, start - self._base + _size(self._older))
        if start >= self._base:
            file, offset = self.path, start - self._base
        try:
            with file.open("rb") as source:
                source.seek(offset)
                data = source.read(most_bytes)
        except FileNotFoundError:
            data = b""
        return data, start + len(data)

    async def tail(
        self, tail_bytes: int, *, follow: bool, ended: Callable[[], bool] = lambda: False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the last bytes, then, when following, what comes until `ended` says that nothing more will."""
        async with self._lock:
            end = self._base + _size(self.path)
        position = max(0, end - tail_bytes)
        while True:
            was_ended = ended()
            bound = CHUNK_BYTES if follow else max(0, min(CHUNK_BYTES, end - position))
            data, position = await self.read(position, bound)
            if data:
                yield data
            elif not follow or was_ended:
                return
            else:
                await asyncio.sleep(_FOLLOW_SECONDS)


def _size(path: pathlib.Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
