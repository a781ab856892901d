"""Which key belongs to which table."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.store.keys import CLUSTER, FENCES, NODES, SHARD_MAP, SPECS, TOMBSTONES, Table

TABLES: list[Table[Any]] = [NODES, SPECS, FENCES, SHARD_MAP, CLUSTER, TOMBSTONES]


@pytest.mark.parametrize(
    ("key", "owner"),
    [
        ("/nodes/n1", NODES),
        ("/nodes/n1/status", None),
        ("/nodes/", None),
        ("/nodesx/n1", None),
        ("/workloads-spec/web", SPECS),
        ("/workloads/web", None),
        ("/shards/map", SHARD_MAP),
        ("/shards/map2", None),
        ("/shards/0/reconcile", FENCES),
        ("/shards/0", None),
        ("/shards/0/reconcile/x", None),
        ("/tombstones/n1/web", TOMBSTONES),
        ("/tombstones/n1", None),
        ("/cluster", CLUSTER),
        ("/clusters", None),
    ],
)
def test_each_key_belongs_to_one_table_or_to_none(key: str, owner: Table[Any] | None) -> None:
    """No key is taken for a record of two tables, and the reference's side keys are taken for none."""
    assert [table for table in TABLES if table.owns(key)] == ([owner] if owner else [])


def test_the_scope_of_a_table_covers_its_keys() -> None:
    """A scan of the scope finds every record."""
    assert NODES.key("n1").startswith(NODES.scope)
    assert SHARD_MAP.key("map") == SHARD_MAP.scope
    assert CLUSTER.scope == "/cluster"
