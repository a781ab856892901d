"""Keeps certificate files good: has a certificate issued when there is none that fits, and a new one in time.

Several processes may share the files. Each turn is taken under a lock of the folder and begins
by reading what is there, so that one issues and the others find it done.

The three files are written as one set: they are links into a folder that one rename replaces,
so nobody who opens them later than that finds a certificate beside the key of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pathlib
import secrets
import shutil
import time
from collections.abc import Callable, Iterator

import structlog

from scheduler.tls.files import BadFiles, TlsFiles, TlsSet, read_set
from scheduler.tls.vault import Issued, VaultFailed

SHARE_OF_LIFE = 0.8
LEAST_SECONDS = 30.0
"""Between two looks, however short a certificate's life is."""
LONGEST_SECONDS = 3600.0
"""A clock that was set, or files that somebody replaced, are noticed by then."""
BUSY_SECONDS = 0.2
"""While another process takes its turn."""
_BUSY_TURNS = 100
"""Longer than any turn: whoever holds the lock then stands still, and is not waited for."""
_CURRENT, _PREFIX = ".fleetbeat-current", ".fleetbeat-issued-"

_log = structlog.get_logger("scheduler.tls.renewal")


def is_fit(found: TlsSet, names: frozenset[str], now: float) -> bool:
    """Return whether a certificate can be used as it is: within its time, and one of these names in it."""
    return found.not_before <= now < found.not_after and not names.isdisjoint(found.names)


def renew_at(found: TlsSet) -> float:
    """Return when four fifths of a certificate's life are over, in Unix seconds."""
    return found.not_before + SHARE_OF_LIFE * (found.not_after - found.not_before)


class Renewal:
    """The renewal of one set of files."""

    def __init__(
        self,
        files: TlsFiles,
        names: frozenset[str],
        issue: Callable[[], Issued],
        *,
        retry_seconds: float,
        least_seconds: float = LEAST_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Take the files, all in one folder, the names of which a fitting certificate has one, and who issues."""
        self._files = files
        self._names = names
        self._issue = issue
        self._retry = retry_seconds
        self._least = least_seconds
        self._now = now
        self.on_issue: Callable[[bool], None] = lambda _good: None
        """Told of each attempt, and whether it gave a certificate."""

    async def open(self, stop: asyncio.Event) -> float:
        """Wait until the files can be used, as new as may be; return in how many seconds to look again.

        While no certificate is issued, files that somebody else put there do. Returns early when stopped.
        """
        patience = _BUSY_TURNS
        while not stop.is_set():
            wait = await asyncio.to_thread(self.turn)
            patience -= 1
            if (wait != BUSY_SECONDS or patience < 0) and _readable(self._files):
                return wait
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), wait)
        return self._retry

    async def run(self, wait_seconds: float) -> None:
        """Go on for ever, first after so long."""
        while True:
            await asyncio.sleep(wait_seconds)
            wait_seconds = await asyncio.to_thread(self.turn)

    def turn(self) -> float:
        """Issue a certificate if it is time to; return in how many seconds to look again. Blocks."""
        try:
            with self._locked() as is_ours:
                return self._turn() if is_ours else BUSY_SECONDS
        except (VaultFailed, BadFiles, OSError) as error:
            _log.error("no certificate was issued, the files stay as they are", error=str(error), again_in=self._retry)
        except Exception:  # noqa: BLE001 - without renewal the certificate would end, long after a defect
            _log.exception("issuing a certificate hit a defect, the files stay as they are", again_in=self._retry)
        self.on_issue(False)  # noqa: FBT003 - it is data
        return self._retry

    def _turn(self) -> float:
        found = _readable(self._files)
        if found is None or not is_fit(found, self._names, self._now()) or self._now() >= renew_at(found):
            write_set(self._files, self._issue())
            found = read_set(self._files)
            _log.info("a certificate was issued", file=self._files.cert, names=found.names[:4])
            self.on_issue(True)  # noqa: FBT003
        return min(max(self._least, renew_at(found) - self._now()), LONGEST_SECONDS)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        folder = pathlib.Path(self._files.cert).parent
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".fleetbeat-lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True  # closing the file ends the lock


def _readable(files: TlsFiles) -> TlsSet | None:
    try:
        return read_set(files)
    except BadFiles:
        return None


def write_set(files: TlsFiles, issued: Issued) -> None:
    """Put what was issued in the place of the files, all three at once; raises OSError, BadFiles."""
    paths = [pathlib.Path(path) for path in (files.ca, files.cert, files.key)]
    folder = paths[0].parent
    made = folder / f"{_PREFIX}{secrets.token_hex(8)}"
    made.mkdir(mode=0o755)
    try:
        for path, text, mode in zip(paths, (issued.ca, issued.cert, issued.key), (0o644, 0o644, 0o600), strict=True):
            _write(made / path.name, text, mode)
        read_set(TlsFiles(*(str(made / path.name) for path in paths)))
    except BaseException:
        shutil.rmtree(made)
        raise
    before = _link(folder / _CURRENT, made.name)
    for path in paths:
        _link(path, f"{_CURRENT}/{path.name}")
    for old in folder.glob(f"{_PREFIX}*"):
        if old.name not in (made.name, before):  # who opened the set before may still be reading it
            shutil.rmtree(old, ignore_errors=True)


def _write(path: pathlib.Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
        file.flush()
        os.fsync(descriptor)


def _link(path: pathlib.Path, target: str) -> str:
    """Make the path a link to the target by one rename; return where it led before, blank when it was none."""
    before = os.readlink(path) if path.is_symlink() else ""  # noqa: PTH115 - as text, not resolved
    if before != target:
        spare = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        spare.symlink_to(target)
        spare.replace(path)
    return before
