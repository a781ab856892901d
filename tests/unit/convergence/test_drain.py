"""Who leaves a node, how, how many at once, and when the old copy may go: tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.convergence.actions import Nothing, Policy, next_action
from scheduler.convergence.drain import (
    Pace,
    Relocate,
    Vacate,
    is_left,
    leaving,
    may_start,
    pace_of,
    waits_for,
    why_leave,
)
from scheduler.convergence.liveness import brake
from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import DrainJob, Node, Taint
from scheduler.domain.workload import StatusInfo, Tombstone, WorkloadSpec, WorkloadStatus
from tests.support.placement import node, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DRAINING = node("n-1", drain="Draining")
POWER = node("n-1", taints=(Taint(key="power", value="low", effect="NoExecute"),))
EXCLUSIVE = {"fleetbeat.exclusive": "true"}
PINNED = {"persys.scheduling.persistence_class": "node-local"}


def status(actual: str = "Running", *, node_id: str = "n-1", epoch: int = 3, **changes: Any) -> WorkloadStatus:
    """Describe a workload on a node, unchanged for a minute."""
    info = StatusInfo(actual_state=actual, last_updated=NOW - timedelta(seconds=60))
    return WorkloadStatus(id="web", node_id=node_id, epoch=epoch, observed_revision="r", status_info=info, **changes)


@pytest.mark.parametrize(
    ("metadata", "where", "how"),
    [
        ({}, DRAINING, Relocate),
        ({}, node("n-1", drain="Drained"), Relocate),
        ({}, node("n-1"), None),
        ({}, node("n-1", schedulable=False), None),
        (EXCLUSIVE, DRAINING, Vacate),
        (PINNED, DRAINING, None),
        ({**PINNED, "allow_move": "true"}, DRAINING, Relocate),
        ({**EXCLUSIVE, **PINNED}, DRAINING, None),
        ({}, POWER, Relocate),
        (EXCLUSIVE, POWER, Vacate),
        (PINNED, POWER, None),
        ({"fleetbeat.tolerations": "power"}, POWER, None),
        ({"fleetbeat.tolerations": "power=low:NoExecute"}, POWER, None),
        ({"fleetbeat.tolerations": "power=high"}, POWER, Relocate),
        ({"fleetbeat.tolerations": "power:NoSchedule"}, POWER, Relocate),
        ({"fleetbeat.tolerations": "*"}, POWER.replace(drain="Draining"), Relocate),
        ({}, node("n-1", taints=(Taint(key="x"), Taint(key="y", effect="PreferNoSchedule"))), None),
    ],
)
def test_F53_F64_how_a_workload_leaves_its_node(metadata: dict[str, str], where: Node, how: type | None) -> None:
    """Start first, stop first, or not at all."""
    found = leaving(spec("web", metadata=metadata), status(), where)
    assert found is None if how is None else isinstance(found, how)
    assert is_left(where) == bool(where.drain or why_leave(spec("web"), where))


def test_F64_what_is_being_stopped_for_leaving_leaves_whatever_becomes_of_the_drain() -> None:
    """Only for the assignment that is being stopped."""
    assert isinstance(leaving(spec("web", metadata=PINNED), status(vacating=3), node("n-1")), Vacate)
    assert leaving(spec("web"), status(vacating=2), node("n-1")) is None


def test_F64_what_has_to_stay_is_looked_after_where_it_is() -> None:
    """While others go first, the usual decision holds; not for what is being stopped."""
    policy = Policy(grace_seconds=60)
    told = status(observed_generation=1)
    web = spec("web", revision_id="r")
    assert isinstance(next_action(web, told, DRAINING, NOW, policy), Relocate)
    assert next_action(web, told, DRAINING, NOW, policy, stays=True) == Nothing()
    vacating = told.replace(vacating=3)
    assert isinstance(next_action(web, vacating, DRAINING, NOW, policy, stays=True), Vacate)


def test_F64_the_pace_is_the_drains_own_and_else_the_default() -> None:
    """A job of an earlier drain says nothing about a taint."""
    default = Pace(2, 1.0)
    job = DrainJob(max_parallel=7, min_healthy_seconds=3.0, deadline=NOW)
    assert pace_of(DRAINING.replace(drain_job=job), default) == Pace(7, 3.0, NOW)
    assert pace_of(DRAINING.replace(drain_job=job.replace(max_parallel=0)), default).max_parallel == 1
    assert pace_of(DRAINING, default) == default
    assert pace_of(POWER, default) == default


@pytest.mark.parametrize(
    ("under_way", "pace", "may"),
    [
        ([], Pace(1), True),
        (["a"], Pace(1), False),
        (["a"], Pace(2), True),
        (["a", "b"], Pace(2), False),
        (["a", "web"], Pace(2), True),
        (["a", "b"], Pace(1, deadline=NOW), True),
        (["a", "b"], Pace(1, deadline=NOW + timedelta(seconds=1)), False),
    ],
)
def test_scenario_D4_who_may_set_out(under_way: list[str], pace: Pace, *, may: bool) -> None:
    """By the ledger of the old node; those under way go on; after the deadline all may."""
    ledger = Ledger(node_id="n-1", commitments={"x": Commitment()})
    for name in under_way:
        ledger = ledger.with_commitment(name, Commitment()).with_left(name, 1)
    assert may_start(ledger, "web", pace, NOW) is may
    assert may_start(None, "web", pace, NOW)


OWED = Tombstone(node_id="n-1", workload_id="web", epoch=3, after_epoch=5)
NEW = status(node_id="n-2", epoch=5)


@pytest.mark.parametrize(
    ("owed", "web", "now_is", "word"),
    [
        (OWED, spec("web"), NEW, ""),
        (OWED, spec("web"), status(node_id="n-3", epoch=9), ""),
        (OWED, spec("web"), status("Pending", node_id="n-2", epoch=5), "Pending"),
        (OWED, spec("web"), status("Failed", node_id="n-2", epoch=5), "Failed"),
        (OWED, spec("web"), status("", node_id="", epoch=3), "no other node"),
        (OWED, spec("web"), status(epoch=4), "no other node"),
        (OWED, None, NEW, ""),
        (OWED, spec("web"), None, ""),
        (OWED, spec("web", desired_state="Deleted"), status("Pending", node_id="n-2", epoch=5), ""),
        (OWED, spec("web", desired_state="Stopped"), status("Pending", node_id="n-2", epoch=5), ""),
        (OWED.replace(after_epoch=0), spec("web"), status("Pending", node_id="n-2", epoch=5), ""),
        (OWED.replace(not_after=NOW), spec("web"), status("Pending", node_id="n-2", epoch=5), ""),
        (OWED.replace(healthy_seconds=61.0), spec("web"), NEW, "61 s"),
        (OWED.replace(healthy_seconds=60.0), spec("web"), NEW, ""),
        (OWED.replace(healthy_seconds=61.0, not_after=NOW), spec("web"), NEW, ""),
        (OWED, spec("web", metadata=EXCLUSIVE), status("Pending", node_id="n-2", epoch=5), ""),
        (OWED.replace(confirmed=True), spec("web", metadata=EXCLUSIVE), status("Pending", node_id="n-2", epoch=5), "P"),
    ],
)
def test_scenario_D1_what_the_stop_of_an_old_copy_waits_for(
    owed: Tombstone, web: WorkloadSpec | None, now_is: WorkloadStatus | None, word: str
) -> None:
    """A running new copy, for as long as asked; nothing, past the deadline or when it is not wanted running."""
    found = waits_for(owed, web, now_is, NOW)
    assert word in found
    assert bool(found) == bool(word)


def test_F64_drained_nodes_that_are_switched_off_do_not_hold_the_brake() -> None:
    """They are empty, and meant to be off; those that are still Draining count."""
    off = [node(f"n-{i}", status="NotReady", drain="Drained", status_updated_at=NOW) for i in range(4)]
    fine = [node(f"m-{i}") for i in range(4)]
    assert not brake([*off, *fine], share=1 / 3, min_nodes=3, window_seconds=60).held
    draining = [one.replace(drain="Draining") for one in off]
    assert len(brake([*draining, *fine], share=1 / 3, min_nodes=3, window_seconds=60).held) == 4
