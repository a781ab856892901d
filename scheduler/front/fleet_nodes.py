"""What operators ask of nodes beyond the reference system's wire: cordon, the progress of a drain, removal."""

from __future__ import annotations

from typing import Any

from scheduler.convergence.drain import is_vacating, leaving, waits_for, why_leave
from scheduler.domain.errors import NotFound, Refused
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.ledger import Ledger
from scheduler.domain.node import DrainJob, Node
from scheduler.domain.workload import Desired, WorkloadSpec, WorkloadStatus
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.views import timestamp
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.placement.explain import Explanation
from scheduler.store import intent
from scheduler.store.keys import LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.tombstones import tombstone_id
from scheduler.store.volumes import free_claims

MAX_SHOWN = 500
"""Workloads of one answer."""
MAX_EXPLAINED = 64
"""… of which so many that wait are asked whether another node fits."""
MAX_WOKEN = 64

MOVING, WAITING, BLOCKED, PINNED, DELETING = "moving", "waiting", "blocked", "pinned", "deleting"


class FleetNodes:
    """Some methods of fleetbeat.v1.Fleet, named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and who reads."""
        self._parts = parts
        self._reader = reader

    async def CordonNode(self, request: pb.CordonNodeRequest, _context: Any) -> pb.CordonNodeResponse:  # noqa: N802 - the wire's name
        """Keep new work away from a node; what is there stays."""
        node_id = check_id("node_id", request.node_id)
        await intent.set_schedulable(self._parts.store, node_id, schedulable=False)
        await self._reader.see_own_writes()
        return pb.CordonNodeResponse(node=await self._reader.node(node_id))

    async def UncordonNode(self, request: pb.UncordonNodeRequest, _context: Any) -> pb.UncordonNodeResponse:  # noqa: N802
        """Let a node take new work again."""
        node_id = check_id("node_id", request.node_id)
        await intent.set_schedulable(self._parts.store, node_id, schedulable=True)
        await self._reader.see_own_writes()
        return pb.UncordonNodeResponse(node=await self._reader.node(node_id))

    async def GetDrain(self, request: pb.GetDrainRequest, _context: Any) -> pb.GetDrainResponse:  # noqa: N802
        """Say how far the drain of a node has come, and what each workload that is left waits for."""
        node_id = check_id("node_id", request.node_id)
        self._reader.require_listed()
        node = self._parts.cache.get(NODES, node_id).record or (await self._parts.store.get(NODES, node_id)).record
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        ledger = self._parts.cache.get(LEDGERS, node_id).record or Ledger(node_id=node_id)
        there = self._reader.index.on_node(node_id)
        moving = [self._on_the_way(node, w) for w in sorted(ledger.leaving)]
        staying = [one for w in sorted(there - set(ledger.leaving)) if (one := self._staying(node, w))]
        self._explain(node_id, staying)
        answer = _progress(node, moving=len(moving), left=len(staying))
        answer.workloads.extend([*moving, *staying][:MAX_SHOWN])
        answer.stale = self._reader.stale
        return answer

    def _on_the_way(self, node: Node, workload_id: str) -> pb.LeavingWorkload:
        cache = self._parts.cache
        spec, status = cache.get(SPECS, workload_id).record, cache.get(STATUSES, workload_id).record
        owed = cache.get(TOMBSTONES, tombstone_id(node.node_id, workload_id)).record
        target = status.node_id if status and status.node_id != node.node_id else ""
        why = waits_for(owed, spec, status, self._parts.now()) if owed else "its copy on the node is being stopped"
        return pb.LeavingWorkload(
            workload_id=workload_id,
            state=MOVING,
            reason=why or "the copy on the node is about to be stopped",
            node_id=target,
        )

    def _staying(self, node: Node, workload_id: str) -> pb.LeavingWorkload | None:
        spec, status = self._reader.index.spec(workload_id), self._reader.index.status(workload_id)
        if spec is None or status is None:
            return None
        state, reason = _standing(spec, status, node)
        return pb.LeavingWorkload(workload_id=workload_id, state=state, reason=reason)

    def _explain(self, node_id: str, staying: list[pb.LeavingWorkload]) -> None:
        """Tell those that wait for their turn from those that no other node takes."""
        for one in [s for s in staying if s.state == WAITING][:MAX_EXPLAINED]:
            spec = self._parts.cache.get(SPECS, one.workload_id).record
            found = self._parts.placer.elsewhere(spec, node_id) if spec else None
            if isinstance(found, Explanation):
                one.state, one.reason = BLOCKED, found.summary

    async def RemoveNode(self, request: pb.RemoveNodeRequest, _context: Any) -> pb.RemoveNodeResponse:  # noqa: N802
        """Forget a node that will not come back. Its workloads are placed anew, each by its own rules."""
        node_id = check_id("node_id", request.node_id)
        await self._reader.see_own_writes()
        workloads = sorted(self._reader.index.on_node(node_id))
        if request.validate_only:
            await intent.check_removal(self._parts.store, node_id, len(workloads), force=request.force)
            return pb.RemoveNodeResponse(node_id=node_id, workloads=len(workloads))
        if workloads and not request.force:
            raise Refused(intent.holds_text(node_id, len(workloads)))
        node = await intent.remove_node(self._parts.store, node_id, force=request.force)
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        details = {"workloads": str(len(workloads)), "force": str(request.force).lower()}
        await free_claims(self._parts.store, self._parts.cache, node_id)
        self._parts.events.emit(EventType.NODE_LEFT, node_id=node_id, reason="removed by an operator", details=details)
        await self._reader.see_own_writes()
        for workload_id in workloads[:MAX_WOKEN]:
            self._parts.wake(workload_id, node_id)
        return pb.RemoveNodeResponse(node_id=node_id, workloads=len(workloads))


def _standing(spec: WorkloadSpec, status: WorkloadStatus, node: Node) -> tuple[str, str]:
    """Say how a workload that is on the node stands."""
    if spec.desired_state == Desired.DELETED:
        return DELETING, "it is being deleted"
    if is_vacating(status):
        return MOVING, "its copy on the node is being stopped"
    why = why_leave(spec, node)
    if why and leaving(spec, status, node) is None:
        return PINNED, "it must stay with the state on its node"
    if not node.is_ready:
        return WAITING, f"the node is {node.status}: {node.status_reason}"
    return WAITING, "others go first" if why else "it may stay"


def _progress(node: Node, *, moving: int, left: int) -> pb.GetDrainResponse:
    job = node.drain_job or DrainJob()
    return pb.GetDrainResponse(
        node_id=node.node_id,
        state=node.drain,
        reason=job.reason,
        total=job.total,
        left=left,
        moving=moving,
        moved=max(0, job.total - left - moving),
        max_parallel=job.max_parallel,
        min_healthy_seconds=job.min_healthy_seconds,
        ignore_pinned=job.ignore_pinned,
        started_at=timestamp(job.started_at),
        finished_at=timestamp(job.finished_at),
        deadline=timestamp(job.deadline),
    )
