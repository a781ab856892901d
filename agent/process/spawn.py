"""Starting a process in two strokes: first it exists and can be recorded, then it may run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import pathlib
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.process import table
from agent.records import Code, Failure
from agent.runtimes import StartFailed

_LAUNCHER = str(pathlib.Path(__file__).with_name("launcher.py"))
_LAUNCH_SECONDS = 30.0
_ERRORS_FD = 3
_SAFE_FD = 10
_MAX_ERROR_BYTES = 65536
_NOT_RUNNABLE = {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.E2BIG, errno.ELOOP}


@dataclass(frozen=True)
class Instruction:
    """What the launcher is to become."""

    command: Sequence[str]
    env: Mapping[str, str]
    folder: str
    cgroups: Sequence[str]
    """cgroup.procs files to enter."""
    file_bytes: int
    """The largest file it may write; 0 means no limit."""
    nice: int
    not_after: float = 0.0
    """The second since boot from which on it must not begin; 0: there is none."""


@dataclass(frozen=True)
class Launch:
    """A launcher that waits for its instruction."""

    pid: int
    start_ticks: int
    go: int
    errors: int


def begin(marks: Mapping[str, str], output: pathlib.Path) -> Launch:
    """Start a launcher in a session of its own, its output appended to the file; it runs nothing yet."""
    order_read, order_write = _pipe()
    error_read, error_write = _pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", _LAUNCHER],
            {**marks, "LC_ALL": "C.UTF-8"},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, order_read, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, error_write, _ERRORS_FD),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM],
        )
    except OSError as error:
        os.close(order_write)
        os.close(error_read)
        raise StartFailed(_failure(error.errno, f"cannot start a process: {error}")) from None
    finally:
        os.close(order_read)
        os.close(error_write)
    found = table.read(pid)  # our own child: it stays in the table until we wait for it
    return Launch(pid, found.start_ticks if found else 0, order_write, error_read)


def release(launch: Launch, instruction: Instruction) -> None:
    """Let the launcher become the command; returns when it has; raises StartFailed when it cannot."""
    try:
        try:
            _write_all(launch.go, json.dumps(vars(instruction)).encode())
        except BrokenPipeError:
            raise StartFailed(Failure(Code.RUNTIME_ERROR, "the launcher ended before its instruction")) from None
        finally:
            os.close(launch.go)
        answer = _read_answer(launch.errors)
    finally:
        os.close(launch.errors)
    if answer:
        told = json.loads(answer)
        raise StartFailed(_failure(told["errno"], f"cannot run {instruction.command[0]!r}: {told['error']}"))


def abandon(launch: Launch) -> None:
    """Send the launcher home: it ends without having run anything."""
    os.close(launch.go)
    os.close(launch.errors)


def exit_code(pid: int) -> int | None:
    """Return the exit code of our ended child, negative for a signal; None when it is not (or no longer) our child."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


def _read_answer(handle: int) -> bytes:
    """Read until the launcher's end of the pipe is closed, which becoming the command does."""
    found = b""
    waiter = select.poll()  # unlike select(), it takes any descriptor
    waiter.register(handle, select.POLLIN)
    while len(found) < _MAX_ERROR_BYTES:
        if not waiter.poll(_LAUNCH_SECONDS * 1000):
            raise StartFailed(Failure(Code.RUNTIME_ERROR, f"the launcher did not run in {_LAUNCH_SECONDS:g} s"))
        part = os.read(handle, _MAX_ERROR_BYTES)
        if not part:
            break
        found += part
    return found


def _failure(number: int | None, text: str) -> Failure:
    if number in _NOT_RUNNABLE:
        return Failure(Code.INVALID_CONFIGURATION, text)
    if number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return Failure(Code.INSUFFICIENT_RESOURCES, text)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return Failure(Code.STORAGE_FULL, text)
    return Failure(Code.RUNTIME_ERROR, text)


def _pipe() -> tuple[int, int]:
    """Return a pipe whose ends lie above the descriptors that the launcher is given."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _SAFE_FD) for end in ends)
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
