"""The agent as a real process, as an operator starts it, and a client as the control plane has it."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grpc

from agent.process import table
from scheduler.pb import agent_pb2 as pb
from scheduler.pb import agent_pb2_grpc, fleetbeat_pb2_grpc
from tests.support.servers import free_port, wait_for_port


class AgentProcess:
    """`python -m agent` on a free port, with a data folder that survives restarts."""

    def __init__(self, folder: pathlib.Path, servers: Sequence[str], *extra: str, node_id: str = "n-1") -> None:
        """Describe an agent that allows host processes and looks for no Docker engine."""
        self.folder = folder
        self.port = free_port()
        self.node_id = node_id
        self.command = [
            sys.executable, "-m", "agent", "--node-id", node_id, "--server", ",".join(servers),
            "--listen", f"127.0.0.1:{self.port}", "--data", str(folder / "data"), "--allow-host-processes",
            "--stop-grace", "2", "--log-format", "text",
            *(() if "--docker" in extra else ("--no-docker",)), *extra,
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What the agent has logged."""
        return (self.folder / "log").read_text()

    def start(self) -> AgentProcess:
        """Start it and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        wait_for_port(self.port, self.process, self.folder / "log")
        return self

    def signal(self, number: signal.Signals) -> int:
        """Signal it and wait for its end; return the exit code."""
        assert self.process
        self.process.send_signal(number)
        return self.process.wait(20)

    def kill(self) -> None:
        """End it with SIGKILL, workloads left alone."""
        if self.process and self.process.poll() is None:
            self.signal(signal.SIGKILL)


class Client:
    """Calls an agent as the control plane does."""

    def __init__(self, port: int, node_id: str = "n-1") -> None:
        """Talk to the agent on this port."""
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self.service: Any = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.node_agent: Any = fleetbeat_pb2_grpc.NodeAgentStub(self.channel)
        self.metadata = (("x-node-id", node_id),)

    async def apply(self, request: pb.ApplyWorkloadRequest) -> pb.ApplyWorkloadResponse:
        """Order a workload."""
        answer: pb.ApplyWorkloadResponse = await self.service.ApplyWorkload(
            request, timeout=10, metadata=self.metadata, wait_for_ready=True
        )
        return answer

    async def delete(
        self, workload_id: str, epoch: int = 0, kept_volumes: Sequence[str] = ()
    ) -> pb.DeleteWorkloadResponse:
        """Have a workload removed."""
        request = pb.DeleteWorkloadRequest(id=workload_id, assignment_epoch=epoch, keep_volumes=kept_volumes)
        answer: pb.DeleteWorkloadResponse = await self.service.DeleteWorkload(
            request, timeout=10, metadata=self.metadata, wait_for_ready=True
        )
        return answer

    async def status(self, workload_id: str) -> pb.WorkloadStatus | None:
        """Ask for the status; None when the agent has none."""
        request = pb.GetWorkloadStatusRequest(id=workload_id)
        try:
            answer = await self.service.GetWorkloadStatus(
                request, timeout=10, metadata=self.metadata, wait_for_ready=True
            )
        except grpc.aio.AioRpcError as error:
            if (error.code(), error.details()) != (grpc.StatusCode.UNKNOWN, "status not found"):
                raise
            return None
        status: pb.WorkloadStatus = answer.status
        return status


def order(
    workload_id: str = "w",
    *command: str,
    revision: str = "r1",
    epoch: int = 1,
    desired: str = "RUNNING",
    restart: str = "",
    image: str = "host",
    env: Mapping[str, str] | None = None,
    memory_mb: int = 0,
    stop_after_ms: int = 0,
    volumes: Sequence[pb.ManagedVolumeSpec] = (),
) -> pb.ApplyWorkloadRequest:
    """Return a request to run a command on the node."""
    return pb.ApplyWorkloadRequest(
        id=workload_id,
        type=pb.WORKLOAD_TYPE_CONTAINER,
        revision_id=revision,
        desired_state=pb.DesiredState.Value(f"DESIRED_STATE_{desired}"),
        spec=pb.WorkloadSpec(
            container=pb.ContainerSpec(
                image=image,
                command=command or ("sleep", "600"),
                env=env or {},
                restart_policy=pb.RestartPolicy(policy=restart),
                managed_volumes=volumes,
            )
        ),
        assignment_epoch=epoch,
        resources=pb.ResourceRequest(memory_mb=memory_mb),
        exclusive=stop_after_ms > 0,
        stop_after_ms=stop_after_ms,
    )


def marked(agent_id: str, workload_id: str) -> list[int]:
    """Return the pids of the workload's live processes."""
    found = []
    for pid, marks in table.marked(agent_id).items():
        process = table.read(pid)
        if marks.get(table.WORKLOAD_MARK) == workload_id and process and not process.ended:
            found.append(pid)
    return sorted(found)
