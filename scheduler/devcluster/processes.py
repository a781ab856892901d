"""Which processes are ours, and the last sweep of what is left of them.

A pid alone names nobody: the kernel gives it to the next process. On disk a process is therefore known by pid, start
time and boot, as in the agent's records. Our own children need no more than the pid: a child that
we have not reaped keeps it, and so does a process group that has a member.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass

import psutil

from agent.process import table

_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_SECONDS = 5.0
_SWEEP_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Known:
    """A process as it is written down, with the stage of the start that it came in."""

    pid: int
    start_ticks: int
    boot_id: str
    stage: int = 0

    def runs(self) -> bool:
        """Say whether that very process still runs."""
        return self.boot_id == table.boot_id() and table.is_alive(self.pid, self.start_ticks)

    def send(self, number: signal.Signals) -> None:
        """Signal that very process; nothing happens when it has ended."""
        if self.boot_id == table.boot_id():
            table.send(self.pid, self.start_ticks, number)


def known(pid: int, stage: int = 0) -> Known | None:
    """Describe a process; None when there is none."""
    found = table.read(pid)
    return Known(pid, found.start_ticks, table.boot_id(), stage) if found else None


def kill_group(leader: int) -> None:
    """Kill the process group of a leader that is surely ours: not yet reaped, or just seen to run."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def exited(child: int) -> None:
    """Wait until our child ends. It stays a zombie, so that its pid stays ours until the caller reaps it."""
    found = table.read(child)
    if found:
        await table.wait_ended(child, found.start_ticks)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies.

    So nothing that was started under `up` gets out of its sight: an agent's workloads live on when the
    agent dies, and are found at the end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(own: frozenset[int]) -> None:
    """Reap adopted processes that have ended; those who watch a child of our own (`own`) reap it themselves."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return
        os.waitpid(ended.si_pid, 0)


async def sweep() -> int:
    """Kill every descendant that is left and return how many there were. For the very end only: it reaps all."""
    seen: set[int] = set()
    deadline = time.monotonic() + _SWEEP_SECONDS
    while time.monotonic() < deadline:
        reap_orphans(frozenset())
        left = psutil.Process().children(recursive=True)
        if not left:
            break
        for process in left:
            seen.add(process.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        await asyncio.sleep(_SWEEP_POLL_SECONDS)
    return len(seen)
