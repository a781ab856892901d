"""Explaining why nothing fits."""

from __future__ import annotations

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node, Taint
from scheduler.placement.choose import choose
from scheduler.placement.explain import Explanation, NearestFit, without_figures
from scheduler.placement.fleet import Fleet
from scheduler.placement.request import Request
from tests.support.placement import node


def explained(request: Request, *nodes: Node, **used: Commitment) -> Explanation:
    """Return the explanation for these nodes; `used` is one commitment by node id with _ for -."""
    fleet = Fleet()
    for each in nodes:
        held = used.get(each.node_id.replace("-", "_"))
        fleet.upsert(each, Ledger(node_id=each.node_id, commitments={"api": held} if held else {}))
    outcome = choose(fleet, request)
    assert isinstance(outcome, Explanation)
    return outcome


def test_F11_no_nodes_at_all_are_told_in_the_reference_words() -> None:
    """An empty fleet has nothing to explain."""
    outcome = explained(Request("web"))
    assert outcome.summary == "no nodes available"
    assert outcome.nearest is None


def test_the_summary_is_one_sentence_with_the_figures_of_an_example() -> None:
    """The commonest reason first; of equal filters the node with the most left is the example."""
    outcome = explained(
        Request("web", cpu_millicores=1000),
        node("n-1"),
        node("n-2"),
        node("n-3", taints=(Taint(key="gpu"),)),
        n_1=Commitment(cpu_millicores=1500),
        n_2=Commitment(cpu_millicores=1700),
    )
    assert outcome.summary == (
        "no node fits: 2 of 3 nodes cpu_insufficient (n-1 has 500m free of 2000m, 1000m asked), 1 tainted"
    )
    assert outcome.nearest == NearestFit("n-1", "has 500m free of 2000m, 1000m asked")


def test_every_node_is_counted_once_by_its_first_failing_filter() -> None:
    """The counts add up to all nodes, whatever else is wrong with them."""
    request = Request("web", cpu_millicores=5000, memory_mb=5000, labels=(("zone", "a"),))
    ready = {"labels": {"zone": "a"}}
    outcome = explained(
        request,
        node("n-1", status="NotReady"),
        node("n-2"),
        node("n-3", **ready, taints=(Taint(key="x"),)),
        node("n-4", **ready),
        node("n-5", **ready, total_cpu=8),
    )
    assert [(r.filter, r.nodes) for r in outcome.rejections] == [
        ("status", 1), ("label_mismatch", 1), ("tainted", 1), ("cpu_insufficient", 1), ("memory_insufficient", 1),
    ]  # fmt: skip
    assert outcome.nodes_total == 5


def test_the_nearest_fit_lacks_the_smallest_share_of_what_is_asked() -> None:
    """Its shortfalls are added up over all resources, and all of them are told."""
    outcome = explained(
        Request("web", cpu_millicores=2000, memory_mb=1000, ports=("80/tcp",)),
        node("n-1", total_cpu=1.9, total_memory=900),
        node("n-2", total_cpu=1.9),
        node("n-3"),
        n_3=Commitment(ports=("80/tcp",)),
    )
    assert outcome.nearest == NearestFit("n-2", "has 1900m free of 1900m, 2000m asked")
    both = explained(
        Request("web", cpu_millicores=2000, ports=("80/tcp",)),
        node("n-1", total_cpu=1.9),
        n_1=Commitment(ports=("80/tcp",)),
    )
    assert both.nearest == NearestFit("n-1", 'has 1900m free of 1900m, 2000m asked; has port 80/tcp taken by "api"')


def test_a_node_that_is_wrong_in_kind_is_never_the_nearest() -> None:
    """More room would not help it."""
    outcome = explained(Request("web", cpu_millicores=2001), node("n-1", status="NotReady", total_cpu=64))
    assert outcome.nearest is None
    outcome = explained(Request("web", cpu_millicores=2001), node("n-1", status="NotReady"), node("n-2", total_cpu=0.1))
    assert outcome.nearest is not None
    assert outcome.nearest.node_id == "n-2"


def test_the_nearest_fit_is_added_where_the_example_is_another_node() -> None:
    """The commonest reason may not be the one closest to success."""
    outcome = explained(
        Request("web", cpu_millicores=2100),
        node("n-1", status="NotReady"),
        node("n-2", status="NotReady"),
        node("n-3"),
    )
    assert outcome.summary == (
        "no node fits: 2 of 3 nodes status (n-1 status=NotReady reason= by= at=), 1 cpu_insufficient"
        "; nearest fit: n-3 has 2000m free of 2000m, 2100m asked"
    )


def test_figures_alone_do_not_make_a_new_explanation() -> None:
    """A pending workload's record is rewritten when the picture changes, not with each commitment elsewhere."""
    request = Request("web", cpu_millicores=1000)
    texts = [
        explained(request, node("n-1"), node("n-2"), n_1=Commitment(cpu_millicores=used), n_2=full).summary
        for used, full in ((1500, Commitment(cpu_millicores=2000)), (1600, Commitment(cpu_millicores=2000)))
    ]
    assert texts[0] != texts[1]
    assert without_figures(texts[0]) == without_figures(texts[1]) == "no node fits: 2 of 2 nodes cpu_insufficient"
    one_less = explained(request, node("n-1", status="NotReady"), node("n-2", total_cpu=0.5)).summary
    assert without_figures(one_less) != without_figures(texts[0])


def test_an_explanation_has_a_bound() -> None:
    """A node with a thousand taints does not fill the record of every pending workload."""
    many = tuple(Taint(key=f"taint-number-{i}") for i in range(1000))
    assert len(explained(Request("web"), node(taints=many)).summary) < 300
