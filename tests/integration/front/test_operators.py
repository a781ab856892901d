"""What operators ask of nodes over gRPC: rows F53, F64, F65, F66, and what the fleet's own service adds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from scheduler.domain.ledger import LEFT, Commitment, Ledger, left_by
from scheduler.domain.node import Health, Taint
from scheduler.domain.workload import Tombstone
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from scheduler.store.keys import LEDGERS, NODES, TOMBSTONES
from scheduler.store.nodes import set_health
from tests.support.fronts import Heartbeat, Rig, container, front_on, refused, status


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A front with two nodes; its events are kept in a list."""
    async with front_on() as rig:
        await rig.register("n1")
        await rig.register("n2")
        rig.told = []  # type: ignore[attr-defined]
        rig.parts.events.emit = lambda kind, **about: rig.told.append((str(kind), about))  # type: ignore[attr-defined,method-assign]
        yield rig


def told(rig: Any) -> list[str]:
    """Return the types of the events that were sent since the last time, but those of workloads."""
    found = [kind for kind, _ in rig.told if not kind.startswith("Workload")]
    rig.told.clear()
    return found


async def on_one_node(rig: Rig, *names: str, **spec: Any) -> None:
    """Have workloads placed on n1."""
    await rig.fleet.CordonNode(fb.CordonNodeRequest(node_id="n2"))
    for name in names:
        wanted = container()
        wanted.metadata.update(spec)
        assert (await rig.apply(name, spec=wanted)).assigned_node_id == "n1"
    await rig.fleet.UncordonNode(fb.UncordonNodeRequest(node_id="n2"))
    await rig.settled()


async def drain(rig: Rig, node_id: str = "n1", **wish: Any) -> pb.DrainNodeResponse:
    """Drain a node."""
    answer: pb.DrainNodeResponse = await rig.control.DrainNode(pb.DrainNodeRequest(node_id=node_id, **wish))
    return answer


async def test_F64_a_drain_is_accepted_and_says_what_will_move(rig: Rig) -> None:
    """Movable ones are counted, pinned ones named; the node shows Draining, why and by whom; the loops are woken."""
    await on_one_node(rig, "a", "b")
    await on_one_node(rig, "db", **{"persys.scheduling.persistence_class": "node-local"})
    rig.woken.clear()
    answer = await drain(rig)
    assert (answer.accepted, answer.relocated_workloads, answer.pinned_workloads) == (True, 2, 1)
    assert "2 workloads to move; 1 workload pinned to it stays" in answer.message
    view = answer.node
    assert (view.status, view.health, view.drain, view.schedulable) == ("Draining", "Ready", "Draining", False)
    assert (view.status_reason, view.status_updated_by) == ("node drain requested", "operator")
    assert rig.woken == [("a", "n1"), ("b", "n1")]
    assert told(rig) == ["NodeDraining", "RescheduleSkipped"]
    again = await drain(rig)
    assert again.accepted
    assert told(rig) == []


async def test_F64_draining_nodes_are_listed_and_counted_as_such(rig: Rig) -> None:
    """By ListNodes' filter, in the summary, and not among those that are ready."""
    await drain(rig, reason="new disks")
    listed = await rig.control.ListNodes(pb.ListNodesRequest(status="draining"))
    assert [n.node_id for n in listed.nodes] == ["n1"]
    summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
    assert (summary.ready_nodes, dict(summary.nodes_by_status)) == (1, {"Ready": 1, "Draining": 1})
    await set_health(rig.parts.store, "n1", Health.NOT_READY, "silent", "monitor", now=rig.parts.now())
    await rig.settled()
    view = await rig.node("n1")
    assert (view.status, view.status_reason, view.drain) == ("NotReady", "silent", "Draining")


async def test_F64_validate_only_changes_nothing(rig: Rig) -> None:
    """It says what would move."""
    await on_one_node(rig, "a")
    before = await rig.stored()
    answer = await drain(rig, validate_only=True)
    assert (answer.relocated_workloads, answer.message) == (1, '1 workload would leave node "n1"')
    assert await rig.stored() == before
    with refused(grpc.StatusCode.NOT_FOUND, "n9"):
        await drain(rig, "n9", validate_only=True)


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"max_parallel": 0}, "max_parallel: 0 is not allowed; it must be 1 to 1000"),
        ({"max_parallel": 1001}, "max_parallel"),
        ({"min_healthy_seconds": -1.0}, "min_healthy_seconds"),
        ({"min_healthy_seconds": float("nan")}, "min_healthy_seconds"),
        ({"deadline_seconds": -2.0}, "deadline_seconds"),
        ({"deadline_seconds": 1e12}, "deadline_seconds"),
        ({"reason": "x" * 257}, "reason"),
        ({"reason": "a\nb"}, "reason"),
    ],
)
async def test_F64_a_bad_option_names_its_field_and_stores_nothing(rig: Rig, wish: dict[str, Any], field: str) -> None:
    """INVALID_ARGUMENT, before anything is looked up."""
    before = await rig.stored()
    with refused(grpc.StatusCode.INVALID_ARGUMENT, field):
        await drain(rig, **wish)
    assert await rig.stored() == before


async def test_F65_undrain_makes_a_healthy_node_ready_and_a_dead_one_not(rig: Rig) -> None:
    """The event and the word Ready only for a node that is heard."""
    await drain(rig)
    told(rig)
    answer = await rig.control.UndrainNode(pb.UndrainNodeRequest(node_id="n1"))
    assert (answer.accepted, answer.node.status, answer.node.schedulable) == (True, "Ready", True)
    assert told(rig) == ["NodeReady"]
    answer = await rig.control.UndrainNode(pb.UndrainNodeRequest(node_id="n1"))
    assert (answer.accepted, "was not being drained" in answer.message, told(rig)) == (True, True, [])
    await drain(rig)
    await set_health(rig.parts.store, "n1", Health.NOT_READY, "silent", "monitor", now=rig.parts.now())
    told(rig)
    answer = await rig.control.UndrainNode(pb.UndrainNodeRequest(node_id="n1"))
    assert (answer.accepted, answer.node.status) == (True, "NotReady")
    assert "becomes Ready when it is heard" in answer.message
    assert told(rig) == []


async def test_F53_taints_are_set_and_taken_off(rig: Rig) -> None:
    """Identity (key, effect), a blank effect means NoSchedule, also on untaint; events only on a change."""
    for effect, value in (("", "old"), ("noschedule", "new"), ("NoExecute", "")):
        taint = pb.NodeTaint(key=" gpu ", value=value, effect=effect)
        answer = await rig.control.TaintNode(pb.TaintNodeRequest(node_id="n1", taint=taint))
        assert answer.accepted
    assert [(t.key, t.value, t.effect) for t in answer.node.taints] == [
        ("gpu", "new", "NoSchedule"),
        ("gpu", "", "NoExecute"),
    ]
    assert told(rig) == ["NodeTainted"] * 3
    await rig.control.TaintNode(pb.TaintNodeRequest(node_id="n1", taint=taint))
    assert told(rig) == []
    for count in (1, 0):
        answer = await rig.control.UntaintNode(pb.UntaintNodeRequest(node_id="n1", key="gpu"))
        assert [t.effect for t in answer.node.taints] == ["NoExecute"]
        assert told(rig) == ["NodeUntainted"] * count


async def test_F53_a_taint_keeps_work_away_and_NoExecute_has_work_looked_at(rig: Rig) -> None:
    """Placement goes by it at once; PreferNoSchedule only where there is a choice."""
    await on_one_node(rig, "a")
    await rig.put(NODES, "n2", (await rig.parts.store.get(NODES, "n2")).record.replace(taints=(Taint(key="x"),)))  # type: ignore[union-attr]
    soft = pb.NodeTaint(key="old", effect="PreferNoSchedule")
    await rig.control.TaintNode(pb.TaintNodeRequest(node_id="n1", taint=soft))
    assert (await rig.apply("b")).assigned_node_id == "n1"
    rig.woken.clear()
    hard = pb.NodeTaint(key="power", effect="NoExecute")
    await rig.control.TaintNode(pb.TaintNodeRequest(node_id="n1", taint=hard))
    assert rig.woken == [("a", "n1"), ("b", "n1")]
    answer = await rig.apply("c")
    assert (answer.assigned_node_id, "tainted" in answer.pending_reason) == ("", True)


async def test_F66_labels_are_set_and_deleted_and_placement_goes_by_them(rig: Rig) -> None:
    """Trimmed; visible in the view; usable by a node selector at once."""
    wanted = container()
    wanted.metadata["fleetbeat.node_selector"] = "disk=ssd"
    assert (await rig.apply("picky", spec=wanted)).assigned_node_id == ""
    answer = await rig.control.SetNodeLabel(pb.SetNodeLabelRequest(node_id="n2", key=" disk ", value=" ssd "))
    assert (answer.accepted, answer.node.labels["disk"]) == (True, "ssd")
    assert (await rig.apply("picky2", spec=wanted)).assigned_node_id == "n2"
    assert told(rig) == ["NodeLabelSet"]
    answer = await rig.control.DeleteNodeLabel(pb.DeleteNodeLabelRequest(node_id="n2", key="disk"))
    assert (answer.accepted, dict(answer.node.labels)) == (True, {"scheduler_shard": "genesis"})
    answer = await rig.control.DeleteNodeLabel(pb.DeleteNodeLabelRequest(node_id="n2", key="disk"))
    assert (answer.accepted, "had none" in answer.message, told(rig)) == (True, True, ["NodeLabelDeleted"])


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("TaintNode", pb.TaintNodeRequest(node_id="n1", taint=pb.NodeTaint(key="")), "taint.key"),
        ("TaintNode", pb.TaintNodeRequest(node_id="n1", taint=pb.NodeTaint(key="a b")), "taint.key"),
        ("TaintNode", pb.TaintNodeRequest(node_id="n1", taint=pb.NodeTaint(key="k", value="a,b")), "taint.value"),
        ("TaintNode", pb.TaintNodeRequest(node_id="n1", taint=pb.NodeTaint(key="k", effect="Never")), "taint.effect"),
        ("UntaintNode", pb.UntaintNodeRequest(node_id="n1", key="k", effect="Never"), "effect"),
        ("UntaintNode", pb.UntaintNodeRequest(node_id="n1"), "key"),
        ("SetNodeLabel", pb.SetNodeLabelRequest(node_id="n1", key=" "), "key"),
        ("SetNodeLabel", pb.SetNodeLabelRequest(node_id="n1", key="k", value="x" * 257), "value"),
        ("SetNodeLabel", pb.SetNodeLabelRequest(node_id="n1", key="scheduler_shard", value="x"), "key"),
        ("DeleteNodeLabel", pb.DeleteNodeLabelRequest(node_id="n1", key="-"), "key"),
        ("DrainNode", pb.DrainNodeRequest(node_id=" "), "node_id"),
        ("UndrainNode", pb.UndrainNodeRequest(node_id="a/b"), "node_id"),
    ],
)
async def test_F64_F66_bad_input_names_the_field_and_stores_nothing(
    rig: Rig, method: str, request_: Any, field: str
) -> None:
    """INVALID_ARGUMENT, with what is allowed."""
    before = await rig.stored()
    with refused(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: "):
        await getattr(rig.control, method)(request_)
    assert await rig.stored() == before


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("DrainNode", pb.DrainNodeRequest(node_id="n9")),
        ("UndrainNode", pb.UndrainNodeRequest(node_id="n9")),
        ("TaintNode", pb.TaintNodeRequest(node_id="n9", taint=pb.NodeTaint(key="k"))),
        ("UntaintNode", pb.UntaintNodeRequest(node_id="n9", key="k")),
        ("SetNodeLabel", pb.SetNodeLabelRequest(node_id="n9", key="k")),
        ("DeleteNodeLabel", pb.DeleteNodeLabelRequest(node_id="n9", key="k")),
        ("CordonNode", fb.CordonNodeRequest(node_id="n9")),
        ("UncordonNode", fb.UncordonNodeRequest(node_id="n9")),
        ("GetDrain", fb.GetDrainRequest(node_id="n9")),
        ("RemoveNode", fb.RemoveNodeRequest(node_id="n9")),
    ],
)
async def test_F64_F66_an_unknown_node_is_not_found(rig: Rig, method: str, request_: Any) -> None:
    """By every call, and nothing is stored for it."""
    client = rig.control if hasattr(rig.control, method) else rig.fleet
    before = await rig.stored()
    with refused(grpc.StatusCode.NOT_FOUND, "n9"):
        await getattr(client, method)(request_)
    assert await rig.stored() == before


async def test_a_cordon_keeps_new_work_away_and_moves_nothing(rig: Rig) -> None:
    """The node stays Ready; what is there stays; asking again writes nothing."""
    await on_one_node(rig, "a")
    answer = await rig.fleet.CordonNode(fb.CordonNodeRequest(node_id="n1"))
    assert (answer.node.status, answer.node.cordoned, answer.node.schedulable) == ("Ready", True, False)
    before = await rig.stored()
    await rig.fleet.CordonNode(fb.CordonNodeRequest(node_id="n1"))
    assert await rig.stored() == before
    assert (await rig.apply("b")).assigned_node_id == "n2"
    assert (await rig.workload("a")).assigned_node_id == "n1"
    answer = await rig.fleet.UncordonNode(fb.UncordonNodeRequest(node_id="n1"))
    assert answer.node.schedulable


async def test_the_progress_of_a_drain_tells_what_each_workload_waits_for(rig: Rig) -> None:
    """Waiting, blocked with the reason, pinned, being deleted; how many there were and are."""
    await on_one_node(rig, "a", "gone")
    await on_one_node(rig, "db", **{"persys.scheduling.persistence_class": "node-local"})
    await on_one_node(rig, "only-here", **{"fleetbeat.node": "n1"})
    await drain(rig, max_parallel=3, min_healthy_seconds=2.5, deadline_seconds=60)
    await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="gone"))
    answer = await rig.fleet.GetDrain(fb.GetDrainRequest(node_id="n1"))
    assert {w.workload_id: w.state for w in answer.workloads} == {
        "a": "waiting", "db": "pinned", "gone": "deleting", "only-here": "blocked",
    }  # fmt: skip
    blocked = next(w for w in answer.workloads if w.state == "blocked")
    assert "node_mismatch" in blocked.reason
    assert (answer.state, answer.total, answer.left, answer.moving, answer.moved) == ("Draining", 4, 4, 0, 0)
    assert (answer.max_parallel, answer.min_healthy_seconds) == (3, 2.5)
    assert answer.deadline.seconds - answer.started_at.seconds in (59, 60, 61)
    assert not answer.HasField("finished_at")


async def test_a_node_that_is_heard_or_holds_work_is_not_removed_unless_forced(rig: Rig) -> None:
    """FAILED_PRECONDITION says what is in the way; force removes it, tells of it and has its work looked at."""
    await on_one_node(rig, "a")
    request = fb.RemoveNodeRequest(node_id="n1")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "holds 1 workload;"):
        await rig.fleet.RemoveNode(request)
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "is heard"):
        await rig.fleet.RemoveNode(fb.RemoveNodeRequest(node_id="n2"))
    checked = await rig.fleet.RemoveNode(fb.RemoveNodeRequest(node_id="n1", force=True, validate_only=True))
    assert checked.workloads == 1
    told(rig)
    rig.woken.clear()
    answer = await rig.fleet.RemoveNode(fb.RemoveNodeRequest(node_id="n1", force=True))
    assert (answer.workloads, rig.woken, told(rig)) == (1, [("a", "n1")], ["NodeLeft"])
    with refused(grpc.StatusCode.NOT_FOUND, "n1"):
        await rig.node("n1")


async def test_F64_the_report_that_a_new_copy_runs_has_the_old_one_looked_at(rig: Rig) -> None:
    """The stop on the old node is due at once; until then the drain shows the workload as moving, and where to."""
    await rig.fleet.CordonNode(fb.CordonNodeRequest(node_id="n1"))
    applied = await rig.apply("web")
    assert applied.assigned_node_id == "n2"
    epoch = (await rig.workload("web")).assignment_epoch
    owed = Tombstone(node_id="n1", workload_id="web", epoch=epoch - 1, after_epoch=epoch)
    await rig.put(TOMBSTONES, "n1/web", owed)
    left = Ledger(node_id="n1", commitments={left_by("web"): Commitment(kind=LEFT, epoch=epoch - 1)})
    await rig.put(LEDGERS, "n1", left)
    await drain(rig)
    answer = await rig.fleet.GetDrain(fb.GetDrainRequest(node_id="n1"))
    moving = fb.LeavingWorkload(
        workload_id="web", state="moving", reason="the copy on n2 is Pending", node_id="n2"
    )  # fmt: skip
    assert (answer.moving, list(answer.workloads)) == (1, [moving])
    rig.woken.clear()
    runs = status("web", "Running", epoch=epoch, revision=applied.revision_id)
    await rig.control.Heartbeat(Heartbeat(node_id="n2", workload_statuses=[runs]))
    await rig.settled()
    assert ("web", "n1") in rig.woken
