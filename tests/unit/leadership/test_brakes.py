"""The brake of all shards at once says what it says of each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.domain.brake import ZONE_LABELS, BrakeRelease
from scheduler.domain.node import Health, Node
from scheduler.domain.record import Record
from scheduler.domain.shard import ShardMap, shard_of
from scheduler.leadership.brakes import held_by_shard, held_in
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.keys import BRAKES, NODES, SHARD_MAP, SHARD_MAP_ID, Table
from scheduler.store.memory import MemoryEtcd
from scheduler.store.write import Versioned

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SHARDS = ShardMap(generation=1, count=2)
NODE = st.tuples(st.none() | st.integers(0, 300), st.sampled_from(["", "a", "b"]))
"""Seconds since it fell silent (None: it is heard), and its zone."""


def cache_with(nodes: list[Node], released: list[int]) -> Cache:
    """Return a cache that holds these nodes, and releases of the brakes of these shards."""
    cache = Cache(MemoryEtcd(), (NODES, SHARD_MAP, BRAKES))

    def put(table: Table[Record], identifier: str, record: Record) -> None:
        cache._records[table][identifier] = Versioned(identifier, record, 1)

    put(SHARD_MAP, SHARD_MAP_ID, SHARDS)  # type: ignore[arg-type]
    for node in nodes:
        put(NODES, node.node_id, node)  # type: ignore[arg-type]
    for shard in released:
        put(BRAKES, str(shard), BrakeRelease(shard=shard, until=NOW + timedelta(hours=1)))  # type: ignore[arg-type]
    return cache


def node_of(number: int, silent: int | None, zone: str) -> Node:
    """Build a node."""
    health = Health.READY if silent is None else Health.NOT_READY
    labels = {ZONE_LABELS[0]: zone} if zone else {}
    since = NOW - timedelta(seconds=silent or 0)
    return Node(node_id=f"n{number}", status=health, status_updated_at=since, labels=labels)


@settings(max_examples=200, deadline=None)
@given(st.lists(NODE, max_size=14), st.lists(st.integers(0, 1), unique=True, max_size=2))
def test_F89_what_is_held_of_all_shards_is_what_is_held_of_each(
    drawn: list[tuple[int | None, str]], released: list[int]
) -> None:
    """By the shard's brake and by those of zones, less what an operator has released."""
    nodes = [node_of(number, silent, zone) for number, (silent, zone) in enumerate(drawn)]
    cache, config = cache_with(nodes, released), Settings()
    by_shard: dict[int, list[Node]] = {}
    for node in nodes:
        by_shard.setdefault(shard_of(node.node_id, SHARDS), []).append(node)
    held = held_by_shard(cache, config, by_shard, NOW)
    for shard in range(SHARDS.count):
        assert held.get(shard, frozenset()) == held_in(cache, config, shard, NOW).held
