"""An agent as a real process, linked to a front that only listens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec
import pytest

from agent.process import table
from agent.process.cgroups import Cgroups, mounts
from scheduler.pb import agent_pb2 as pb
from tests.support.agent_process import AgentProcess, Client, marked
from tests.support.fake_front import FakeFront
from tests.support.waiting import eventually


@dataclass
class Node:
    """A node: the agent's process, its front, and the control plane's client."""

    front: FakeFront
    agent: AgentProcess
    client: Client
    extra: list[AgentProcess] = field(default_factory=list)

    async def start(self) -> None:
        """Start the agent, and wait until it has told everything."""
        known = len(self.front.registrations)
        await asyncio.to_thread(self.agent.start)
        await eventually(lambda: len(self.front.registrations) > known, 10, "the agent registers")
        instance = self.front.registrations[-1].instance_id
        await eventually(lambda: any(b.instance_id == instance for b in self.front.beats), 10, "and beats")

    async def signal(self, number: signal.Signals) -> int:
        """Signal the agent and wait for its end."""
        return await asyncio.to_thread(self.agent.signal, number)

    @property
    def data(self) -> pathlib.Path:
        """The agent's data folder."""
        return self.agent.folder / "data"

    @property
    def agent_id(self) -> str:
        """The mark of the agent's processes."""
        return str(msgspec.json.decode((self.data / "agent.json").read_bytes())["agent_id"])

    def pids(self, workload_id: str = "w") -> list[int]:
        """Return the live processes of a workload."""
        return marked(self.agent_id, workload_id)

    def output(self, workload_id: str = "w") -> str:
        """Return what a workload has written."""
        path = self.data / "output" / f"{workload_id}.log"
        return path.read_text() if path.exists() else ""

    async def run(self, request: pb.ApplyWorkloadRequest) -> int:
        """Order a workload, wait until it runs, and return the pid of its first process."""
        await self.client.apply(request)
        await eventually(lambda: self._runs(request), 10, f"{request.id} is reported as running")
        status = self.front.last(request.id)
        assert status
        return int(status.metadata["pid"])

    def _runs(self, request: pb.ApplyWorkloadRequest) -> bool:
        """Tell whether this very order is reported: the last heartbeat may still be about the copy before."""
        status = self.front.last(request.id)
        if status is None or status.state != "Running" or not status.metadata.get("pid"):
            return False
        return (status.revision_id, status.assignment_epoch) == (request.revision_id, request.assignment_epoch)

    def clear(self) -> None:
        """Leave no process."""
        for agent in (self.agent, *self.extra):
            agent.kill()
        if (self.data / "agent.json").exists():
            deadline = time.monotonic() + 10
            while (left := table.marked(self.agent_id)) and time.monotonic() < deadline:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            Cgroups(self.agent_id, mounts()).close()


@contextlib.asynccontextmanager
async def a_node(folder: pathlib.Path, *options: str, interval_ms: int = 60_000) -> AsyncIterator[Node]:
    """Run a node for a block; it is to beat at this interval."""
    async with FakeFront(interval_ms=interval_ms) as front:
        agent = AgentProcess(folder, [front.address], *options)
        node = Node(front, agent, Client(agent.port))
        try:
            await node.start()
            yield node
        finally:
            await node.client.channel.close()
            await asyncio.to_thread(node.clear)


@pytest.fixture
async def node(tmp_path: pathlib.Path) -> AsyncIterator[Node]:
    """A node that allows host processes."""
    async with a_node(tmp_path) as node:
        yield node
