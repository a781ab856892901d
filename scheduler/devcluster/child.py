"""One supervised process: started, proved to work, started again when it dies, stopped.

The pid of a child is used only between its start and its reaping, so it can't name a stranger: the
end is noticed through a pidfd, which leaves a zombie; then what is left of the child's process
group is killed (a Celery worker's pool, a front's workers); only then the child is reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import Literal

from scheduler.devcluster import processes
from scheduler.devcluster.folder import Folder
from scheduler.devcluster.plan import ChildSpec
from scheduler.devcluster.probes import Subject
from scheduler.devcluster.processes import Known, known

_FIRST_WAIT_SECONDS = 0.5
_LONGEST_WAIT_SECONDS = 10.0
_STABLE_SECONDS = 10.0
_PROBE_EVERY_SECONDS = 0.05
_PROBE_AT_LEAST_EVERY_SECONDS = 0.5
_HOLD_POLL_SECONDS = 0.2

State = Literal["waiting", "held", "starting", "works", "backing off", "stopping", "ended"]


class Backoff:
    """How long to wait before the next start: 0.5 s, doubled for each early death up to 10 s."""

    def __init__(self) -> None:
        """Begin with the shortest wait."""
        self._next = _FIRST_WAIT_SECONDS

    def after(self, uptime_seconds: float) -> float:
        """Return the wait after a run that lasted this long; a stable run starts from the shortest again."""
        if uptime_seconds >= _STABLE_SECONDS:
            self._next = _FIRST_WAIT_SECONDS
        wait = self._next
        self._next = min(2 * wait, _LONGEST_WAIT_SECONDS)
        return wait


class Child:
    """One process of the cluster, over all its restarts."""

    def __init__(
        self,
        spec: ChildSpec,
        folder: Folder,
        environment: Mapping[str, str],
        *,
        say: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        """Describe the child; `run` starts it. `on_change` is called after each start and each end."""
        self.spec = spec
        self.state: State = "waiting"
        self.works = asyncio.Event()
        self.deaths_before_work = 0
        self._folder = folder
        shared = {name: value for name, value in environment.items() if not name.startswith(spec.blind_to)}
        self._environment = {**shared, **spec.environment}
        self._say = say
        self._on_change = on_change
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = asyncio.Event()
        self._was_up = False

    @property
    def name(self) -> str:
        """The child's name."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """The pid of the running process; 0 when there is none."""
        return self._process.pid if self._process else 0

    def known(self) -> Known | None:
        """Return what to write down about the running process."""
        return known(self.pid, self.spec.stage) if self.pid else None

    async def run(self) -> None:
        """Keep the child running until `stop`."""
        loop = asyncio.get_running_loop()
        backoff = Backoff()
        while await self._may_start():
            started = loop.time()
            how = await self._one_life()
            if self._stopping.is_set():
                break
            if not self.works.is_set():
                self.deaths_before_work += 1
            self.works.clear()
            self.state = "backing off"
            wait = backoff.after(loop.time() - started)
            self._say(f"{self.name} {how}; starting it again in {wait:g} s (its log: {self._folder.log(self.name)})")
            await self._pause(wait)
        self.state = "ended"

    async def stop(self) -> None:
        """Ask the child to end, insist after its grace, and return once it is reaped. The caller awaits `run`."""
        self._stopping.set()
        self.state = "stopping"
        if not self._process:
            return
        process = self._process
        os.kill(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.spec.grace_seconds):
                await processes.exited(process.pid)
                return
        self._say(f"{self.name} does not end; killing it")
        self.kill()

    def abandon(self) -> None:
        """End the child at once and do not start it again."""
        self._stopping.set()
        self.kill()

    def kill(self) -> None:
        """End the child and its process group at once."""
        if self._process:
            processes.kill_group(self._process.pid)

    async def _may_start(self) -> bool:
        """Wait while an operator holds the child down; False when it is to stop."""
        if self._folder.is_held(self.name) and not self._stopping.is_set():
            self.state = "held"
            self._say(f"{self.name} is held down until {self._folder.path('hold', self.name)} is removed")
            while self._folder.is_held(self.name) and not self._stopping.is_set():
                await self._pause(_HOLD_POLL_SECONDS)
        return not self._stopping.is_set()

    async def _one_life(self) -> str:
        """Start the process, follow it to its end, and say how it ended."""
        self.state = "starting"
        try:
            subject = self._spawn()
        except OSError as error:
            return f"could not be started ({error})"
        self._on_change()
        proving = asyncio.create_task(self._prove(subject))
        try:
            await processes.exited(subject.pid)
        finally:
            proving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await proving
        return self._reap()

    def _spawn(self) -> Subject:
        path = self._folder.log(self.name)
        with path.open("ab") as log:
            start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - commands of our own, without a shell
                self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder.path("run"),
                env=self._environment,
                start_new_session=True,
            )
        return Subject(self._process.pid, path, start)

    def _reap(self) -> str:
        process = self._process
        assert process is not None  # noqa: S101 - called once a process has ended
        self.kill()
        code = process.wait()
        self._process = None
        self._on_change()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    async def _prove(self, subject: Subject) -> None:
        wait = _PROBE_EVERY_SECONDS
        while not await self.spec.works(subject):
            await asyncio.sleep(wait)
            wait = min(wait * 1.1, _PROBE_AT_LEAST_EVERY_SECONDS)
        self.state = "works"
        if self._was_up:
            self._say(f"{self.name} works again")
        self._was_up = True
        self.deaths_before_work = 0
        self.works.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
