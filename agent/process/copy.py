"""One running process tree."""

from __future__ import annotations

import asyncio
import contextlib
import signal

from agent.process import cgroups
from agent.process.tree import Trees, reap
from agent.records import Code, CopyRef, Failure, State
from agent.runtimes import Seen


class ProcessCopy:
    """A copy of a workload: a process and all that came from it."""

    def __init__(self, trees: Trees, workload_id: str, ref: CopyRef, *, adopted: bool = False) -> None:
        """Take a process that runs; `adopted`: an earlier agent started it."""
        self.workload_id = workload_id
        self.ref = ref
        self.revision = ref.revision
        self.facts = {"pid": str(ref.pid)} | ({"adopted": "true"} if adopted else {})
        self._trees = trees
        self._end: asyncio.Task[int | None] = asyncio.create_task(reap(ref), name=f"reap-{workload_id}")

    async def changed(self) -> Seen:
        """Wait for the end of the first process; kill what is left of the others, then tell."""
        code = await asyncio.shield(self._end)
        was_short_of_memory = cgroups.oom_kills(self.ref.groups) > 0
        await self._sweep()
        if was_short_of_memory:
            return _failed(
                code, "killed by the kernel: it used more memory than its limit", Code.INSUFFICIENT_RESOURCES
            )
        if code is None:
            return _failed(None, "ended; its exit code is unknown, as an earlier agent had started it")
        if code == 0:
            return Seen(State.STOPPED, "exited with code 0", ended=True, exit_code=0)
        return _failed(code, f"killed by {_signal_name(-code)}" if code < 0 else f"exited with code {code}")

    async def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to its group, after the grace SIGKILL to everything."""
        await self._trees.ask_to_end(self.ref)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._end), grace_seconds)
        await self._sweep()

    async def _sweep(self) -> None:
        """Kill what is left and remove the copy's groups."""
        await self._trees.kill(self.workload_id, self.ref, watched=True)
        await asyncio.shield(self._end)
        await asyncio.to_thread(cgroups.remove, self.ref.groups)

    def has_ended(self) -> bool:
        """Say whether the first process has ended."""
        return self._end.done()

    def let_go(self) -> None:
        """Stop watching; the process runs on."""
        self._end.cancel()


def _failed(code: int | None, message: str, failure: Code = Code.RUNTIME_ERROR) -> Seen:
    return Seen(State.FAILED, message, ended=True, exit_code=code, failure=Failure(failure, message))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"
