"""A short run under faults, and proof that the checker would have seen what it looks for."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from tests.chaos.check import Checker
from tests.chaos.history import Line
from tests.chaos.run import run


@pytest.mark.slow
def test_no_fault_breaks_an_invariant(tmp_path: pathlib.Path) -> None:
    """Twenty workloads, agents, workers and fronts killed and paused for half a minute: `make chaos` in small."""
    found = run(tmp_path, seconds=30, workloads=20, seed=7)
    assert found.violations == []
    assert found.counts["fault"] > 5
    assert found.counts["desired Running"] == 20


NODE = {"nodeId": "n", "totalCpu": 1.0, "totalMemory": 100}


def spec(**fields: Any) -> dict[str, Any]:
    """A stored spec."""
    return {"id": "w", "type": "container", "desiredState": "Running", **fields}


def status(**fields: Any) -> dict[str, Any]:
    """A stored status."""
    return {"id": "w", "nodeId": "n", "epoch": 5, "status": "Running", **fields}


def ledger(**commitments: dict[str, Any]) -> dict[str, Any]:
    """A stored ledger."""
    return {"nodeId": "n", "commitments": commitments}


def store(revision: int, **records: Any) -> Line:
    """A revision that changes these records: node, ledger, spec, status, fence."""
    keys = {"node": "/nodes/n", "ledger": "/allocations/n", "spec": "/workloads-spec/w",
            "status": "/workloads-status/w", "fence": "/shards/0/reconcile"}  # fmt: skip
    return Line(kind="store", revision=revision, changes=[(keys[name], value) for name, value in records.items()])


GOOD = [
    store(1, node=NODE, spec=spec()),
    store(2, ledger=ledger(w={"epoch": 5, "memoryMb": 60}), status=status(), fence={"term": 1, "slot": 2}),
    Line(kind="copies", at=1.0, copies={"w": [7]}),
    Line(kind="end", at=2.0),
]


def violations(*lines: Line) -> list[str]:
    """What the checker says of a history."""
    checker = Checker()
    checker.follow(lines)
    return checker.violations


def test_a_good_history_has_no_violation() -> None:
    """One workload placed, running, and counted once."""
    assert violations(*GOOD) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (store(3, ledger=ledger(w={"epoch": 5, "memoryMb": 101})), "holds [0, 101, 0] of [1000, 100"),
        (store(3, ledger=ledger(w={"epoch": 5, "ports": ["1/tcp"]}, x={"ports": ["1/tcp"]})), "held twice"),
        (store(3, ledger=ledger(w={"epoch": 4}), status=status(epoch=4)), "fell from 5 to 4"),
        (store(3, ledger=ledger()), "the ledgers disagree"),
        (store(3, status=None), "hold something for it"),
        (store(3, fence={"term": 1, "slot": 1}), "the fence 0/reconcile fell"),
        (store(3, status=status(status="Pending")), "is Pending and 1 processes"),
        (store(3, spec=spec(desiredState="Stopped")), "is wanted Stopped"),
        (store(3, spec=None), "was deleted and still runs"),
        (Line(kind="copies", at=1.5, copies={}), "is Running and 0 processes"),
        (Line(kind="copies", at=1.5, copies={"w": [7, 8]}), "is Running and 2 processes"),
    ],
)
def test_the_checker_sees(wrong: Line, told: str) -> None:
    """Each kind of violation, put in before the end of a good history."""
    found = violations(*GOOD[:-1], wrong, GOOD[-1])
    assert any(told in one for one in found), found


def test_the_checker_sees_two_copies_of_an_exclusive_workload_that_pass() -> None:
    """Also when all is well again at the end."""
    exclusive = store(1, node=NODE, spec=spec(metadata={"fleetbeat.exclusive": "true"}))
    twice = Line(kind="copies", at=0.5, copies={"w": [7, 8]})
    assert any("is 2 processes" in one for one in violations(exclusive, GOOD[1], twice, *GOOD[2:]))


def test_a_history_without_an_end_proves_nothing() -> None:
    """A run that was cut short says so."""
    assert violations(*GOOD[:-1]) == ["the history has no end"]
