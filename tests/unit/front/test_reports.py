"""What a front makes of a whole roster when it has no room for more."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scheduler.front import reports
from scheduler.front.index import FleetIndex
from scheduler.front.parts import TABLES
from scheduler.pb import control_pb2 as pb
from scheduler.store.cache import Cache
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("capacity", "asks_again"), [(0, True), (10, False)])
async def test_F36_an_unknown_copy_for_which_there_is_no_room_is_asked_for_again(
    capacity: int, asks_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later heartbeat tells of it by itself: agents send whole rosters only when they are asked to."""
    monkeypatch.setattr(reports, "CAPACITY", capacity)
    etcd = MemoryEtcd()
    cache = Cache(etcd, TABLES)
    await cache.start()
    await cache.ready(5)
    judge = reports.Reports(
        Store(etcd, cache=cache),
        cache,
        FleetIndex(cache),
        now=lambda: NOW,
        wake=lambda _workload_id, _node_id: None,
        is_heard=lambda _node_id: True,
    )
    copies = reports.Copies()
    request = pb.HeartbeatRequest(
        node_id="n1", full=True, workload_statuses=[pb.WorkloadStatus(workload_id="stranger", state="Running")]
    )
    judge.take_roster("n1", request, copies, cache.revision)
    assert copies.roster_incomplete is asks_again
    await judge.pump.close(1)
    await cache.close()
    await etcd.close()
