"""`Fleet.ListDrifts`: the open findings of drift."""

from __future__ import annotations

from typing import Any

from scheduler.domain.drift import DriftRecord
from scheduler.domain.ids import check_id
from scheduler.front import pages
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.views import timestamp
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.keys import DRIFTS


class Drifts:
    """Shows findings; they are few."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and its reader."""
        self._cache = parts.cache
        self._reader = reader

    async def ListDrifts(self, request: pb.ListDriftsRequest, _context: Any) -> pb.ListDriftsResponse:  # noqa: N802 - the wire's name
        """Show a page of findings."""
        size = pages.page_size(request.page_size)
        for name in ("node_id", "workload_id"):
            if value := getattr(request, name):
                check_id(name, value)
        filters = [request.node_id, request.workload_id]
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

    def _matching(self, request: pb.ListDriftsRequest) -> list[tuple[str, DriftRecord]]:
        return [
            (identifier, stored.record)
            for identifier, stored in self._cache.all(DRIFTS).items()
            if stored.record
            and request.node_id in ("", stored.record.node_id)
            and request.workload_id in ("", stored.record.workload_id)
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
