"""The stream of usage samples: six fields, one entry a sample, an id that follows from the sample."""

from __future__ import annotations

import json
from typing import Any

from scheduler.telemetry.meter import Meter, event_id
from scheduler.telemetry.pulses import Usage

SAMPLE = Usage("web", "n1", "container", 12.5, 1024, 1, 2, 3, 4, 1_800_000_000.25, "docker")


async def test_F72_a_sample_is_one_entry_of_six_fields(redis: Any) -> None:
    """Sent twice by its agent, it is one entry; a later sample is another."""
    meter = Meter(redis, stream="usage", max_entries=100)
    await meter.write([SAMPLE], {"web": "r1"})
    await meter.write([SAMPLE], {"web": "r1"})
    later = Usage("web", "n1", collected_at=1_800_000_010.0)
    await meter.write([later], {})
    entries = [{k.decode(): v.decode() for k, v in fields.items()} for _, fields in await redis.xrange("usage")]
    assert [entry["event_id"] for entry in entries] == [event_id(SAMPLE), event_id(later)]
    first = entries[0]
    assert sorted(first) == ["event_id", "node_id", "payload", "reported_at", "revision_id", "workload_id"]
    assert (first["node_id"], first["workload_id"], first["revision_id"]) == ("n1", "web", "r1")
    assert first["reported_at"] == "2027-01-15T08:00:00.250000Z"
    payload = json.loads(first["payload"])
    assert payload["usage"]["cpuPercent"] == 12.5
    assert payload["event_id"] == first["event_id"]


async def test_F72_another_front_gives_the_same_sample_the_same_id(redis: Any) -> None:
    """So a consumer takes it once, although the front that sent it first did not live to know."""
    for _ in range(2):
        await Meter(redis, stream="usage", max_entries=100).write([SAMPLE], {})
    ids = {fields[b"event_id"] for _, fields in await redis.xrange("usage")}
    assert len(ids) == 1


async def test_F72_the_stream_is_bounded(redis: Any) -> None:
    """About as many entries as the setting says."""
    meter = Meter(redis, stream="usage", max_entries=100)
    await meter.write([Usage(f"w{n}", "n1", collected_at=1.0) for n in range(1500)], {})
    assert 100 <= await redis.xlen("usage") < 400


async def test_F72_without_redis_nothing_is_written() -> None:
    """And nothing is raised."""
    await Meter(None, stream="usage", max_entries=1).write([SAMPLE], {})
