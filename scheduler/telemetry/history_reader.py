"""Reading the outcomes that Redis holds of one workload."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from scheduler.domain.reconciliation import Reconciliation
from scheduler.telemetry.history import FIELD, STREAM, key_of
from scheduler.telemetry.redis import answers

PAGE: Final = 500
MAX_PAGES: Final = 40
"""Of the stream in one call; what lies further back of a stream that is set to be longer is not looked at."""


async def read_outcomes(redis: Redis, workload_id: str, limit: int, since: datetime) -> list[Reconciliation]:
    """Return the newest outcomes of a workload, not older than `since`, in no order; at least `limit` if there are.

    Raises TelemetryUnavailable.
    """
    with answers():
        found = await _in_stream(redis, workload_id, limit, since)
        last = _parsed(await _string(redis, key_of(workload_id)))
    # Other workloads may have pushed its last outcome out of the stream.
    if last and last.workload_id == workload_id and last.attempted_at >= since:
        found.append(last)
    return found


async def _in_stream(redis: Redis, workload_id: str, limit: int, since: datetime) -> list[Reconciliation]:
    found: list[Reconciliation] = []
    before = "+"
    for _ in range(MAX_PAGES):
        entries: Any = await redis.xrevrange(STREAM, max=before, count=PAGE)
        for _, fields in entries:
            one = _parsed(fields.get(FIELD.encode()))
            if one and one.workload_id == workload_id and one.attempted_at >= since:
                found.append(one)
        if len(entries) < PAGE or len(found) > limit:
            break
        before = f"({entries[-1][0].decode()}"
    return found


async def _string(redis: Redis, key: str) -> str | bytes | None:
    try:
        value: str | bytes | None = await redis.get(key)
    except ResponseError:  # the reference system's history is a list under the key of a workload called "history"
        return None
    return value


def _parsed(text: str | bytes | None) -> Reconciliation | None:
    """Return an outcome; None for what is none, such as another program's."""
    try:
        return Reconciliation.model_validate_json(text) if text else None
    except ValidationError:
        return None
