"""Choosing: the best node, the same one every time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node, Taint
from scheduler.placement import choose as module
from scheduler.placement.capacity import commitment_of
from scheduler.placement.choose import Choice, choose
from scheduler.placement.explain import Explanation
from scheduler.placement.fleet import Fleet, Floats, Measured
from scheduler.placement.request import Request, Toleration
from tests.support.placement import node


def fleet_of(*nodes: Node) -> Fleet:
    """Return a fleet of idle nodes."""
    fleet = Fleet()
    for each in nodes:
        fleet.upsert(each, Ledger(node_id=each.node_id))
    return fleet


def chosen(fleet: Fleet, request: Request, exclude: frozenset[str] = frozenset()) -> str:
    """Return the id of the chosen node."""
    choice = choose(fleet, request, exclude)
    assert isinstance(choice, Choice)
    return choice.node_id


def test_F58_ten_equal_workloads_spread_evenly_over_two_equal_nodes() -> None:
    """Five each, before any heartbeat: commitments alone spread them."""
    ledgers = {i: Ledger(node_id=i) for i in ("n-1", "n-2")}
    fleet = fleet_of(*map(node, ledgers))
    for index in range(10):
        request = Request(f"w{index}", cpu_millicores=100, memory_mb=64)
        where = chosen(fleet, request)
        ledgers[where] = ledgers[where].with_commitment(request.workload_id, commitment_of(request, 1))
        fleet.upsert(node(where), ledgers[where])
    assert {i: len(ledger.commitments) for i, ledger in ledgers.items()} == {"n-1": 5, "n-2": 5}


def test_the_emptier_and_the_less_used_node_wins() -> None:
    """Free share of CPU and memory outweighs the jitter."""
    fleet = fleet_of(node("n-1"), node("n-2"), node("n-3"))
    fleet.upsert(node("n-1"), Ledger(node_id="n-1", commitments={"a": Commitment(cpu_millicores=500)}))
    fleet.upsert(node("n-2"), Ledger(node_id="n-2"), Measured(cpu_millicores=800))
    assert chosen(fleet, Request("web")) == "n-3"
    assert chosen(fleet, Request("web"), frozenset({"n-3"})) == "n-2"


def test_measured_use_never_keeps_work_away() -> None:
    """It bends the score; capacity is the ledger's business."""
    fleet = fleet_of()
    fleet.upsert(node(), Ledger(node_id="n-1"), Measured(cpu_millicores=10**9, memory_mb=10**9))
    assert chosen(fleet, Request("web", cpu_millicores=2000)) == "n-1"


def test_the_order_in_which_nodes_came_does_not_matter() -> None:
    """The same nodes give the same choice, also after others came and went."""
    nodes = [node(f"n-{i}") for i in range(50)]
    expected = chosen(fleet_of(*nodes), Request("web"))
    for seed in range(5):
        shuffled = random.Random(seed).sample(nodes, len(nodes))  # noqa: S311
        fleet = fleet_of(node("x-1"), *shuffled[:20], node("x-2"))
        fleet.remove("x-1")
        for each in shuffled[20:]:
            fleet.upsert(each, Ledger(node_id=each.node_id))
        fleet.remove("x-2")
        assert chosen(fleet, Request("web")) == expected


def test_equal_scores_go_to_the_first_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tie is broken by id, not by luck."""

    def flat(available: Floats, *_columns: Floats, **_named: object) -> Floats:
        result: Floats = available[0] * 0
        return result

    monkeypatch.setattr(module, "score", flat)
    assert chosen(fleet_of(node("n-3"), node("n-1"), node("n-2")), Request("web")) == "n-1"


def test_work_spreads_over_a_large_fleet() -> None:
    """Forty workloads on forty idle nodes: the jitter differs by workload, so they do not all line up behind one."""
    fleet = fleet_of(*(node(f"n-{i:02d}") for i in range(40)))
    assert max(Counter(chosen(fleet, Request(f"w{i}")) for i in range(40)).values()) < 10


def test_scenario_C17_excluded_nodes_are_never_chosen_and_counted_apart() -> None:
    """A node that is ruled out is no node that was tried and failed."""
    fleet = fleet_of(node("n-1"), node("n-2", total_cpu=0.5))
    outcome = choose(fleet, Request("web", cpu_millicores=1000), frozenset({"n-1", "unheard-of"}))
    assert isinstance(outcome, Explanation)
    assert [(r.filter, r.nodes) for r in outcome.rejections] == [("excluded", 1), ("cpu_insufficient", 1)]
    assert outcome.nearest is not None
    assert outcome.nearest.node_id == "n-2"


def test_scenario_C6_a_node_that_becomes_fit_is_chosen_at_the_next_look() -> None:
    """Nothing is remembered about a node but its row."""
    fleet = fleet_of(node(status="NotReady"))
    assert isinstance(choose(fleet, Request("web")), Explanation)
    fleet.upsert(node(), Ledger(node_id="n-1"))
    assert chosen(fleet, Request("web")) == "n-1"
    fleet.remove("n-1")
    fleet.remove("n-1")
    assert len(fleet) == 0
    assert isinstance(choose(fleet, Request("web")), Explanation)


def test_F53_a_node_with_PreferNoSchedule_is_taken_only_where_no_other_fits() -> None:
    """However much emptier it is; the reason says so, and what tolerates the taint does not mind."""
    soft = (Taint(key="old", effect="PreferNoSchedule"),)
    fleet = Fleet()
    fleet.upsert(node("n-1", taints=soft), Ledger(node_id="n-1"))
    busy = Ledger(node_id="n-2", commitments={"x": Commitment(cpu_millicores=1900, memory_mb=1900)})
    fleet.upsert(node("n-2"), busy)
    found = choose(fleet, Request("web", cpu_millicores=100))
    assert isinstance(found, Choice)
    assert (found.node_id, "spite" in found.reason) == ("n-2", False)
    found = choose(fleet, Request("web", cpu_millicores=200))
    assert isinstance(found, Choice)
    assert found.node_id == "n-1"
    assert found.reason.endswith("in spite of taint old:PreferNoSchedule")
    plain = choose(fleet, Request("web", cpu_millicores=200, tolerations=(Toleration("old"),)))
    assert isinstance(plain, Choice)
    assert (plain.node_id, round(plain.score - found.score, 4), "spite" in plain.reason) == ("n-1", 1.0, False)


def test_F87_copies_of_one_workload_prefer_different_nodes() -> None:
    """One copy more outweighs any load; where every node has one, the next goes to the best of them."""
    ledgers = {i: Ledger(node_id=i) for i in ("n-1", "n-2", "n-3")}
    busy = ("n-1", "n-2")
    for node_id in busy:
        ledgers[node_id] = ledgers[node_id].with_commitment("batch", Commitment(cpu_millicores=1500, memory_mb=1500))
    fleet = fleet_of()
    for node_id, ledger in ledgers.items():
        fleet.upsert(node(node_id), ledger)
    where = []
    for index in range(6):
        request = Request(f"web.{index + 2}", cpu_millicores=10, memory_mb=8, replica_set="web")
        where.append(chosen(fleet, request))
        ledgers[where[-1]] = ledgers[where[-1]].with_commitment(request.workload_id, commitment_of(request, 1))
        fleet.upsert(node(where[-1]), ledgers[where[-1]])
    assert where[0] == where[3] == "n-3"
    assert Counter(where) == {"n-1": 2, "n-2": 2, "n-3": 2}
    assert chosen(fleet, Request("other", cpu_millicores=10)) == "n-3"


def test_F57_without_a_set_copies_change_no_score() -> None:
    """The formula is the reference system's."""
    held = {"web": Commitment(cpu_millicores=100, replica_set="web"), "web.2": Commitment(replica_set="web")}
    plain = {holder: c.replace(replica_set="") for holder, c in held.items()}
    scores = []
    for commitments in (held, plain):
        fleet = fleet_of()
        fleet.upsert(node(), Ledger(node_id="n-1", commitments=commitments))
        choice = choose(fleet, Request("other"))
        assert isinstance(choice, Choice)
        scores.append(choice.score)
    assert scores[0] == scores[1]
