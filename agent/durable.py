"""Files that are either wholly there or not, also after a power cut."""

from __future__ import annotations

import os
import pathlib


def write_durably(path: pathlib.Path, data: bytes) -> None:
    """Replace the file by these bytes, readable by the owner only; on return they are on disk."""
    scratch = path.with_name(f".{path.name}.new")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        _write_all(handle, data)
        os.fsync(handle)
    finally:
        os.close(handle)
    scratch.replace(path)
    sync_folder(path.parent)


def remove_durably(path: pathlib.Path) -> None:
    """Remove the file, if it is there; on return it stays removed."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: pathlib.Path) -> None:
    """Bring renames and removals in the folder to disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
