"""`state_store_writes_total{category}` counts writes of every kind (row F89); the reference system left most out."""

from __future__ import annotations

import ast
import pathlib
import re
from typing import Any

import pytest

from scheduler.domain.record import Record
from scheduler.leadership.election import Election
from scheduler.store import keys
from scheduler.store.keys import LEADER_PREFIX, SPECS, Table
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write
from scheduler.telemetry.metrics import _CATEGORIES, Metrics, category_of
from tests.support.waiting import eventually

ROOT = pathlib.Path(__file__).parents[3]
TABLES = {name: table for name, table in vars(keys).items() if isinstance(table, Table)}
SAYS_SO = {"store/transact.py", "leadership/election.py"}
"""Who sends transactions to etcd, and counts what they wrote."""


class Anything(Record):
    """Stands for the record of any table."""


def counted(metrics: Metrics) -> dict[str, float]:
    """Return the counter's values by category."""
    (family,) = metrics.store_writes.collect()
    return {s.labels["category"]: s.value for s in family.samples if s.name.endswith("_total")}


def example(table: Table[Any]) -> str:
    """Return an id that records of the table may have."""
    return table.only or "/".join(["x"] * table.levels)


@pytest.mark.parametrize("name", sorted(TABLES))
async def test_F89_puts_and_deletes_of_every_table_are_counted_under_a_name_of_its_own(name: str) -> None:
    """A table that nobody thought of here would be counted under its prefix, and is refused by this test."""
    table, metrics, store = TABLES[name], Metrics(process=False), Store(MemoryEtcd())
    metrics.follow_store(store)
    category = category_of(table.prefix)
    assert category in {*_CATEGORIES.values(), "cluster"}
    alike, identifier = Table(table.prefix, Anything, table.levels, table.only), example(table)

    def put(_view: View) -> Write[None]:
        write = Write(None)
        write.put(alike, identifier, Anything())
        return write

    await store.transact([Ref(alike, identifier)], put)
    assert counted(metrics) == {category: 1.0}
    await store.transact([Ref(alike, identifier)], lambda _view: Write(None, deletes={alike.key(identifier)}))
    assert counted(metrics) == {category: 2.0}


async def test_F89_a_write_that_changes_nothing_is_not_counted() -> None:
    """Nothing was sent."""
    metrics, store = Metrics(process=False), Store(MemoryEtcd())
    metrics.follow_store(store)
    await store.transact([Ref(SPECS, "web")], lambda _view: Write(None, deletes={SPECS.key("web")}))
    assert counted(metrics) == {}


async def test_F89_the_key_of_an_election_is_counted() -> None:
    """It is put past the records' write path."""
    metrics, etcd = Metrics(process=False), MemoryEtcd()
    store = Store(etcd)
    metrics.follow_store(store)
    beat = Election(etcd, instance_id="beat-1", lease_seconds=1, on_put=lambda: store.wrote(LEADER_PREFIX))
    beat.start()
    await eventually(lambda: beat.leadership() is not None, what="it leads")
    assert counted(metrics) == {"leader": 1.0}
    await beat.close()
    await etcd.close()


def test_F89_nobody_writes_to_etcd_past_those_who_count() -> None:
    """Whoever sends a transaction by himself must count it (Store.wrote) and be named here."""
    found = set()
    for path in (ROOT / "scheduler").rglob("*.py"):
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if any(isinstance(call.func, ast.Attribute) and call.func.attr == "txn" for call in calls):
            found.add(str(path.relative_to(ROOT / "scheduler")))
    # A restore is an operator's command of its own: it has no metrics, and says how much it wrote.
    assert found - {"store/etcd.py", "store/memory.py", "store/restore.py"} == SAYS_SO


def test_F89_the_reference_page_names_every_category() -> None:
    """And no other."""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    (row,) = re.findall(r"\| `persys_scheduler_state_store_writes` .*", page)
    assert set(re.findall(r"`(\w+)`", row)[2:]) == {*_CATEGORIES.values(), "cluster"}
