"""A front that only listens: AgentControl on a real gRPC server, for tests of agents."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import grpc

from scheduler.pb import control_pb2 as pb
from scheduler.pb import control_pb2_grpc
from tests.support.servers import free_port
from tests.support.waiting import eventually


class FakeFront(control_pb2_grpc.AgentControlServicer):
    """Records registrations and heartbeats, and answers as it is told to."""

    def __init__(self, port: int = 0, interval_ms: int = 60_000) -> None:
        """Listen on this port, a free one when 0, and name this heartbeat interval."""
        self.port = port or free_port()
        self.interval_ms = interval_ms
        self.registrations: list[pb.RegisterNodeRequest] = []
        self.beats: list[pb.HeartbeatRequest] = []
        self.known = True
        """Heartbeats are of a known node."""
        self.accepts = True
        self.superseded = False
        """Another agent has the node id."""
        self.unrecorded = False
        """This front cannot tell others what it hears."""
        self.send_full = False
        self.silent = False
        """Calls are taken and never answered."""
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        """Start to listen."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        control_pb2_grpc.add_AgentControlServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Stop to listen."""
        await self.stop()

    async def stop(self) -> None:
        """Go away at once."""
        if self._server:
            await self._server.stop(0)

    async def RegisterNode(self, request: pb.RegisterNodeRequest, _context: Any) -> pb.RegisterNodeResponse:
        """Take a registration."""
        await self._hang()
        self.registrations.append(request)
        self.known = True
        return pb.RegisterNodeResponse(
            accepted=self.accepts and not self.superseded,
            reason="no room",
            heartbeat_interval_ms=self.interval_ms,
            superseded=self.superseded,
            stop_after_ms=1000,
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        """Take a heartbeat."""
        await self._hang()
        if not self.known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "not registered")
        self.beats.append(request)
        send_full, self.send_full = self.send_full, False
        return pb.HeartbeatResponse(
            acknowledged=True,
            send_full=send_full,
            heartbeat_interval_ms=self.interval_ms,
            unrecorded=self.unrecorded,
        )

    async def _hang(self) -> None:
        while self.silent:
            await asyncio.sleep(0.05)

    def last(self, workload_id: str) -> pb.WorkloadStatus | None:
        """Return the latest status of a workload that any heartbeat carried."""
        for beat in reversed(self.beats):
            for status in reversed(beat.workload_statuses):
                if status.workload_id == workload_id:
                    return status
        return None

    async def reported(self, workload_id: str, state: str, seconds: float = 10.0) -> pb.WorkloadStatus:
        """Wait until heartbeats say that the workload is in this state."""

        def has() -> bool:
            status = self.last(workload_id)
            return status is not None and status.state == state

        last = self.last(workload_id)
        await eventually(has, seconds, f"{workload_id} is reported as {state}, last: {last}")
        status = self.last(workload_id)
        assert status
        return status
