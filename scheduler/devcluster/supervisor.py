"""Run an embedded cluster: start it stage by stage, keep it running, tell how it is, stop it whole.

One asyncio task follows each child (child.py). A signal only sets an event; everything else is
ordinary control flow: the cluster runs until it is told to stop or cannot start, and either way
the stages are stopped in reverse order and whatever is left of all descendants is swept up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from scheduler.devcluster import processes
from scheduler.devcluster.binaries import CannotStart, etcd_warning
from scheduler.devcluster.child import Child
from scheduler.devcluster.display import Display, Snapshot
from scheduler.devcluster.plan import AGENTS, CONTROL, SERVERS, ChildSpec, Site, addresses, shard_of
from scheduler.devcluster.status import ClusterStatus, StatusReader

_START_SECONDS = 180.0
_EARLY_DEATHS_MAX = 3
_LOOK_EVERY_SECONDS = 0.1
_TICK_SECONDS = 1.0


class Supervisor:
    """The embedded cluster of one data folder, which the caller has locked."""

    def __init__(
        self, site: Site, specs: Sequence[ChildSpec], environment: Mapping[str, str], display: Display
    ) -> None:
        """Describe the cluster; `run` runs it. The environment is that of all children."""
        self._site = site
        self._folder = site.folder
        self._display = display
        self._children = [
            Child(spec, site.folder, environment, say=display.say, on_change=self._on_child_change) for spec in specs
        ]
        self._runs: dict[Child, asyncio.Task[None]] = {}
        self._told_to_stop = asyncio.Event()
        self._told_to_hurry = asyncio.Event()
        self._status = ClusterStatus()

    async def run(self) -> None:
        """Run the cluster until a signal; raises CannotStart when it does not come up. Leaves no process either way."""
        processes.adopt_orphans()
        self._folder.remove_cluster()
        with self._listening():
            living = asyncio.create_task(self._live())
            told = asyncio.create_task(self._told_to_stop.wait())
            # A Ctrl-C from before we listened cancels this task here, when children may have been started already.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({living, told}, return_when=asyncio.FIRST_COMPLETED)
            for task in (living, told):
                task.cancel()
            await asyncio.wait({living, told})
            await self._stop()
        if not living.cancelled():
            living.result()

    # Signals

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        ends = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup
            ends.remove(signal.SIGHUP)
        handlers: dict[int, Callable[[], None]] = dict.fromkeys(ends, self._on_signal)
        handlers[signal.SIGCHLD] = self._reap_orphans
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self._told_to_stop.is_set():
            self._told_to_hurry.set()
        self._told_to_stop.set()

    def _reap_orphans(self) -> None:
        processes.reap_orphans(frozenset(child.pid for child in self._children))

    def _on_child_change(self) -> None:
        running = {child.name: known for child in self._children if (known := child.known())}
        self._folder.write_children(running)
        self._reap_orphans()

    # Life

    async def _live(self) -> None:
        began = time.monotonic()
        if warning := etcd_warning(self._site.etcd.version):
            self._display.say(f"warning: {warning}")
        reader = StatusReader([self._site.address(c.name) for c in self._children if c.name.startswith("front-")])
        try:
            await self._start(reader, began + _START_SECONDS)
            self._display.ready(self._snapshot(), time.monotonic() - began)
            self._folder.write_cluster(
                {"pid": os.getpid(), **addresses(self._site), "cluster_id": self._status.cluster_id}
            )
            while True:
                await asyncio.sleep(_TICK_SECONDS)
                self._raise_failures()
                self._folder.trim_logs()
                self._status = await reader.read() or ClusterStatus()
                self._display.show(self._snapshot())
        finally:
            await reader.close()

    async def _start(self, reader: StatusReader, deadline: float) -> None:
        servers, control, agents = (self._stage(stage) for stage in (SERVERS, CONTROL, AGENTS))
        fronts = [child for child in control if child.name.startswith("front-")]
        self._launch(servers)
        await self._all_work(servers, deadline)
        self._display.say(f"{self._site.etcd.shown} and {self._site.redis.shown} work")
        self._launch(control)
        await self._all_work(fronts, deadline)
        self._display.say(f"the front answers on {self._site.address('front-1')}")
        self._launch(agents)
        await self._all_work([*control, *agents], deadline)
        await self._converges(reader, deadline)

    def _stage(self, stage: int) -> list[Child]:
        return [child for child in self._children if child.spec.stage == stage]

    def _launch(self, children: Sequence[Child]) -> None:
        for child in children:
            self._runs[child] = asyncio.create_task(child.run(), name=child.name)

    async def _all_work(self, children: Sequence[Child], deadline: float) -> None:
        """Wait until all of them work, those that are held down aside."""
        while missing := [c for c in children if not c.works.is_set() and c.state != "held"]:
            self._raise_failures()
            for child in missing:
                if child.deaths_before_work >= _EARLY_DEATHS_MAX:
                    raise self._cannot_start(f"{child.name} does not stay up", [child])
            if time.monotonic() > deadline:
                names = ", ".join(child.name for child in missing)
                raise self._cannot_start(f"not ready after {_START_SECONDS:g} s: {names}", missing)
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def _converges(self, reader: StatusReader, deadline: float) -> None:
        """Wait until there is a leader, every agent of ours is a ready node and every shard was looked at."""
        began = time.monotonic()
        while True:
            self._raise_failures()
            self._status = await reader.read() or ClusterStatus()
            if not (missing := self._missing(time.monotonic() - began)):
                return
            if time.monotonic() > deadline:
                raise self._cannot_start(f"after {_START_SECONDS:g} s: {missing}", self._stage(CONTROL))
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    def _missing(self, seconds: float) -> str:
        """Say what is missing until the cluster is ready; blank: nothing. `seconds`: since all children work."""
        status = self._status
        agents = sum(child.state != "held" for child in self._stage(AGENTS))
        driven = {shard_of(child.name) for child in self._stage(CONTROL) if child.state != "held"}
        late = [s.shard for s in status.shards if s.shard in driven and not 0 <= s.reconciled_seconds_ago <= seconds]
        if not status.leader:
            return "no beat leads"
        if status.nodes_ready < agents:
            return f"{status.nodes_ready} of {agents} nodes are ready"
        return f"shards {late} were not reconciled" if late else ""

    def _raise_failures(self) -> None:
        for task in self._runs.values():
            if task.done():
                task.result()

    def _cannot_start(self, problem: str, blamed: Sequence[Child]) -> CannotStart:
        tails = [f"--- the end of {self._folder.log(c.name)}:\n{self._folder.log_tail(c.name)}" for c in blamed]
        return CannotStart("\n".join([f"the cluster does not come up: {problem}", *tails]))

    def _snapshot(self) -> Snapshot:
        troubles = {child.name: child.state for child in self._children if child.state != "works"}
        return Snapshot(self._site, self._status, troubles)

    # End

    async def _stop(self) -> None:
        """End all children, the last stage first, then every descendant that is left."""
        self._display.say("stopping; a second signal kills")
        self._folder.remove_cluster()
        hurrying = asyncio.create_task(self._hurry())
        for stage in (AGENTS, CONTROL, SERVERS):
            children = [child for child in self._stage(stage) if child in self._runs]
            await asyncio.gather(*(child.stop() for child in children))
            await asyncio.gather(*(self._runs[child] for child in children), return_exceptions=True)
        hurrying.cancel()
        if swept := await processes.sweep():
            self._display.say(f"killed {swept} processes that were left")
        self._display.say("stopped")
        self._raise_failures()

    async def _hurry(self) -> None:
        await self._told_to_hurry.wait()
        self._display.say("killing what still runs")
        for child in self._children:
            child.abandon()
