"""The columns against one node at a time: two ways to the same answer."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node, Taint
from scheduler.placement.capacity import Overcommit, allocatable, capacity, committed
from scheduler.placement.choose import Choice, choose
from scheduler.placement.explain import Explanation
from scheduler.placement.filters import first_objection
from scheduler.placement.fleet import Fleet, Measured
from scheduler.placement.request import Binding, Request, Toleration
from scheduler.placement.score import NO_CAPACITY_SCORE, jitter
from tests.support.placement import node

few = st.sampled_from(["a", "b", ""])
amounts = st.sampled_from([0, 1, 5, 10])
ports = st.sets(st.sampled_from(["80/tcp", "80/udp", "81/tcp"])).map(lambda s: tuple(sorted(s)))
tolerations = st.lists(st.builds(Toleration, st.sampled_from(["*", "a", "b"]), few, few), max_size=2).map(tuple)
taints = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from("ab"),
        value=few,
        effect=st.sampled_from(["", "NoSchedule", "PreferNoSchedule", "NoExecute"]),
    ),
    max_size=2,
).map(tuple)
labels = st.dictionaries(st.sampled_from(["x", "y", "storage.nfs"]), st.sampled_from(["1", "true"]), max_size=2)
nodes = st.builds(
    node,
    node_id=st.sampled_from([f"n-{i}" for i in range(8)]),
    status=st.sampled_from(["Ready", "Active", "NotReady"]),
    schedulable=st.sampled_from([True, True, True, False]),
    drain=st.sampled_from(["", "", "", "Draining"]),
    total_cpu=st.sampled_from([0.0, 0.005, 0.01]),
    total_memory=st.sampled_from([0, 5, 10]),
    total_disk=st.sampled_from([0, 5, 10]),
    labels=labels,
    taints=taints,
    supported_workload_types=st.sampled_from([(), ("container",), ("vm", "docker-compose")]),
    supported_storage_drivers=st.sampled_from([("local",), ("nfs",)]),
)
held = st.builds(
    Commitment,
    kind=st.sampled_from(["workload", "sandbox"]),
    cpu_millicores=amounts, memory_mb=amounts, disk_gb=amounts, ports=ports,
    group=st.sampled_from(["", "", "", "g", "h"]), replica_set=st.sampled_from(["", "s", "t"]),
)  # fmt: skip
ledgers = st.builds(
    Ledger, node_id=st.just(""), commitments=st.dictionaries(st.sampled_from(["p", "q", "r"]), held, max_size=3)
)
measured = st.builds(Measured, amounts, amounts)
requests = st.builds(
    Request,
    st.sampled_from(["w1", "w2"]),
    st.sampled_from(["container", "compose", "vm"]),
    amounts, amounts, amounts,
    ports=ports,
    labels=labels.map(lambda d: tuple(sorted(d.items()))),
    volume_drivers=st.sampled_from([(), ("local",), ("local", "nfs")]),
    tolerations=tolerations,
    node=st.sampled_from(["", "", "", "n-1"]),
    bound=st.sampled_from([(), (), (Binding("v", ("n-1", "n-2")),), (Binding("v", ("n-9",)), Binding("w", ()))]),
    group=st.sampled_from(["", "g"]), replica_set=st.sampled_from(["", "s"]),
)  # fmt: skip
steps = st.lists(st.tuples(nodes, ledgers, measured, st.booleans()), min_size=1, max_size=25)
overcommits = st.builds(Overcommit, *[st.sampled_from([0.5, 1.0, 1.5])] * 3)


Known = dict[str, tuple[Node, Ledger, Measured]]


def build(steps: list[Any], overcommit: Overcommit) -> tuple[Fleet, Known]:
    """Apply upserts and removals to a fleet, and tell what it should now hold."""
    fleet, known = Fleet(overcommit), {}
    for one, ledger, use, keep in steps:
        if keep or one.node_id not in known:
            known[one.node_id] = (one, ledger, use)
            fleet.upsert(one, ledger, use)
        else:
            del known[one.node_id]
            fleet.remove(one.node_id)
    return fleet, known


def plain_score(known: Known, request: Request, node_id: str) -> float:
    """Compute the formula for one node, term by term."""
    one, ledger, use = known[node_id]
    totals, promised, used = capacity(one), committed(ledger), (use.cpu_millicores, use.memory_mb)
    counts = {i: sum(c.kind == "workload" for c in held.commitments.values()) for i, (_, held, _) in known.items()}
    most = max(counts.values())
    spread = 1 - counts[node_id] / most if most else 1
    soft = {(t.key, t.value) for t in one.taints if t.effect == "PreferNoSchedule"}
    taints = [Taint(key=key, value=value, effect="PreferNoSchedule") for key, value in soft]
    disliked = sum(not any(each.covers(t) for each in request.tolerations) for t in taints)
    copies = sum(
        c.replica_set == request.replica_set != "" and c.kind == "workload" for c in ledger.commitments.values()
    )
    if min(totals[:2]) <= 0:
        return NO_CAPACITY_SCORE - disliked - copies
    shares = [((t - u) - max(0, p - u)) / t for t, p, u in zip(totals[:2], promised, used, strict=False)]
    return 0.4 * shares[0] + 0.4 * shares[1] + 0.2 * spread + jitter(request.workload_id, node_id) - disliked - copies


@given(steps, requests, overcommits)
def test_the_fleet_rejects_exactly_what_the_transaction_would(
    steps: list[Any], request: Request, overcommit: Overcommit
) -> None:
    """Whatever came and went before: the same nodes, each by the same first filter; F52."""
    fleet, known = build(steps, overcommit)
    objections = {i: first_objection(one, ledger, request, overcommit) for i, (one, ledger, _) in known.items()}
    outcome = choose(fleet, request)
    if isinstance(outcome, Choice):
        assert objections[outcome.node_id] is None
        return
    expected: dict[str, int] = {}
    for objection in objections.values():
        assert objection is not None
        expected[objection.filter] = expected.get(objection.filter, 0) + 1
    assert {r.filter: r.nodes for r in outcome.rejections} == expected
    assert outcome.nodes_total == len(known) == sum(expected.values())


@given(steps, requests, overcommits, st.sets(st.sampled_from(["n-1", "n-2", "n-9"])))
def test_the_choice_is_the_best_by_the_formula(
    steps: list[Any], request: Request, overcommit: Overcommit, exclude: set[str]
) -> None:
    """Among all that fit and are not excluded; F57, scenario_C17."""
    fleet, known = build(steps, overcommit)
    fitting = [
        i
        for i, (one, ledger, _) in known.items()
        if i not in exclude and first_objection(one, ledger, request, overcommit) is None
    ]
    outcome = choose(fleet, request, exclude)
    if not fitting:
        assert isinstance(outcome, Explanation)
        return
    assert isinstance(outcome, Choice)
    scores = {i: round(plain_score(known, request, i), 9) for i in fitting}
    assert outcome.node_id == min(fitting, key=lambda i: (-scores[i], i))
    assert round(outcome.score, 4) == round(plain_score(known, request, outcome.node_id), 4)


@given(steps, requests, overcommits)
def test_the_nearest_fit_fails_nothing_but_amounts_and_by_the_least(
    steps: list[Any], request: Request, overcommit: Overcommit
) -> None:
    """No other node of the right kind lacks a smaller share."""
    fleet, known = build(steps, overcommit)
    outcome = choose(fleet, request)
    if isinstance(outcome, Choice):
        return
    limited = {"cpu_insufficient", "memory_insufficient", "disk_insufficient", "port_conflict", "node_full"}
    lacks = {}
    for node_id, (one, ledger, _) in known.items():
        objection = first_objection(one, ledger, request, overcommit)
        assert objection is not None
        if objection.filter in limited:
            lacks[node_id] = shortfall(one, ledger, request, overcommit)
    if outcome.nearest is None:
        assert not lacks
    else:
        assert outcome.nearest.node_id == min(lacks, key=lambda i: (lacks[i], i))


def shortfall(one: Node, ledger: Ledger, request: Request, overcommit: Overcommit) -> float:
    """Add up the missing shares of what is asked."""
    total = 0.0
    limits, promised = allocatable(one, overcommit), committed(ledger)
    for asked, limit, used in zip(request.amounts, limits, promised, strict=True):
        if asked:
            total += max(asked - max(limit - used, 0), 0) / asked
    for port in request.ports:
        total += (port in ledger.ports) / len(request.ports)
    return total
