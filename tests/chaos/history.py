"""The history of a run: one line of JSON for each thing that happened, in the order in which it was seen.

store   all that one revision of etcd changed; value null: the record was deleted
copies  the processes that workloads were, at one moment
fault   what was done to the cluster
call    what a user asked for, and what came of it
calm    the faults have stopped
end     the run is over
"""

from __future__ import annotations

import json
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal, TypedDict

Kind = Literal["store", "copies", "fault", "call", "calm", "end"]


class Line(TypedDict, total=False):
    """One line; which fields there are depends on the kind."""

    kind: Kind
    at: float
    """Seconds since the run began."""
    revision: int
    changes: list[tuple[str, dict[str, Any] | None]]
    copies: dict[str, list[int]]
    what: str


class History:
    """Writes lines; any thread may."""

    def __init__(self, path: pathlib.Path) -> None:
        """Begin a file."""
        self.path = path
        self._file = path.open("w")
        self._lock = threading.Lock()
        self._begin = time.monotonic()

    def add(self, kind: Kind, **fields: Any) -> None:
        """Write one line."""
        with self._lock:
            line = {"kind": kind, "at": round(time.monotonic() - self._begin, 3), **fields}
            self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """End the file."""
        self._file.close()


def read(path: pathlib.Path) -> Iterator[Line]:
    """Yield the lines of a file."""
    with path.open() as file:
        for text in file:
            yield json.loads(text)
