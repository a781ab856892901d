"""The agent's side of the guardian: tells it when the node was heard, keeps it alive, and obeys it.

No exclusive workload is started unless the guardian is awake and the node has been heard lately
enough. What the guardian has ended is not started again until the control plane orders it anew:
by then it may run elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys

import structlog

import agent
from agent.guardian import Contact, Guarded, Stopped, boot_seconds, grace_of, over_at
from agent.process import table
from agent.records import Order
from agent.shelf import Shelf

log = structlog.get_logger(__name__)

DEFAULT_LEASE_SECONDS = 10.0
MAX_SETTLE_SECONDS = 20.0
"""No sender's kernel goes on longer than this to send what is not received."""
ASLEEP_SECONDS = 5.0
"""A guardian that has not looked for so long is replaced."""
_START_SECONDS = 10.0
_CHECK_SECONDS = 1.0
_POLL_SECONDS = 0.05
_ROOT = pathlib.Path(agent.__file__).parent.parent


class Unguarded:
    """No guard: for agents that run nothing exclusive."""

    default_stop_after_ms = 60_000

    async def ready(self) -> bool:
        """Say whether exclusive workloads can be taken."""
        return False

    def may_run(self, order: Order) -> bool:
        """Say whether a copy of this order may be started now."""
        return not order.exclusive

    def is_settled(self) -> bool:
        """Say whether the contact has lasted for long enough that no order of before a gap can still come."""
        return True

    def not_after(self, order: Order) -> float:  # noqa: ARG002 - the guard's form
        """Return the second since boot from which on a copy must not begin; 0: there is none."""
        return 0.0

    def stopped(self, workload_id: str) -> Stopped | None:  # noqa: ARG002 - the guard's form
        """Return what the guardian did to a workload."""
        return None

    def forget(self, workload_id: str) -> None:
        """Forget what the guardian did to a workload: it is ordered anew."""


class Guard(Unguarded):
    """The guard of one agent's exclusive workloads."""

    def __init__(self, shelf: Shelf, *, grace_seconds: float, default_stop_after_seconds: float) -> None:
        """Guard the workloads on this shelf; open() takes up what an earlier agent left."""
        self.default_stop_after_ms = round(default_stop_after_seconds * 1000)
        self._shelf = shelf
        self._files = Guarded(shelf.folder)
        self._boot_id = table.boot_id()
        self._grace = grace_seconds
        self._heard_at: float | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._starting = asyncio.Lock()
        self._is_needed = False
        self._settled_at = 0.0
        self._last_answer_at: float | None = None
        self.lease_seconds = DEFAULT_LEASE_SECONDS
        """How long the node may be silent before it is missed."""

    async def open(self, *, needed: bool) -> None:
        """Take up when this node was heard last; `needed`: there are exclusive workloads, so begin to guard at once."""
        self._files.make()
        before = self._files.contact()
        if before and before.boot_id == self._boot_id:
            self._heard_at = before.heard_at
        self._tell()
        if needed:
            await self.ready()

    def heard(self, sent_at: float) -> None:
        """Note that a heartbeat sent then, in seconds since boot, was acknowledged.

        After a gap of a lease the node may have been replaced. An order that was sent before, and waited
        in some buffer, must not start a copy now: for a while no exclusive one is taken.
        """
        if self._last_answer_at is not None and sent_at - self._last_answer_at >= self.lease_seconds:
            self._settled_at = boot_seconds() + min(self.lease_seconds, MAX_SETTLE_SECONDS)
        self._last_answer_at = sent_at
        self._heard_at = max(self._heard_at or 0.0, sent_at)
        self._tell()

    async def ready(self) -> bool:
        """Say whether a guardian is awake; start one when there is none."""
        self._is_needed = True
        async with self._starting:
            if self._is_awake():
                return True
            return await self._start()

    def may_run(self, order: Order) -> bool:
        """Say whether a copy of this order may be started now: not when it would have to end at once."""
        return not order.exclusive or boot_seconds() < self.not_after(order)

    def is_settled(self) -> bool:
        """Say whether the contact has lasted for long enough that no order of before a gap can still come."""
        return boot_seconds() >= self._settled_at

    def not_after(self, order: Order) -> float:
        """Return the second since boot from which on a copy must not begin; 0: there is none."""
        if not order.exclusive:
            return 0.0
        stop_after = order.stop_after_ms / 1000
        return max(over_at(self._heard_at, stop_after) - grace_of(stop_after, self._grace), 0.001)

    def stopped(self, workload_id: str) -> Stopped | None:
        """Return what the guardian did to a workload since it was ordered last."""
        return self._files.marked(workload_id)

    def forget(self, workload_id: str) -> None:
        """Forget what the guardian did to a workload: it is ordered anew, or gone."""
        self._files.unmark(workload_id)

    async def watch(self) -> None:
        """Keep a guardian awake, once one is needed, for ever."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._is_needed and not self._is_awake():
                log.warning("guardian_lost")
                await self.ready()

    def _tell(self) -> None:
        me = table.read(os.getpid())
        start = me.start_ticks if me else 0
        with contextlib.suppress(FileNotFoundError):  # the folder was removed: nothing is left to be guarded
            self._files.tell_contact(Contact(self._boot_id, os.getpid(), start, self._grace, self._heard_at))

    def _is_awake(self) -> bool:
        """Say whether the guardian that this agent has started has looked lately."""
        if self._child is None or self._child.poll() is not None:
            return False
        awake = self._files.awake()
        return awake is not None and awake.pid == self._child.pid and boot_seconds() - awake.at < ASLEEP_SECONDS

    async def _start(self) -> bool:
        """Start a guardian; it ends the one before, of this agent or an earlier one, when it is ready itself."""
        before = self._child
        self._child = await asyncio.to_thread(self._spawn)
        deadline = boot_seconds() + _START_SECONDS
        while not self._is_awake():
            if boot_seconds() > deadline or self._child.poll() is not None:
                log.error("guardian_not_started", exit_code=self._child.poll())
                return False
            await asyncio.sleep(_POLL_SECONDS)
        if before:
            before.kill()
            await asyncio.to_thread(before.wait)
        log.info("guardian_started", pid=self._child.pid)
        return True

    def _spawn(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "agent.guardian", str(self._shelf.folder)]
        with (self._files.folder / "guardian.log").open("wb") as output:
            return subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
