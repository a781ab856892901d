"""`fleetbeat.v1.Fleet`: what operators get beyond the wire of the reference systems."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from scheduler.domain.errors import Refused
from scheduler.domain.ids import check_id
from scheduler.domain.node import Node
from scheduler.front import fields, pages
from scheduler.front.cluster import ClusterStatus
from scheduler.front.errors import Overloaded, Stopping
from scheduler.front.losses import explain_loss
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.placement.explain import Explanation
from scheduler.store.keys import NODES, STATUSES

SERVICE = pb.DESCRIPTOR.services_by_name["Fleet"]
DEFAULT_TAIL_BYTES = 65_536
MAX_TAIL_BYTES = 1_048_576
MAX_CHUNK_BYTES = 65_536
MAX_LOG_STREAMS = 64
"""Of one front: each holds a stream to an agent open."""


class Fleet:
    """The service. Methods are named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and who reads."""
        self._parts = parts
        self._reader = reader
        self.status = ClusterStatus(parts, reader)
        """The state of the control plane."""
        self._streams = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams: the front stops."""
        self._stopping.set()

    async def GetClusterStatus(  # noqa: N802 - the wire's name
        self, _request: pb.GetClusterStatusRequest, _context: Any
    ) -> pb.GetClusterStatusResponse:
        """Show the state of the control plane."""
        self._reader.require_listed()
        return await self.status.read()

    async def ListNodes(self, request: pb.ListNodesRequest, _context: Any) -> pb.ListNodesResponse:  # noqa: N802
        """Show a page of nodes."""
        size = pages.page_size(request.page_size)
        filters = [fields.line("status", request.status, 64).lower()]
        after = pages.resume("nodes", filters, request.page_token)
        self._reader.require_listed()
        answer = pb.ListNodesResponse(stale=self._reader.stale)
        async for view in self._reader.nodes(self._reader.index.node_ids.after(after), request.status):
            if len(answer.nodes) == size:
                answer.next_page_token = pages.token("nodes", filters, answer.nodes[-1].node_id)
                break
            answer.nodes.append(view)
        return answer

    async def ListWorkloads(self, request: pb.ListWorkloadsRequest, _context: Any) -> pb.ListWorkloadsResponse:  # noqa: N802
        """Show a page of workloads."""
        size = pages.page_size(request.page_size)
        if request.node_id:
            check_id("node_id", request.node_id)
        filters = [fields.line("status", request.status, 64).lower(), request.node_id]
        after = pages.resume("workloads", filters, request.page_token)
        self._reader.require_listed()
        answer = pb.ListWorkloadsResponse(stale=self._reader.stale)
        ids = self._reader.index.workload_ids.after(after)
        async for view in self._reader.workloads(ids, node_id=request.node_id, status=request.status):
            if len(answer.workloads) == size:
                answer.next_page_token = pages.token("workloads", filters, answer.workloads[-1].workload_id)
                break
            answer.workloads.append(view)
        return answer

    async def ExplainWorkload(self, request: pb.ExplainWorkloadRequest, _context: Any) -> pb.ExplainWorkloadResponse:  # noqa: N802
        """Say why a workload is where it is, or why it is nowhere."""
        workload_id = check_id("workload_id", request.workload_id)
        spec, status = await self._reader.records(workload_id)
        await self._reader.see_own_writes()
        lost = await explain_loss(self._parts, spec, status)
        found = self._parts.placer.explain(workload_id)
        answer = pb.ExplainWorkloadResponse(
            workload_id=workload_id, status=self._reader.index.shown(status)[0], assigned_node_id=status.node_id
        )
        if lost:
            answer.summary = lost
            answer.nodes_total = len(self._reader.index.node_ids)
            return answer
        if isinstance(found, Explanation):
            answer.summary = found.summary
            answer.nodes_total = found.nodes_total
            answer.rejections.extend(
                pb.Rejection(filter=r.filter, nodes=r.nodes, example=r.example) for r in found.rejections
            )
            if found.nearest:
                answer.nearest.node_id = found.nearest.node_id
                answer.nearest.missing = found.nearest.lacks
            return answer
        where = "runs on" if status.node_id else "would go to"
        answer.summary = f"{where} {found.node_id}: {found.reason or 'no reason was recorded'}"
        answer.nodes_total = len(self._reader.index.node_ids)
        return answer

    async def ReadWorkloadLogs(self, request: pb.ReadWorkloadLogsRequest, _context: Any) -> AsyncIterator[pb.LogChunk]:  # noqa: N802
        """Hand on the output of a workload from its node."""
        workload_id = check_id("workload_id", request.workload_id)
        tail = fields.number("tail_bytes", request.tail_bytes, 0, MAX_TAIL_BYTES) or DEFAULT_TAIL_BYTES
        node = await self._node_of(workload_id)
        if self._streams >= MAX_LOG_STREAMS:
            raise Overloaded(f"{MAX_LOG_STREAMS} log streams are open at this front; try again later")
        self._streams += 1
        try:
            source = self._parts.agents.logs(node, workload_id, tail_bytes=tail, follow=request.follow)
            async for data in self._until_stopped(source):
                for begin in range(0, len(data), MAX_CHUNK_BYTES):
                    yield pb.LogChunk(data=data[begin : begin + MAX_CHUNK_BYTES])
        finally:
            self._streams -= 1

    async def _node_of(self, workload_id: str) -> Node:
        await self._reader.records(workload_id)
        status = (await self._parts.store.get(STATUSES, workload_id)).record
        if status is None or not status.node_id:
            raise Refused(f'workload "{workload_id}" is on no node, so there is no output to read')
        node = self._parts.cache.get(NODES, status.node_id).record
        if node is None:
            node = (await self._parts.store.get(NODES, status.node_id)).record
        if node is None:
            raise Refused(f'workload "{workload_id}" is on node "{status.node_id}", which is not registered')
        return node

    async def _until_stopped(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Go on until the source ends, or tell the caller to read on elsewhere when this front stops."""
        stopping = asyncio.create_task(self._stopping.wait())
        reading: asyncio.Task[bytes | None] | None = None
        try:
            while True:
                reading = asyncio.create_task(_next(source))
                await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not reading.done():
                    raise Stopping
                data = reading.result()
                if data is None:
                    return
                yield data
        finally:
            stopping.cancel()
            if reading:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)
