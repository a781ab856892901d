"""`persys.control.v1.AgentControl`: agents register and report, people and gateways apply and read.

ApplyWorkload tells a mistake in the spec in its answer (success=false, INVALID_SPEC, the
field named), as the reference system does; a mistake in the id is INVALID_ARGUMENT. A
workload that was stored is a success, whether there is a node for it or not.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import structlog

from scheduler.domain.errors import Conflict, InvalidInput, NotFound, Refused, StoreUnavailable
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.policy import is_exclusive
from scheduler.domain.workload import Desired, Phase, WorkloadSpec, WorkloadStatus
from scheduler.front.convert import SLOW_BYTES, desired_state, to_spec
from scheduler.front.errors import TooLarge
from scheduler.front.heartbeats import Heartbeats
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.replicas import Copies
from scheduler.front.sources import Sources
from scheduler.front.twins import Twins
from scheduler.front.validate import NoCapacity, check_filters, to_node
from scheduler.pb import control_pb2 as pb
from scheduler.store import nodes, workloads
from scheduler.store.assign import Placed
from scheduler.store.keys import NODES, STATUSES, TOMBSTONES
from scheduler.store.tombstones import split_tombstone_id
from scheduler.store.workloads import Applied

SERVICE = pb.DESCRIPTOR.services_by_name["AgentControl"]
HEARTBEAT_METHOD = f"/{SERVICE.full_name}/Heartbeat"
MAX_ANSWER_BYTES = 63 * 1024 * 1024
"""Of a whole list; the server sends a little more. Fleet.ListNodes and ListWorkloads have pages."""
MAX_REVISION = 128

_log = structlog.get_logger("scheduler.front.control")


class AgentControl:
    """The service. Methods are named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader, heartbeats: Heartbeats, copies: Copies) -> None:
        """Take the front's parts, who reads, who hears, and who writes the copies of workloads."""
        self._parts = parts
        self._reader = reader
        self._heartbeats = heartbeats
        self._sources = Sources(parts)
        self._copies = copies
        self._twins = Twins(parts, reader, heartbeats)

    # Agents

    async def RegisterNode(self, request: pb.RegisterNodeRequest, _context: Any) -> pb.RegisterNodeResponse:  # noqa: N802 - the wire's name
        """Store what an agent says about its node."""
        try:
            offered = to_node(request)
        except NoCapacity as error:
            return pb.RegisterNodeResponse(accepted=False, reason=str(error))
        known = (await self._parts.store.get(NODES, offered.node_id)).record
        if known is not None and (twin := await self._twins.of(known, offered)):
            return pb.RegisterNodeResponse(
                accepted=False,
                reason=twin.reason,
                superseded=True,
                stop_after_ms=round(self._parts.settings.exclusive_stop_after_seconds * 1000),
            )
        now = self._parts.now()
        settings = self._parts.settings
        node = await nodes.register(
            self._parts.store, offered, now=now, shard_key=settings.shard_key, dns_domain=settings.agents_domain
        )
        self._heartbeats.registered(node)
        if known is None:
            self._parts.events.emit(EventType.NODE_JOINED, node_id=node.node_id, reason="registered")
        lease = settings.node_lease_seconds
        answer = pb.RegisterNodeResponse(
            accepted=True,
            reason="registered",
            heartbeat_interval_seconds=self._heartbeats.interval_seconds,
            heartbeat_interval_ms=self._heartbeats.interval_ms,
            lease_ms=round(lease * 1000),
        )
        answer.lease_expires_at.FromDatetime(now + timedelta(seconds=lease))
        return answer

    async def Heartbeat(self, request: pb.HeartbeatRequest, _context: Any) -> pb.HeartbeatResponse:  # noqa: N802
        """Take a heartbeat."""
        return await self._heartbeats.take(request)

    # Writes

    async def ApplyWorkload(self, request: pb.ApplyWorkloadRequest, _context: Any) -> pb.ApplyWorkloadResponse:  # noqa: N802
        """Create or replace a workload, or, without a spec, change only what is desired of it."""
        workload_id = check_id("workload_id", request.workload_id)
        try:
            desired = desired_state("desired_state", request.desired_state)
            if len(request.revision_id) > MAX_REVISION:
                raise InvalidInput("revision_id", f"has more than {MAX_REVISION} characters")  # noqa: TRY301 - told in-band
            if not request.HasField("spec"):
                return await self._set_desired(workload_id, desired)
            spec = await self._sources.completed(await self._convert(request, desired))
        except InvalidInput as error:
            return _not_applied(pb.INVALID_SPEC, error)
        try:
            applied = await workloads.apply_spec(self._parts.store, spec, now=self._parts.now())
        except InvalidInput as error:  # more copies than there can be of it
            return _not_applied(pb.INVALID_SPEC, error)
        except Refused as error:
            return _not_applied(pb.RUNTIME_ERROR, error)
        return await self._applied(applied)

    async def _convert(self, request: pb.ApplyWorkloadRequest, desired: str) -> WorkloadSpec:
        if desired == Desired.DELETED:
            raise InvalidInput("desired_state", "Deleted cannot be applied together with a spec; it must be one of "
                               "Running, Stopped")  # fmt: skip
        if request.spec.ByteSize() > SLOW_BYTES:
            return await asyncio.to_thread(to_spec, request.workload_id, request.spec, desired)
        return to_spec(request.workload_id, request.spec, desired)

    async def _set_desired(self, workload_id: str, desired: str) -> pb.ApplyWorkloadResponse:
        try:
            if desired == Desired.DELETED:
                return await self._delete_by_apply(workload_id)
            applied = await workloads.set_desired(self._parts.store, workload_id, desired, now=self._parts.now())
        except (NotFound, Refused) as error:
            return _not_applied(pb.RUNTIME_ERROR, error)
        return await self._applied(applied)

    async def _delete_by_apply(self, workload_id: str) -> pb.ApplyWorkloadResponse:
        spec = await self._delete(workload_id)
        if spec is None:
            raise NotFound(f'there is no workload "{workload_id}"')
        return pb.ApplyWorkloadResponse(success=True, revision_id=spec.revision_id, status=Phase.DELETING)

    async def _applied(self, applied: Applied) -> pb.ApplyWorkloadResponse:
        """Place what was stored, wake whoever drives it, and tell how things stand."""
        spec = applied.spec
        if applied.changed:
            kind = EventType.WORKLOAD_CREATED if applied.created else EventType.WORKLOAD_UPDATED
            self._parts.events.emit(kind, workload_id=spec.id, details={"revision": spec.revision_id})
        status = applied.status
        if not status.node_id and spec.desired_state == Desired.RUNNING and not self._may_run_somewhere(spec, status):
            if applied.changed and not applied.created:
                # The placer reads the spec from the cache: it must not judge by what was wanted before.
                await self._reader.see_own_writes()
            status = await self._place(spec, status)
        await self._copies.follow(spec)
        self._parts.wake(spec.id, status.node_id)
        await self._reader.see_own_writes()
        return pb.ApplyWorkloadResponse(
            success=True,
            revision_id=spec.revision_id,
            assigned_node_id=status.node_id,
            status=status.status,
            pending_reason=status.pending_reason,
        )

    def _may_run_somewhere(self, spec: WorkloadSpec, status: WorkloadStatus) -> bool:
        """Whether an exclusive workload may still run where it was: then the loop places it, which can find out."""
        if not is_exclusive(spec):
            return False
        owed = (split_tombstone_id(identifier) for identifier in self._parts.cache.all(TOMBSTONES))
        return bool(status.previous_node) or any(workload_id == spec.id for _, workload_id in owed)

    async def _place(self, spec: WorkloadSpec, status: WorkloadStatus) -> WorkloadStatus:
        """Find a node at once. The workload is stored: when this fails, the next cycle tries again."""
        try:
            outcome = await self._parts.placer.place(spec.id)
        except (StoreUnavailable, Conflict) as error:
            _log.warning("placing is left to the next cycle", workload=spec.id, error=str(error))
            return status.replace(pending_reason=f"not placed yet: {error}")
        if isinstance(outcome, Placed):
            self._parts.events.emit(
                EventType.WORKLOAD_SCHEDULED, workload_id=spec.id, node_id=outcome.node_id, reason=outcome.reason
            )
            return status.replace(
                status=Phase.SCHEDULED, node_id=outcome.node_id, epoch=outcome.epoch, pending_reason=""
            )
        return status.replace(status=Phase.PENDING, pending_reason=outcome.summary)

    async def DeleteWorkload(self, request: pb.DeleteWorkloadRequest, _context: Any) -> pb.DeleteWorkloadResponse:  # noqa: N802
        """Ask for the removal of a workload. Idempotent: what is gone or never was counts as removed."""
        try:
            await self._delete(check_id("workload_id", request.workload_id))
        except Refused as error:
            return pb.DeleteWorkloadResponse(success=False, error_message=str(error))
        return pb.DeleteWorkloadResponse(success=True)

    async def _delete(self, workload_id: str) -> WorkloadSpec | None:
        spec = await workloads.mark_deleted(self._parts.store, workload_id, now=self._parts.now())
        if spec:
            await self._copies.follow(spec)
            status = self._parts.cache.get(STATUSES, workload_id).record
            self._parts.wake(workload_id, status.node_id if status else "")
            await self._reader.see_own_writes()
        return spec

    async def RetryWorkload(self, request: pb.RetryWorkloadRequest, _context: Any) -> pb.RetryWorkloadResponse:  # noqa: N802
        """Forget a workload's failures and have it tried again now."""
        workload_id = check_id("workload_id", request.workload_id)
        try:
            status = await workloads.retry(self._parts.store, workload_id, now=self._parts.now())
        except (NotFound, Refused) as error:
            return pb.RetryWorkloadResponse(accepted=False, reason=str(error))
        self._parts.events.emit(EventType.RETRY_TRIGGERED, workload_id=workload_id, node_id=status.node_id)
        self._parts.wake(workload_id, status.node_id)
        await self._reader.see_own_writes()
        return pb.RetryWorkloadResponse(accepted=True, reason="retry triggered")

    # Reads

    async def ListNodes(self, request: pb.ListNodesRequest, _context: Any) -> pb.ListNodesResponse:  # noqa: N802
        """Show all nodes, or those of a status."""
        check_filters(request)
        self._reader.require_listed()
        answer = pb.ListNodesResponse(stale=self._reader.stale)
        size = 0
        async for view in self._reader.nodes(self._reader.index.node_ids, request.status):
            size = _check_size(size + view.ByteSize(), "Fleet.ListNodes")
            answer.nodes.append(view)
        return answer

    async def GetNode(self, request: pb.GetNodeRequest, _context: Any) -> pb.GetNodeResponse:  # noqa: N802
        """Show a node."""
        return pb.GetNodeResponse(node=await self._reader.node(check_id("node_id", request.node_id)))

    async def ListWorkloads(self, request: pb.ListWorkloadsRequest, _context: Any) -> pb.ListWorkloadsResponse:  # noqa: N802
        """Show all workloads, or those of a node or a status."""
        check_filters(request)
        self._reader.require_listed()
        index = self._reader.index
        ids = sorted(index.on_node(request.node_id)) if request.node_id else index.workload_ids
        answer = pb.ListWorkloadsResponse(stale=self._reader.stale)
        size = 0
        async for view in self._reader.workloads(ids, node_id=request.node_id, status=request.status):
            size = _check_size(size + view.ByteSize(), "Fleet.ListWorkloads")
            answer.workloads.append(view)
        return answer

    async def GetWorkload(self, request: pb.GetWorkloadRequest, _context: Any) -> pb.GetWorkloadResponse:  # noqa: N802
        """Show a workload."""
        workload_id = check_id("workload_id", request.workload_id)
        return pb.GetWorkloadResponse(workload=await self._reader.workload(workload_id))

    async def GetClusterSummary(  # noqa: N802
        self, _request: pb.GetClusterSummaryRequest, _context: Any
    ) -> pb.GetClusterSummaryResponse:
        """Count nodes and workloads."""
        self._reader.require_listed()
        return self._reader.summary()


def _not_applied(reason: pb.FailureReason.ValueType, error: Exception) -> pb.ApplyWorkloadResponse:
    return pb.ApplyWorkloadResponse(success=False, failure_reason=reason, error_message=str(error))


def _check_size(size: int, instead: str) -> int:
    if size > MAX_ANSWER_BYTES:
        raise TooLarge(f"the list has more than {MAX_ANSWER_BYTES} bytes; read it in pages with {instead}")
    return size
