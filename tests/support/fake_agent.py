"""An agent for tests: a real gRPC server on loopback whose node is a dictionary.

It keeps the rules of the project's own agent (epochs, deletes that win, the node's id) unless
told to behave like the reference system's agent, which knows none of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from scheduler.domain.node import Node
from scheduler.pb import agent_pb2, agent_pb2_grpc, fleetbeat_pb2, fleetbeat_pb2_grpc

RUNNING = agent_pb2.ACTUAL_STATE_RUNNING
STOPPED = agent_pb2.ACTUAL_STATE_STOPPED
PENDING = agent_pb2.ACTUAL_STATE_PENDING
FAILED = agent_pb2.ACTUAL_STATE_FAILED
UNKNOWN = agent_pb2.ACTUAL_STATE_UNKNOWN


class FakeAgent(agent_pb2_grpc.AgentServiceServicer, fleetbeat_pb2_grpc.NodeAgentServicer):
    """One node's agent."""

    def __init__(self, node_id: str, *, knows_epochs: bool = True) -> None:
        """Start with an empty node."""
        self.node_id = node_id
        self.knows_epochs = knows_epochs
        self.copies: dict[str, agent_pb2.WorkloadStatus] = {}
        self.deleted: dict[str, int] = {}
        self.calls: Counter[str] = Counter()
        self.applied: list[agent_pb2.ApplyWorkloadRequest] = []
        self.removals: list[agent_pb2.DeleteWorkloadRequest] = []
        self.peers: set[str] = set()
        self.in_flight = 0
        self.in_flight_max = 0
        self.next_state = RUNNING
        """What an applied copy becomes."""
        self.lingers = 0
        """How many status calls a deleted copy survives."""
        self.gate = asyncio.Event()
        """Calls wait here once they have arrived."""
        self.gate.set()
        self.arrived = asyncio.Event()
        self.more_output = asyncio.Event()
        """Followers of logs wait for it."""
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        """What every call answers."""
        self.refuse_only: dict[str, tuple[grpc.StatusCode, str]] = {}
        """What these calls answer."""
        self.endpoint = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0, credentials: grpc.ServerCredentials | None = None) -> FakeAgent:
        """Listen; in plaintext without credentials."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        fleetbeat_pb2_grpc.add_NodeAgentServicer_to_server(self, self._server)
        address = f"127.0.0.1:{port}"
        port = (
            self._server.add_secure_port(address, credentials)
            if credentials
            else self._server.add_insecure_port(address)
        )
        self.endpoint = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        """Go away; the copies run on."""
        if self._server:
            await self._server.stop(None)
            self._server = None

    def node(self, **fields: Any) -> Node:
        """Return the node's record."""
        base = {
            "node_id": self.node_id, "agent_endpoint": self.endpoint, "reports_epochs": self.knows_epochs,
            "total_cpu": 4.0, "total_memory": 8192,
        }  # fmt: skip
        return Node(**{**base, **fields})

    def running(self) -> list[str]:
        """Return the ids of the copies that run."""
        return sorted(i for i, copy in self.copies.items() if copy.actual_state == RUNNING)

    def crash(self, workload_id: str, state: int = FAILED, message: str = "exit code 1") -> None:
        """Let a copy end."""
        self.copies[workload_id].actual_state = state  # type: ignore[assignment]
        self.copies[workload_id].message = message

    async def ApplyWorkload(self, request: agent_pb2.ApplyWorkloadRequest, context: Any) -> Any:
        """Take an order."""
        async with self._call("ApplyWorkload", context):
            self.applied.append(request)
            known = self.copies.get(request.id)
            epoch = request.assignment_epoch
            if self.knows_epochs and (
                (known and epoch < known.assignment_epoch) or epoch <= self.deleted.get(request.id, 0)
            ):
                await context.abort(grpc.StatusCode.ABORTED, "the node knows a newer epoch")
            if known and known.revision_id == request.revision_id and self._is_settled(known, request):
                known.assignment_epoch = max(epoch, known.assignment_epoch) if self.knows_epochs else 0
                return agent_pb2.ApplyWorkloadResponse(skipped=True, status=known)
            stopped = request.desired_state == agent_pb2.DESIRED_STATE_STOPPED
            self.copies[request.id] = copy = agent_pb2.WorkloadStatus(
                id=request.id,
                type=request.type,
                revision_id=request.revision_id,
                desired_state=request.desired_state,
                actual_state=STOPPED if stopped else self.next_state,
                message="ok",
                assignment_epoch=epoch if self.knows_epochs else 0,
            )
            return agent_pb2.ApplyWorkloadResponse(applied=True, message="accepted", status=copy)

    async def DeleteWorkload(self, request: agent_pb2.DeleteWorkloadRequest, context: Any) -> Any:
        """Remove a copy."""
        async with self._call("DeleteWorkload", context):
            self.removals.append(request)
            known, epoch = self.copies.get(request.id), request.assignment_epoch
            if self.knows_epochs and known and epoch < known.assignment_epoch:
                await context.abort(grpc.StatusCode.ABORTED, "the node knows a newer epoch")
            if self.knows_epochs:
                self.deleted[request.id] = max(epoch, self.deleted.get(request.id, 0))
            if not self.lingers:
                self.copies.pop(request.id, None)
            return agent_pb2.DeleteWorkloadResponse(success=True)

    async def GetWorkloadStatus(self, request: agent_pb2.GetWorkloadStatusRequest, context: Any) -> Any:
        """Tell how a copy is."""
        async with self._call("GetWorkloadStatus", context):
            if self.lingers:
                self.lingers -= 1
                if not self.lingers:
                    self.copies.pop(request.id, None)
            if request.id not in self.copies:
                await context.abort(grpc.StatusCode.UNKNOWN, "status not found")
            return agent_pb2.GetWorkloadStatusResponse(status=self.copies[request.id])

    async def ListWorkloads(self, _request: agent_pb2.ListWorkloadsRequest, context: Any) -> Any:
        """Tell how all copies are, of the moment the call arrived: behind the gate, that is a list on its way."""
        answer = agent_pb2.ListWorkloadsResponse(workloads=self.copies.values())
        async with self._call("ListWorkloads", context):
            return answer

    async def HealthCheck(self, _request: agent_pb2.HealthCheckRequest, _context: Any) -> Any:
        """Be well."""
        return agent_pb2.HealthCheckResponse(healthy=True)

    async def ListActions(self, _request: agent_pb2.ListActionsRequest, _context: Any) -> Any:
        """Remember nothing."""
        return agent_pb2.ListActionsResponse()

    async def ReadLogs(
        self, request: fleetbeat_pb2.ReadLogsRequest, context: Any
    ) -> AsyncIterator[fleetbeat_pb2.LogChunk]:
        """Stream two chunks; a follower waits before the second."""
        self.calls["ReadLogs"] += 1
        if request.workload_id not in self.copies:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such workload")
        yield fleetbeat_pb2.LogChunk(data=b"first ")
        if request.follow:
            await self.more_output.wait()
        yield fleetbeat_pb2.LogChunk(data=b"second")

    @staticmethod
    def _is_settled(known: agent_pb2.WorkloadStatus, request: agent_pb2.ApplyWorkloadRequest) -> bool:
        return known.desired_state == request.desired_state and known.actual_state not in (FAILED, STOPPED)

    @asynccontextmanager
    async def _call(self, name: str, context: Any) -> AsyncIterator[None]:
        self.calls[name] += 1
        self.peers.add(context.peer())
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        self.arrived.set()
        try:
            await self.gate.wait()
            if refuse := self.refuse or self.refuse_only.get(name):
                await context.abort(*refuse)
            meant = dict(context.invocation_metadata()).get("x-node-id")
            if self.knows_epochs and meant != self.node_id:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"this is node {self.node_id}")
            yield
        finally:
            self.in_flight -= 1
