"""The score formula, to the digit."""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.placement.choose import Choice, choose
from scheduler.placement.fleet import Fleet, Measured
from scheduler.placement.request import Request
from scheduler.placement.score import NO_CAPACITY_SCORE, IdColumn, fnv1a_32, jitter, score
from tests.support.placement import node


def one_score(available: list[float], pending: list[float], total: list[float], count: int, most: int) -> float:
    """Score a single node without jitter."""
    columns = [np.array(values).reshape(2, 1) for values in (available, pending, total)]
    counts = np.array([count], np.float64)
    return float(score(*columns, workloads=counts, most_workloads=float(most), jitters=np.zeros(1))[0])


@pytest.mark.parametrize(
    ("text", "expected"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968), (b"hello", 0x4F9F2CAB)]
)
def test_F57_the_hash_is_fnv_1a_32(text: bytes, expected: int) -> None:
    """The published test vectors."""
    assert fnv1a_32(text) == expected


def test_F57_the_formula_gives_its_figures_to_four_decimals() -> None:
    """0.4 * (1500-250)/2000 + 0.4 * (1024-512)/2048 + 0.2 * (1-1/4), worked by hand."""
    assert round(one_score([1500, 1024], [250, 512], [2000, 2048], 1, 4), 4) == 0.25 + 0.1 + 0.15


def test_F57_spread_is_whole_while_nobody_has_work() -> None:
    """No division by the busiest node's nothing."""
    assert one_score([0, 0], [0, 0], [1, 1], 0, 0) == pytest.approx(0.2)


@pytest.mark.parametrize("total", [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
def test_F57_a_node_without_capacity_scores_last(total: list[float]) -> None:
    """-1e9, as the reference system has it."""
    assert one_score([0, 0], [0, 0], total, 0, 0) == NO_CAPACITY_SCORE


def test_F57_jitter_is_reproducible_and_small() -> None:
    """It depends on the pair alone and stays below a hundredth."""
    values = {jitter("web", f"n-{i}") for i in range(2000)}
    assert len(values) > 500
    assert min(values) >= 0
    assert max(values) <= 0.00999
    assert jitter("web", "n-1") == fnv1a_32(b"web|n-1") % 1000 / 1000 * 0.01


def test_F57_the_jitter_of_a_whole_fleet_is_that_of_each_node() -> None:
    """Ids of any length, in a column that grows, in any selection of rows."""
    ids = ["n", "n-1", "node-with-a-long-name.example", "ü" * 20, "x" * 128] * 20
    column = IdColumn(4)
    for row, node_id in enumerate(ids):
        column.put(row, node_id)
    rows = np.array([*range(0, 100, 3), 99, 4])
    assert column.jitters("web", rows).tolist() == [jitter("web", ids[r]) for r in rows]
    assert column.jitters("web", rows[:0]).tolist() == []


def test_F57_promised_but_idle_capacity_counts_against_a_node() -> None:
    """Available = total - measured, pending = what is committed above the measured use: never counted twice."""
    idle_promise, busy, both = Fleet(), Fleet(), Fleet()
    ledger = Ledger(node_id="n-1", commitments={"a": Commitment(cpu_millicores=1000, memory_mb=1024)})
    use = Measured(1000, 1024)
    idle_promise.upsert(node(), ledger)
    busy.upsert(node(), Ledger(node_id="n-1"), use)
    both.upsert(node(), ledger, use)
    scores = []
    for fleet in (idle_promise, busy, both):
        choice = choose(fleet, Request("web"))
        assert isinstance(choice, Choice)
        scores.append(choice.score - 0.2 * (1 - bool(fleet.workloads[0])))
    assert scores == pytest.approx([0.4 + jitter("web", "n-1")] * 3)


def test_F57_the_reason_carries_score_and_count() -> None:
    """Four decimals and how many workloads the node has."""
    fleet = Fleet()
    fleet.upsert(node(), Ledger(node_id="n-1", commitments={"a": Commitment()}))
    choice = choose(fleet, Request("web"))
    assert isinstance(choice, Choice)
    assert choice.reason == f"selected by highest score {0.8 + jitter('web', 'n-1'):.4f}, 1 workload on the node"
