# ruff: noqa: N802 - methods bear the names of the wire
"""The gRPC services of the agent: persys.agent.v1.AgentService and fleetbeat.v1.NodeAgent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Any, TypeAlias, TypeVar

import grpc
import structlog

from agent import VERSION, wire
from agent.actions import Actions
from agent.host import Used
from agent.orders import InvalidRequest, check_epoch, check_id, check_kept, order_of
from agent.roster import Busy, Full, Roster, Superseded, Taken
from agent.runtimes import RuntimeAway, Runtimes
from agent.telemetry import Telemetry
from agent.workload import Workload
from scheduler.pb import agent_pb2, agent_pb2_grpc, fleetbeat_pb2, fleetbeat_pb2_grpc
from scheduler.tls.credentials import names_of

log = structlog.get_logger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
A = TypeVar("A")
SETTLE_SECONDS = 0.25
"""How long an apply waits for its outcome before it answers PENDING: most starts are done by then."""
DELETE_SECONDS = 2.0
"""How long a delete waits for the end before it answers that it is still at it; the caller then asks again."""
DEFAULT_TAIL_BYTES = 64 * 1024
MAX_TAIL_BYTES = 1024 * 1024
MAX_READERS = 32
"""Log readers at once; each may follow for ever."""


class AgentService(agent_pb2_grpc.AgentServiceServicer):
    """What the control plane calls."""

    def __init__(self, roster: Roster, actions: Actions, runtimes: Runtimes, telemetry: Telemetry) -> None:
        """Serve this roster."""
        self._roster = roster
        self._actions = actions
        self._runtimes = runtimes
        self._telemetry = telemetry

    async def ApplyWorkload(
        self, request: agent_pb2.ApplyWorkloadRequest, context: Context
    ) -> agent_pb2.ApplyWorkloadResponse:
        """Take an order and answer at once; the work goes on after the answer."""
        taken = await _answer(context, self._apply(request))
        log.info(
            "apply",
            workload=request.id,
            revision=request.revision_id,
            epoch=request.assignment_epoch,
            desired=request.desired_state,
            outcome=taken.text,
        )
        if taken.action:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(taken.action.done.wait(), SETTLE_SECONDS)
        refusal = taken.workload.record.order.refusal
        status = wire.agent_status(taken.workload)
        if taken.action:
            status.metadata["task_id"] = taken.action.task_id
            status.metadata["task_status"] = taken.action.status
        return agent_pb2.ApplyWorkloadResponse(
            applied=refusal is None, skipped=taken.action is None, message=taken.text, status=status
        )

    async def DeleteWorkload(
        self, request: agent_pb2.DeleteWorkloadRequest, context: Context
    ) -> agent_pb2.DeleteWorkloadResponse:
        """Have the workload go; answers when it is gone, or after a while that it is still ending."""
        workload = await _answer(context, self._delete(request))
        log.info("delete", workload=request.id, epoch=request.assignment_epoch, found=workload is not None)
        if workload is None:
            return agent_pb2.DeleteWorkloadResponse(success=True, message="not here")
        try:
            await asyncio.wait_for(workload.gone.wait(), DELETE_SECONDS)
        except TimeoutError:
            return agent_pb2.DeleteWorkloadResponse(
                success=True, message="delete accepted; the workload is still ending"
            )
        return agent_pb2.DeleteWorkloadResponse(success=True, message="deleted")

    async def GetWorkloadStatus(
        self, request: agent_pb2.GetWorkloadStatusRequest, context: Context
    ) -> agent_pb2.GetWorkloadStatusResponse:
        """Return one status; an unknown id is code UNKNOWN, as the reference agent answers."""
        workload = self._roster.get(request.id)
        if workload is None:
            await context.abort(grpc.StatusCode.UNKNOWN, "status not found")
        return agent_pb2.GetWorkloadStatusResponse(status=self._status(workload))

    async def ListWorkloads(
        self, request: agent_pb2.ListWorkloadsRequest, _context: Context
    ) -> agent_pb2.ListWorkloadsResponse:
        """Return all statuses, or those of one type."""
        statuses = [self._status(w) for w in self._roster.all()]
        wanted = request.type
        return agent_pb2.ListWorkloadsResponse(workloads=[s for s in statuses if not wanted or s.type == wanted])

    async def HealthCheck(
        self, _request: agent_pb2.HealthCheckRequest, _context: Context
    ) -> agent_pb2.HealthCheckResponse:
        """Return how the runtimes are and how much of the node is used."""
        used: Used = await self._telemetry.node()
        return agent_pb2.HealthCheckResponse(
            healthy=any(runtime.is_offered for runtime in self._runtimes),
            version=VERSION,
            runtime_status={runtime.name: runtime.health() for runtime in self._runtimes},
            memory_utilization=used.memory_percent,
            cpu_utilization=used.cpu_percent,
            disk_utilization=used.disk_percent,
        )

    async def ListActions(
        self, request: agent_pb2.ListActionsRequest, context: Context
    ) -> agent_pb2.ListActionsResponse:
        """Return what was done lately."""
        if request.limit < 0:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"limit {request.limit} must not be negative")
        found = self._actions.list(
            request.workload_id,
            request.action_type,
            request.status,
            request.limit,
            newest_first=request.newest_first,
        )
        return agent_pb2.ListActionsResponse(actions=[wire.action_message(a) for a in found])

    async def _apply(self, request: agent_pb2.ApplyWorkloadRequest) -> Taken:
        return await self._roster.apply(order_of(request))

    async def _delete(self, request: agent_pb2.DeleteWorkloadRequest) -> Workload | None:
        kept = check_kept(request.keep_volumes)
        return await self._roster.delete(check_id("id", request.id), check_epoch(request.assignment_epoch), kept)

    def _status(self, workload: Workload) -> agent_pb2.WorkloadStatus:
        return wire.agent_status(workload, self._telemetry.latest.get(workload.record.order.id))


async def _answer(context: Context, work: Awaitable[A]) -> A:
    """Return what the work returns, or end the call with the code that says what is wrong."""
    try:
        return await work
    except InvalidRequest as error:
        code, text = grpc.StatusCode.INVALID_ARGUMENT, str(error)
    except Superseded as error:
        code, text = grpc.StatusCode.ABORTED, str(error)
    except Busy as error:
        code, text = grpc.StatusCode.FAILED_PRECONDITION, str(error)
    except Full as error:
        code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
    except OSError as error:
        log.exception("order_not_stored")
        code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, f"the order cannot be stored on the node: {error}"
    await context.abort(code, text)
    raise AssertionError  # abort has raised


class NodeAgentService(fleetbeat_pb2_grpc.NodeAgentServicer):
    """What our control plane calls beyond the reference."""

    def __init__(self, roster: Roster, runtimes: Runtimes) -> None:
        """Serve the output of this roster's workloads."""
        self._roster = roster
        self._runtimes = runtimes
        self._readers = 0

    async def ReadLogs(
        self, request: fleetbeat_pb2.ReadLogsRequest, context: Context
    ) -> AsyncIterator[fleetbeat_pb2.LogChunk]:
        """Stream the last output of a workload, and what follows when asked to."""
        workload = self._roster.get(request.workload_id)
        if workload is None:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"workload {request.workload_id[:140]!r} is not on this node"
            )
        if not 0 <= request.tail_bytes <= MAX_TAIL_BYTES:
            text = f"tail_bytes {request.tail_bytes} must be 0 to {MAX_TAIL_BYTES}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        if self._readers >= MAX_READERS:
            text = f"{MAX_READERS} readers follow the logs of this node already"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self._readers += 1
        try:
            async for data in self._output(workload, request):
                yield fleetbeat_pb2.LogChunk(data=data)
        except RuntimeAway as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        finally:
            self._readers -= 1

    async def _output(self, workload: Workload, request: fleetbeat_pb2.ReadLogsRequest) -> AsyncGenerator[bytes, None]:
        """Yield the output kept by the runtime that ran the workload last."""
        if not workload.record.runtimes:
            return
        runtime = self._runtimes.get(workload.record.runtimes[-1])
        tail = request.tail_bytes or DEFAULT_TAIL_BYTES
        async with contextlib.aclosing(runtime.output(request.workload_id, tail, follow=request.follow)) as output:
            async for data in output:
                yield data


class IdentityCheck(grpc.aio.ServerInterceptor):
    """Refuses calls that are meant for another node: its address may be ours by now."""

    def __init__(self, node_id: str) -> None:
        """Take the id of this node."""
        self._node_id = node_id

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: grpc.HandlerCallDetails
    ) -> Any:
        """Pass the call on, or answer FAILED_PRECONDITION."""
        handler = await continuation(details)
        meant = dict(details.invocation_metadata or ()).get("x-node-id")
        if handler is None or meant in (None, self._node_id):
            return handler
        text = f"this is node {self._node_id!r}, the call is meant for node {str(meant)[:140]!r}"

        return _refusal(handler, grpc.StatusCode.FAILED_PRECONDITION, lambda _context: text)


class CallerCheck(grpc.aio.ServerInterceptor):
    """Refuses callers whose certificate is not one of the control plane: another node's is of the same CA."""

    def __init__(self, names: Collection[str]) -> None:
        """Take the names that the control plane's certificates have."""
        self._names = frozenset(names)

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Any], details: grpc.HandlerCallDetails
    ) -> Any:
        """Pass the call on, or answer PERMISSION_DENIED; health is told to every certificate of the CA."""
        handler = await continuation(details)
        if handler is None or details.method.startswith("/grpc.health.v1.Health/"):
            return handler
        return _refusal(handler, grpc.StatusCode.PERMISSION_DENIED, self._objection)

    def _objection(self, context: Context) -> str:
        names = names_of(context.auth_context())
        if self._names.intersection(names):
            return ""
        return f"the certificate of {', '.join(names)[:200]!r} is not among --control-plane-names"


def _refusal(handler: Any, code: grpc.StatusCode, objection: Callable[[Context], str]) -> Any:
    """Return the handler behind a check that answers with this code and the objection, if there is one."""

    async def call(request: object, context: Context) -> Any:
        if text := objection(context):
            await context.abort(code, text)
        return await handler.unary_unary(request, context)

    async def stream(request: object, context: Context) -> AsyncIterator[Any]:
        if text := objection(context):
            await context.abort(code, text)
        async for answer in handler.unary_stream(request, context):
            yield answer

    coders = (handler.request_deserializer, handler.response_serializer)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(stream, *coders)
    return grpc.unary_unary_rpc_method_handler(call, *coders)
