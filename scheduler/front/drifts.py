"""`Fleet.ListDrifts` and `Fleet.DeleteUnknown`: the open findings of drift, and removing one copy that nobody knows."""

from __future__ import annotations

from typing import Any

import structlog

from scheduler.convergence.drift import UNKNOWN
from scheduler.domain.brake import MAX_REASON
from scheduler.domain.drift import DriftRecord, DriftType, drift_id, event_details
from scheduler.domain.errors import AgentRejected, AgentUnreachable, NotFound, Refused
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.node import Node
from scheduler.front import fields, pages
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.views import timestamp
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.drifts import MAX_ERROR, claim_deletion, id_of, note_error, resolve_deleted
from scheduler.store.keys import DRIFTS, NODES
from scheduler.store.write import Ref

DELETED_BY_OPERATOR = "delete_by_operator"
"""What the event names as the action."""

_log = structlog.get_logger(__name__)


class Drifts:
    """Shows findings; they are few."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and its reader."""
        self._parts = parts
        self._cache = parts.cache
        self._reader = reader

    async def ListDrifts(self, request: pb.ListDriftsRequest, _context: Any) -> pb.ListDriftsResponse:  # noqa: N802 - the wire's name
        """Show a page of findings."""
        size = pages.page_size(request.page_size)
        for name in ("node_id", "workload_id"):
            if value := getattr(request, name):
                check_id(name, value)
        if request.type:
            fields.choice("type", request.type, {str(kind): str(kind) for kind in DriftType})
        filters = [request.node_id, request.workload_id, request.type]
        after = pages.resume("drifts", filters, request.page_token)
        self._reader.require_listed()
        answer = pb.ListDriftsResponse(stale=self._reader.stale)
        for identifier, found in sorted(self._matching(request)):
            if identifier <= after:
                continue
            if len(answer.drifts) == size:
                last = answer.drifts[-1]
                answer.next_page_token = pages.token(
                    "drifts", filters, f"{last.node_id}/{last.workload_id}/{last.type}"
                )
                break
            answer.drifts.append(_view(found))
        return answer

    async def DeleteUnknown(self, request: pb.DeleteUnknownRequest, _context: Any) -> pb.DeleteUnknownResponse:  # noqa: N802
        """Remove a copy that no record speaks of, on the word of an operator."""
        node_id = check_id("node_id", request.node_id)
        workload_id = check_id("workload_id", request.workload_id)
        reason = fields.line("reason", request.reason, MAX_REASON).strip()
        self._reader.require_listed()
        node, found = await self._unknown(node_id, workload_id)
        store = self._parts.store
        claimed = await claim_deletion(store, found, node, self._parts.cluster_id)
        try:
            removed = await self._parts.agents.delete(node, workload_id, epoch=found.epoch)
        except (AgentUnreachable, AgentRejected) as error:
            await note_error(store, id_of(found), str(error)[:MAX_ERROR])
            raise
        if not removed:
            raise Refused(f'node "{node_id}" is still removing "{workload_id}"; try again in a moment')
        await resolve_deleted(store, claimed)
        details = event_details(claimed, resolved=True) | {"action": DELETED_BY_OPERATOR}
        _log.warning("an operator had an unknown copy removed", node=node_id, workload=workload_id, reason=reason)
        self._parts.events.emit(
            EventType.DRIFT_DETECTED, workload_id=workload_id, node_id=node_id, reason=reason, details=details
        )
        await self._reader.see_own_writes()
        return pb.DeleteUnknownResponse(drift=_view(claimed))

    async def _unknown(self, node_id: str, workload_id: str) -> tuple[Node, DriftRecord]:
        """Read a node and the finding of an unknown copy on it from etcd. Raises NotFound, Refused."""
        identifier = drift_id(node_id, workload_id, DriftType.ORPHAN)
        view = await self._parts.store.read([Ref(NODES, node_id), Ref(DRIFTS, identifier)])
        node, found = view.get(NODES, node_id).record, view.get(DRIFTS, identifier).record
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        if found is None:
            raise NotFound(f'no unknown copy of "{workload_id}" was found on node "{node_id}"; see ListDrifts')
        if found.scheduler_status != UNKNOWN:
            raise Refused(f'"{workload_id}" on node "{node_id}" is not unknown: {found.scheduler_status}')
        if not node.is_ready:
            raise Refused(f'node "{node_id}" is {node.status}: its agent cannot confirm the removal')
        return node, found

    def _matching(self, request: pb.ListDriftsRequest) -> list[tuple[str, DriftRecord]]:
        return [
            (identifier, stored.record)
            for identifier, stored in self._cache.all(DRIFTS).items()
            if stored.record
            and request.node_id in ("", stored.record.node_id)
            and request.workload_id in ("", stored.record.workload_id)
            and request.type in ("", stored.record.drift_type)
        ]


def _view(found: DriftRecord) -> pb.Drift:
    return pb.Drift(
        node_id=found.node_id,
        workload_id=found.workload_id,
        type=found.drift_type,
        action=found.action,
        scheduler_status=found.scheduler_status,
        agent_status=found.agent_status,
        detected_at=timestamp(found.detected_at),
        sightings=found.sightings,
        last_error=found.last_error,
    )
