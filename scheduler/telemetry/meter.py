"""The stream of usage samples for meters: `persys:usage:stream`, six fields an entry, as in the reference system.

One entry a sample. Its `event_id` follows from the sample itself, so an entry that was sent twice, by
whomever, is known for one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from redis.asyncio import Redis

from scheduler.telemetry.pulses import Usage
from scheduler.telemetry.redis import answers, configured

BATCH = 500
REMEMBERED = 100_000
"""Workloads whose last sample is remembered, so that an agent that repeats it makes no second entry."""
_SAMPLES = uuid.UUID("6b1c7d0e-2f5a-5c0b-9a41-6f0a3f3f7c11")
"""The namespace of the ids (RFC 9562, version 5)."""


class Meter:
    """Writes the stream. For one event loop."""

    def __init__(self, redis: Redis | None, *, stream: str, max_entries: int) -> None:
        """Take the connection, None: nothing is written; the stream's name, and about how many entries it keeps."""
        self._redis = redis
        self._stream = stream
        self._max_entries = max_entries
        self._last: dict[str, float] = {}

    async def write(self, samples: Sequence[Usage], revisions: Mapping[str, str]) -> None:
        """Write those samples that are new; revisions: of the workloads, by id. Raises TelemetryUnavailable."""
        if self._redis is None:
            return
        new = [sample for sample in samples if self._last.get(sample.workload_id) != sample.collected_at]
        for begin in range(0, len(new), BATCH):
            batch = new[begin : begin + BATCH]
            with answers():
                async with configured(self._redis).pipeline(transaction=False) as pipe:
                    for sample in batch:
                        entry = _entry(sample, revisions.get(sample.workload_id, ""))
                        pipe.xadd(self._stream, entry, maxlen=self._max_entries, approximate=True)
                    await pipe.execute()
            self._remember(batch)

    def _remember(self, batch: Sequence[Usage]) -> None:
        if len(self._last) > REMEMBERED:
            self._last.clear()
        self._last.update((sample.workload_id, sample.collected_at) for sample in batch)


def event_id(sample: Usage) -> str:
    """Return the id of a sample: the same for the same node, workload and time of collection."""
    return str(uuid.uuid5(_SAMPLES, f"{sample.node_id}|{sample.workload_id}|{round(sample.collected_at * 1e6)}"))


def _entry(sample: Usage, revision_id: str) -> dict[Any, Any]:
    head = {
        "event_id": event_id(sample),
        "node_id": sample.node_id,
        "workload_id": sample.workload_id,
        "revision_id": revision_id,
        "reported_at": datetime.fromtimestamp(sample.collected_at, UTC).isoformat().replace("+00:00", "Z"),
    }
    usage = {
        "workloadId": sample.workload_id,
        "type": sample.type,
        "cpuPercent": sample.cpu_percent,
        "memoryBytes": sample.memory_bytes,
        "diskReadBytes": sample.disk_read_bytes,
        "diskWriteBytes": sample.disk_write_bytes,
        "netRxBytes": sample.net_rx_bytes,
        "netTxBytes": sample.net_tx_bytes,
        "collectedAt": head["reported_at"],
        "source": sample.source,
    }
    return {**head, "payload": msgspec.json.encode({**head, "usage": usage})}
