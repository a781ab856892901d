"""All processes of a workload: found by session, control group and mark, and ended as one."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from agent.process import cgroups, spawn, table
from agent.records import CopyRef, Order
from agent.runtimes import Trouble

_KILL_SECONDS = 10.0
_KILL_PAUSE_SECONDS = 0.02


class Survivors(Trouble):
    """Some processes of a workload do not end, not even by SIGKILL."""


class Trees:
    """The process trees of one agent's workloads."""

    def __init__(self, agent_id: str) -> None:
        """Take the agent's id, which marks its trees."""
        self.agent_id = agent_id
        self.boot_id = table.boot_id()

    def is_alive(self, ref: CopyRef) -> bool:
        """Say whether this very process still runs."""
        return ref.boot_id == self.boot_id and table.is_alive(ref.pid, ref.start_ticks)

    def members(self, workload_id: str, ref: CopyRef | None, *, watched: bool) -> list[table.Process]:
        """Return every live process of the workload.

        `watched` says that the copy has been watched up to its end, so that its session is surely still its own:
        the number of a session whose processes ended long ago may by now be another's.
        """
        processes = table.read_all()
        pids = cgroups.pids(ref.groups) if ref else set()
        if ref and watched:
            pids |= table.in_session(processes, ref.pid, ref.start_ticks)
        marked = table.marked(self.agent_id).items()
        pids |= {pid for pid, marks in marked if marks.get(table.WORKLOAD_MARK) == workload_id}
        return [p for p in processes if p.pid in pids and p.pid != os.getpid()]

    async def ask_to_end(self, ref: CopyRef) -> None:
        """Send SIGTERM to the process group of the copy."""
        for process in await asyncio.to_thread(table.read_all):
            if process.group == ref.pid and process.session == ref.pid:
                table.send(process.pid, process.start_ticks, signal.SIGTERM)

    async def kill(self, workload_id: str, ref: CopyRef | None, *, watched: bool) -> None:
        """Kill the workload's processes until none is found; raises Survivors when some stay."""
        deadline = time.monotonic() + _KILL_SECONDS
        while members := await asyncio.to_thread(self.members, workload_id, ref, watched=watched):
            if time.monotonic() > deadline:
                raise Survivors(f"processes {[p.pid for p in members]} do not end by SIGKILL")
            for process in members:
                table.send(process.pid, process.start_ticks, signal.SIGKILL)
            await asyncio.sleep(_KILL_PAUSE_SECONDS)

    def orphans(self, known: set[str]) -> set[str]:
        """Return the workloads that have marked processes but are not known."""
        marked = table.marked(self.agent_id).values()
        return {m[table.WORKLOAD_MARK] for m in marked if table.WORKLOAD_MARK in m} - known

    def leader(self, order: Order) -> CopyRef | None:
        """Return the first process of this workload and revision, if one runs, by its marks alone.

        Its descendants carry the same marks, but are not the process that PID_MARK names.
        """
        for pid, marks in table.marked(self.agent_id).items():
            named = (marks.get(table.WORKLOAD_MARK), marks.get(table.REVISION_MARK), marks.get(table.PID_MARK))
            process = table.read(pid)
            if named == (order.id, order.revision, str(pid)) and process and not process.ended:
                return CopyRef(pid, process.start_ticks, self.boot_id, order.revision)
        return None


async def reap(ref: CopyRef) -> int | None:
    """Wait until the process has ended; return its exit code, None when another agent started it."""
    await table.wait_ended(ref.pid, ref.start_ticks)
    return spawn.exit_code(ref.pid)
