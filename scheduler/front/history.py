"""`Fleet.GetWorkloadHistory`: what the loops did about a workload."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog

from scheduler.domain.errors import StoreUnavailable
from scheduler.domain.ids import check_id
from scheduler.domain.reconciliation import Reconciliation
from scheduler.front import fields
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.views import timestamp
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.decode import CorruptRecord
from scheduler.store.keys import RECONCILIATIONS
from scheduler.telemetry.history_reader import read_outcomes
from scheduler.telemetry.redis import TelemetryUnavailable, configured

DEFAULT_LIMIT = 50
MAX_LIMIT = 1_000

_log = structlog.get_logger("scheduler.front.history")


class WorkloadHistory:
    """Reads outcomes from Redis, and from etcd what it was given while Redis was away."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and its reader."""
        self._parts = parts
        self._reader = reader

    async def GetWorkloadHistory(  # noqa: N802 - the wire's name
        self, request: pb.GetWorkloadHistoryRequest, _context: Any
    ) -> pb.GetWorkloadHistoryResponse:
        """Show the newest outcomes of a workload, newest first; of one that is gone as long as they are kept."""
        workload_id = check_id("workload_id", request.workload_id)
        limit = fields.number("limit", request.limit, 0, MAX_LIMIT) or DEFAULT_LIMIT
        since = self._parts.now() - timedelta(seconds=self._parts.settings.redis_reconcile_ttl_seconds)
        in_redis = await self._in_redis(workload_id, limit, since)
        found = [*(in_redis or ()), *await self._in_etcd(workload_id, since, is_needed=in_redis is None)]
        if not found:
            await self._reader.records(workload_id)
        return pb.GetWorkloadHistoryResponse(
            workload_id=workload_id,
            outcomes=[_view(one) for one in _newest_first(found)[:limit]],
            partial=in_redis is None,
        )

    async def _in_redis(self, workload_id: str, limit: int, since: datetime) -> list[Reconciliation] | None:
        try:
            return await read_outcomes(configured(self._parts.redis), workload_id, limit, since)
        except TelemetryUnavailable as error:
            _log.info("only the outcome in etcd is told", error=str(error))
            return None

    async def _in_etcd(self, workload_id: str, since: datetime, *, is_needed: bool) -> list[Reconciliation]:
        try:
            last = (await self._parts.store.get(RECONCILIATIONS, workload_id)).record
        except (StoreUnavailable, CorruptRecord):
            if is_needed:
                raise
            return []
        return [last] if last and last.attempted_at >= since else []


def _newest_first(found: Iterable[Reconciliation]) -> list[Reconciliation]:
    """Order outcomes, each once: one may be in several places, or twice in one, for its sender did not know."""
    once = {one.to_json(): one for one in found}
    return sorted(once.values(), key=lambda one: one.attempted_at, reverse=True)


def _view(one: Reconciliation) -> pb.ReconcileOutcome:
    return pb.ReconcileOutcome(
        action=one.action, success=one.success, reason=one.reason, attempted_at=timestamp(one.attempted_at)
    )
