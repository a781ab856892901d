"""Slots on the grid, and which shard is whose."""

from __future__ import annotations

import pytest

from beat_schedule import SCHEDULE
from scheduler.domain.errors import Fenced
from scheduler.domain.shard import LOOPS, ShardMap, shard_of
from scheduler.leadership.grid import Grid
from scheduler.leadership.shards import MAP_KEY, current_map, map_guard, members_of
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.keys import SHARD_MAP, SHARD_MAP_ID
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd


def test_slots_are_floor_of_time_by_period() -> None:
    """Two beats agree on the slot without talking."""
    grid = Grid(5.0)
    assert grid.slot(1_000_000_000.0) == 200_000_000
    assert grid.slot(1_000_000_004.999) == 200_000_000
    assert grid.slot(1_000_000_005.0) == 200_000_001


def test_an_offset_moves_the_whole_grid() -> None:
    """Begin and slot agree at the border."""
    grid = Grid(5.0, 1.25)
    for slot in (0, 7, 340_000_000):
        assert grid.slot(grid.begin(slot)) == slot
        assert grid.slot(grid.begin(slot) - 0.001) == slot - 1


def test_the_schedule_names_every_loop_once_and_real_settings() -> None:
    """beat_schedule.py is data, and this is its check."""
    assert sorted(p.loop for p in SCHEDULE) == sorted(LOOPS)
    settings = Settings()
    for periodic in SCHEDULE:
        assert getattr(settings, periodic.period) == settings.period_seconds[periodic.loop]
        assert 0 <= periodic.offset < 1
    assert len({p.offset for p in SCHEDULE}) == len(SCHEDULE)


def test_F62_every_node_belongs_to_exactly_one_shard() -> None:
    """And to the one that shard_of says, also after the map has changed."""
    nodes = [f"node-{i}" for i in range(500)]
    for shards in (ShardMap(generation=1, count=3), ShardMap(generation=2, count=7, hash="crc32")):
        owned = [members_of(k, nodes, shards) for k in range(shards.count)]
        assert sorted(n for part in owned for n in part) == sorted(nodes)
        assert all(shard_of(n, shards) == k for k, part in enumerate(owned) for n in part)


async def test_the_map_guard_rests_on_the_revision_of_the_generation() -> None:
    """Another generation, or no map, is fenced off."""
    etcd = MemoryEtcd()
    cache = Cache(etcd, [SHARD_MAP])
    await cache.start()
    await cache.ready(5)
    assert current_map(cache) is None
    with pytest.raises(Fenced):
        map_guard(cache, 1)
    put = await etcd.txn([], [Put(SHARD_MAP.key(SHARD_MAP_ID), ShardMap(generation=1, count=2).to_json())])
    await cache.wait_revision(put.revision, 5)
    assert map_guard(cache, 1).mod_revision == put.revision
    assert map_guard(cache, 1).key == MAP_KEY
    with pytest.raises(Fenced):
        map_guard(cache, 2)
    await cache.close()
    await etcd.close()
