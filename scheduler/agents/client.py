"""Calls to agents: bounded, with a deadline each, through one channel and one breaker a node.

Every call carries the node's id, so that an agent refuses one meant for another node, and
orders carry the epoch of the assignment, so that it refuses one that is over.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

import grpc
import grpc.aio
from opentelemetry.trace import SpanKind

from scheduler.agents.channels import Channels, Peer
from scheduler.agents.classify import MAX_TEXT, MISSING, NOT_NOW, is_unreachable, meaning
from scheduler.agents.report import report_of
from scheduler.agents.request import apply_request
from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.node import Node
from scheduler.domain.policy import told_stop_after_ms
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, WorkloadSpec
from scheduler.pb import agent_pb2, fleetbeat_pb2
from scheduler.tracing import span, traceparent

NODE_ID_METADATA = "x-node-id"
SETTLE_SECONDS = 5.0
"""How long a delete is followed; what takes longer is looked at again in the next cycle."""
FOLLOW_SECONDS = 3600.0
"""Logs are followed no longer than this in one call."""
_FIRST_PAUSE_SECONDS = 0.02
_MAX_PAUSE_SECONDS = 0.5

A = TypeVar("A")
KeptVolumes = Callable[[str, str], Iterable[str]]
"""Of a node and a workload: the ids of volumes."""
OnCall = Callable[[str, str, float], None]


class Agents:
    """All agents of a fleet. For one event loop; open it where that loop runs."""

    def __init__(
        self,
        *,
        timeout_seconds: float,
        in_flight: int = 64,
        per_node: int = 4,
        credentials: Callable[[], grpc.ChannelCredentials] | None = None,
        on_call: OnCall = lambda _rpc, _code, _seconds: None,
        on_breaker: Callable[[], None] = lambda: None,
        on_dial: Callable[[], None] = lambda: None,
        stop_after_seconds: float = 60.0,
        lease_seconds: float = 30.0,
        kept_volumes: KeptVolumes = lambda _node_id, _workload_id: (),
    ) -> None:
        """Take the deadline of a call, and how many may be in flight in this process and to one node.

        stop_after_seconds: of exclusive workloads that name none; lease_seconds: the least there is.
        kept_volumes: says which volumes of a copy a node must keep the data of when it removes the copy.
        credentials: returns those of new connections; None: no TLS.
        on_call: told of each call: its name, its status code's name, how long it took.
        on_breaker: told of each breaker that opens.
        on_dial: told of each channel that is opened.
        """
        self._timeout = timeout_seconds
        self._in_flight = asyncio.Semaphore(in_flight)
        self._channels = Channels(
            per_node=per_node, grace_seconds=timeout_seconds, credentials=credentials, on_dial=on_dial
        )
        self._on_call = on_call
        self._on_breaker = on_breaker
        self._stop_after = stop_after_seconds
        self._lease = lease_seconds
        self._kept_volumes = kept_volumes

    async def apply(self, node: Node, spec: WorkloadSpec, *, desired: str, epoch: int) -> Report:
        """Order a node to run this spec, or to hold it stopped; return how the workload is now.

        A spec that the node cannot run is a workload that failed, and is returned as one. Raises
        AgentUnreachable, and AgentRejected when the agent does not take the order.
        """
        told = told_stop_after_ms(spec, self._stop_after, self._lease)
        request = apply_request(spec, desired=desired, epoch=epoch, stop_after_ms=told)
        report, skipped = await self._apply(node, request)
        if skipped and report.state == Actual.MISSING and not node.reports_epochs:
            # The Persys agent skips a revision it knows even when the container is gone; after a delete it does not.
            await self.delete(node, spec.id, epoch=epoch)
            report, _ = await self._apply(node, request)
        return report

    async def delete(self, node: Node, workload_id: str, *, epoch: int) -> bool:
        """Order a node to remove every copy up to this epoch.

        Return True once the agent says that it has none, False when it is still busy with
        removing after SETTLE_SECONDS. Raises AgentUnreachable, and AgentRejected, with code
        OLDER_EPOCH when the agent knows a newer assignment.
        """
        kept = self._kept_volumes(node.node_id, workload_id)
        request = agent_pb2.DeleteWorkloadRequest(id=workload_id, assignment_epoch=epoch, keep_volumes=kept)
        try:
            answer = await self._call(node, "DeleteWorkload", lambda peer: peer.service.DeleteWorkload, request)
        except AgentRejected as error:
            if error.code == MISSING:
                return True
            raise
        if not answer.success:
            raise AgentRejected(f"the agent of node {node.node_id} refuses DeleteWorkload: {answer.message[:MAX_TEXT]}")
        return await self._is_gone(node, workload_id)

    async def status(self, node: Node, workload_id: str) -> Report:
        """Ask how a workload is; state Missing when the node does not have it."""
        request = agent_pb2.GetWorkloadStatusRequest(id=workload_id)
        try:
            answer = await self._call(node, "GetWorkloadStatus", lambda peer: peer.service.GetWorkloadStatus, request)
        except AgentRejected as error:
            if error.code == MISSING:
                return Report(workload_id, Actual.MISSING)
            raise
        return report_of(answer.status)

    async def list(self, node: Node) -> list[Report]:
        """Ask for everything the node has."""
        request = agent_pb2.ListWorkloadsRequest()
        answer = await self._call(node, "ListWorkloads", lambda peer: peer.service.ListWorkloads, request)
        return [report_of(status) for status in answer.workloads]

    async def logs(self, node: Node, workload_id: str, *, tail_bytes: int, follow: bool) -> AsyncIterator[bytes]:
        """Read the last output of a workload and, with follow, what comes, for an hour at most.

        These streams do not take the places of orders: as many as per_node go to one node
        beside them, one more is refused.
        """
        peer = self._peer(node)
        request = fleetbeat_pb2.ReadLogsRequest(workload_id=workload_id, tail_bytes=tail_bytes, follow=follow)
        if peer.streams.locked():
            raise AgentRejected(f"as many readers as allowed follow logs of node {node.node_id}; try again", NOT_NOW)
        async with peer.streams:
            timeout = FOLLOW_SECONDS if follow else self._timeout
            call = peer.node_agent.ReadLogs(request, timeout=timeout, metadata=_metadata(node))
            try:
                async for chunk in call:
                    yield chunk.data
            except grpc.aio.AioRpcError as error:
                raise meaning(error, node.node_id, "ReadLogs") from error
            except asyncio.CancelledError:
                _raise_if_cancelled(node)
            finally:
                call.cancel()

    def drop(self, node_id: str) -> None:
        """Close the channel of a node that is gone, once the calls in flight have ended; returns at once."""
        self._channels.forget(node_id)

    async def close(self) -> None:
        """Close all channels."""
        await self._channels.close()

    @property
    def open_channels(self) -> int:
        """How many nodes a channel is kept for."""
        return len(self._channels)

    async def _apply(self, node: Node, request: agent_pb2.ApplyWorkloadRequest) -> tuple[Report, bool]:
        answer = await self._call(node, "ApplyWorkload", lambda peer: peer.service.ApplyWorkload, request)
        report = report_of(answer.status)
        if not answer.applied and not answer.skipped and report.state != Actual.FAILED:
            text = (answer.message or report.message)[:MAX_TEXT]
            raise AgentRejected(f"the agent of node {node.node_id} refuses ApplyWorkload: {text}", report.failure_code)
        if not answer.HasField("status"):
            report = Report(request.id, Actual.PENDING, revision_id=request.revision_id)
        return report, answer.skipped

    async def _is_gone(self, node: Node, workload_id: str) -> bool:
        deadline = time.monotonic() + min(self._timeout, SETTLE_SECONDS)
        pause = _FIRST_PAUSE_SECONDS
        while (await self.status(node, workload_id)).state != Actual.MISSING:
            if time.monotonic() + pause > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_SECONDS)
        return True

    def _peer(self, node: Node) -> Peer:
        if not node.agent_endpoint:
            raise AgentUnreachable(f"node {node.node_id} has no agent endpoint")
        return self._channels.peer(node)

    async def _call(
        self, node: Node, rpc: str, method: Callable[[Peer], Callable[..., Awaitable[A]]], request: object
    ) -> A:
        peer = self._peer(node)
        # The node's places come first: a slow node must not fill those of the process.
        async with peer.slots, self._in_flight:
            if peer.replaced:
                raise AgentUnreachable(f"the agent of node {node.node_id} has been replaced meanwhile")
            if not peer.breaker.admit():
                raise AgentUnreachable(
                    f"the agent of node {node.node_id} did not answer; next try in {peer.breaker.open_seconds:.1f} s"
                )
            return await self._send(peer, node, rpc, method(peer), request)

    async def _send(self, peer: Peer, node: Node, rpc: str, call: Callable[..., Awaitable[A]], request: object) -> A:
        with span(f"agent {rpc}", SpanKind.CLIENT, attributes={"scheduler.node_id": node.node_id}):
            return await self._send_counted(peer, node, rpc, call, request)

    async def _send_counted(
        self, peer: Peer, node: Node, rpc: str, call: Callable[..., Awaitable[A]], request: object
    ) -> A:
        started, code = time.monotonic(), grpc.StatusCode.CANCELLED
        try:
            answer = await call(request, timeout=self._timeout, metadata=_metadata(node))
        except grpc.aio.AioRpcError as error:
            code = error.code()
            if is_unreachable(error):
                if peer.breaker.failed():
                    self._on_breaker()
            else:
                peer.breaker.answered()
            raise meaning(error, node.node_id, rpc) from error
        except asyncio.CancelledError:
            _raise_if_cancelled(node)
            raise
        else:
            code = grpc.StatusCode.OK
            peer.breaker.answered()
            return answer
        finally:
            peer.breaker.abandoned()
            self._on_call(rpc, code.name, time.monotonic() - started)


def _raise_if_cancelled(node: Node) -> None:
    """Tell a call that ended because its channel was closed under it from a caller that was cancelled."""
    task = asyncio.current_task()
    if task is None or not task.cancelling():
        raise AgentUnreachable(f"the channel to node {node.node_id} was closed") from None


def _metadata(node: Node) -> tuple[tuple[str, str], ...]:
    addressee = ((NODE_ID_METADATA, node.node_id),)
    trace = traceparent()
    return (*addressee, ("traceparent", trace)) if trace else addressee
