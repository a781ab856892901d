"""The kernel's process table: who runs, since when, in which session, for which workload.

Linux only: it reads /proc. A pid together with its start time (in ticks since boot) and the
boot id names one process for ever, whatever the wall clock does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

WORKLOAD_MARK = "FLEETBEAT_WORKLOAD_ID"
EPOCH_MARK = "FLEETBEAT_WORKLOAD_EPOCH"
REVISION_MARK = "FLEETBEAT_WORKLOAD_REVISION"
PID_MARK = "FLEETBEAT_WORKLOAD_PID"
"""The pid of a workload's first process; the launcher sets it."""
AGENT_MARK = "FLEETBEAT_AGENT_ID"
_PROC = pathlib.Path("/proc")
_ENDED = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the table."""

    pid: int
    parent: int
    group: int
    session: int
    start_ticks: int
    ended: bool
    """Only its exit status is left."""


def boot_id() -> str:
    """Return what names this boot of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def read(pid: int) -> Process | None:
    """Return one process; None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, group, session, *rest = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(parent), int(group), int(session), int(rest[15]), state in _ENDED)


def read_all() -> list[Process]:
    """Return all processes that have not ended."""
    return [p for p in map(read, _pids()) if p and not p.ended]


def is_alive(pid: int, start_ticks: int) -> bool:
    """Say whether this very process still runs."""
    found = read(pid)
    return found is not None and not found.ended and found.start_ticks == start_ticks


def marks(pid: int) -> dict[str, str]:
    """Return the marks of our agents in the environment that a process was started with."""
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # gone, or another user's: then it is none of ours
        return {}
    pairs = (entry.partition(b"=") for entry in raw.split(b"\x00") if entry.startswith(b"FLEETBEAT_"))
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, _, value in pairs}


def marked(agent_id: str) -> dict[int, dict[str, str]]:
    """Return the marks of every process that this agent, or an earlier run of it, has started, by pid."""
    own = os.getpid()
    found = {pid: marks(pid) for pid in _pids() if pid != own}
    return {pid: m for pid, m in found.items() if m.get(AGENT_MARK) == agent_id}


def in_session(table: list[Process], leader_pid: int, leader_start: int) -> set[int]:
    """Return the members of the session that this process began, also after its own end.

    A pid is not given out again while a session bears it; so when it now belongs to another process,
    nobody of the old session is left.
    """
    for process in table:
        if process.pid == leader_pid and process.start_ticks != leader_start:
            return set()
    return {p.pid for p in table if p.session == leader_pid}


def send(pid: int, start_ticks: int, number: int) -> None:
    """Signal this very process; does nothing when it has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(pid, start_ticks):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


async def wait_ended(pid: int, start_ticks: int) -> None:
    """Return when this very process has ended, whoever its parent is."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    try:
        if not is_alive(pid, start_ticks):
            return
        loop.add_reader(handle, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir(_PROC) if name.isdecimal())  # noqa: PTH208 - names are all we need
