"""Lists, views, pages, the summary (F88), explanations: what the front shows, and how it says that it may be old."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from scheduler.domain.node import Health
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from scheduler.store.keys import NODES, SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.fronts import Rig, container, eventually, front_on, refused


async def list_nodes(rig: Rig, **filters: str) -> Any:
    """List nodes as a gateway does."""
    return await rig.control.ListNodes(pb.ListNodesRequest(**filters))


async def list_workloads(rig: Rig, **filters: str) -> Any:
    """List workloads as a gateway does."""
    return await rig.control.ListWorkloads(pb.ListWorkloadsRequest(**filters))


async def store_status(rig: Rig, workload_id: str, phase: str, **fields: Any) -> None:
    """Store a spec and a status as they are."""
    desired = fields.pop("desired", "Running")
    await rig.put(SPECS, workload_id, WorkloadSpec(id=workload_id, type="container", desired_state=desired))
    await rig.put(STATUSES, workload_id, WorkloadStatus(id=workload_id, status=phase, **fields))


async def lose(rig: Rig, node_id: str) -> None:
    """Make a node NotReady."""
    node = rig.parts.cache.get(NODES, node_id).record
    assert node
    await rig.put(NODES, node_id, node.replace(status=Health.NOT_READY, status_updated_at=rig.parts.now()))


async def test_lists_are_filtered_by_node_and_by_status_in_any_case() -> None:
    """node_id is exact, status is not case-sensitive; what does not match is not there."""
    async with front_on() as rig:
        for node_id in ("b", "a"):
            await rig.register(node_id)
        await lose(rig, "b")
        for workload_id in ("w2", "w1"):
            await rig.apply(workload_id)
        assert [n.node_id for n in (await list_nodes(rig)).nodes] == ["a", "b"]
        assert [n.node_id for n in (await list_nodes(rig, status="READY")).nodes] == ["a"]
        assert [n.node_id for n in (await list_nodes(rig, status="notready")).nodes] == ["b"]
        assert [w.workload_id for w in (await list_workloads(rig)).workloads] == ["w1", "w2"]
        assert len((await list_workloads(rig, node_id="a", status="scheduled")).workloads) == 2
        assert not (await list_workloads(rig, node_id="b")).workloads
        assert not (await list_workloads(rig, status="running")).workloads


async def test_a_node_shows_what_is_committed_on_it() -> None:
    """Allocated is the ledger's sum; the count and the shard are there."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply("w1")
        await rig.apply("w2")
        await eventually(lambda: len(rig.front.reader.index.on_node("n1")) == 2)
        view = await rig.node()
        assert (view.allocated_cpu_cores, view.allocated_memory_mb, view.workload_count) == (0.2, 128, 2)
        assert view.schedulable


async def test_scenario_L17_workloads_of_a_lost_node_are_not_shown_as_running() -> None:
    """Nobody knows what runs there: Unknown, in views, filters, counts and the summary alike; no write for it."""
    async with front_on() as rig:
        await rig.register()
        await store_status(rig, "web", "Running", node_id="n1")
        await lose(rig, "n1")
        before = await rig.stored()
        assert (await rig.workload()).status == "Unknown"
        assert len((await list_workloads(rig, status="unknown")).workloads) == 1
        summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
        assert (summary.running_workloads, summary.workloads_by_status) == (0, {"Unknown": 1})
        assert await rig.stored() == before


async def test_F88_the_summary_counts_every_status() -> None:
    """Counts as the reference system's, and beside them every status by its name."""
    async with front_on() as rig:
        for node_id in ("a", "b", "c"):
            await rig.register(node_id)
        await lose(rig, "c")
        phases = [
            "Running",
            "Running",
            "Pending",
            "Unknown",
            "Updating",
            "Failed",
            "Scheduled",
            "RetryPending",
            "Stopped",
        ]
        for number, phase in enumerate(phases):
            await store_status(rig, f"w{number}", phase)
        await store_status(rig, "going", "Deleting", desired="Deleted")
        await store_status(rig, "old", "Deleted")
        summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
        assert (summary.total_nodes, summary.ready_nodes, summary.not_ready_nodes) == (3, 2, 1)
        assert summary.total_workloads == 11
        assert (summary.running_workloads, summary.pending_workloads, summary.failed_workloads) == (2, 3, 1)
        assert summary.deleted_workloads == 2
        assert sum(summary.workloads_by_status.values()) == 11
        assert summary.workloads_by_status["Scheduled"] == 1
        assert summary.nodes_by_status == {"Ready": 2, "NotReady": 1}
        assert summary.HasField("generated_at")


async def test_reads_go_on_while_etcd_is_away_and_say_that_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists and views come from the cache, marked stale; what the cache does not know is UNAVAILABLE, not absent."""
    monkeypatch.setattr("scheduler.front.reader.FRESH_SECONDS", 0.3)
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        await rig.apply()
        assert not (await list_nodes(rig)).stale
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE
        await eventually(lambda: rig.front.reader.stale)
        nodes, workloads = await list_nodes(rig), await list_workloads(rig)
        assert (nodes.stale, len(nodes.nodes)) == (True, 1)
        assert (workloads.stale, len(workloads.workloads)) == (True, 1)
        assert (await rig.workload()).workload_id == "web"
        with refused(grpc.StatusCode.UNAVAILABLE):
            await rig.workload("other")
        status = await rig.fleet.GetClusterStatus(fb.GetClusterStatusRequest())
        assert status.stale
        assert any("etcd has not been heard" in notice for notice in status.notices)
        etcd.mishap = lambda _call: None


async def test_a_front_that_has_never_read_etcd_does_not_show_an_empty_fleet() -> None:
    """UNAVAILABLE instead of "no nodes"."""
    etcd = MemoryEtcd()
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    async with front_on(etcd, wait=False) as rig:
        for call in (
            list_nodes(rig),
            list_workloads(rig),
            rig.control.GetClusterSummary(pb.GetClusterSummaryRequest()),
            rig.fleet.ListNodes(fb.ListNodesRequest()),
            rig.fleet.ListWorkloads(fb.ListWorkloadsRequest()),
            rig.fleet.GetClusterStatus(fb.GetClusterStatusRequest()),
        ):
            with refused(grpc.StatusCode.UNAVAILABLE, "not been read"):
                await call


async def test_not_found_is_the_word_of_etcd() -> None:
    """A front whose cache lags finds a node and a workload all the same."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as one, front_on(etcd) as two:
        await two.parts.cache.close()
        await one.register()
        await one.apply()
        assert (await two.node()).node_id == "n1"
        assert (await two.workload()).assigned_node_id == "n1"
        with refused(grpc.StatusCode.NOT_FOUND, 'no node "n2"'):
            await two.node("n2")


async def pages(rig: Rig, kind: str, **fields: Any) -> list[list[str]]:
    """Read all pages; return the ids of each."""
    found, token = [], ""
    while True:
        if kind == "nodes":
            answer = await rig.fleet.ListNodes(fb.ListNodesRequest(page_token=token, **fields))
            found.append([n.node_id for n in answer.nodes])
        else:
            answer = await rig.fleet.ListWorkloads(fb.ListWorkloadsRequest(page_token=token, **fields))
            found.append([w.workload_id for w in answer.workloads])
        token = answer.next_page_token
        if not token:
            return found


async def test_pages_cover_everything_once_in_order() -> None:
    """Seven nodes in pages of three; seven workloads too; the last page has no token."""
    async with front_on() as rig:
        for number in range(7):
            await rig.register(f"n{number}")
            await rig.apply(f"w{number}")
        expected = [["0", "1", "2"], ["3", "4", "5"], ["6"]]
        assert await pages(rig, "nodes", page_size=3) == [[f"n{i}" for i in page] for page in expected]
        assert await pages(rig, "workloads", page_size=3) == [[f"w{i}" for i in page] for page in expected]
        assert await pages(rig, "workloads", page_size=7) == [[f"w{i}" for i in range(7)]]


async def test_pages_go_on_where_they_were_when_the_fleet_changes() -> None:
    """What was deleted behind the token does not matter; what is new before it is not shown."""
    async with front_on() as rig:
        for number in range(4):
            await rig.register(f"n{number}")
        first = await rig.fleet.ListNodes(fb.ListNodesRequest(page_size=2))
        await rig.register("a0")
        second = await rig.fleet.ListNodes(fb.ListNodesRequest(page_size=2, page_token=first.next_page_token))
        assert [n.node_id for n in second.nodes] == ["n2", "n3"]
        assert not second.next_page_token


async def test_a_token_is_good_only_for_its_own_list() -> None:
    """Another filter, or another list: INVALID_ARGUMENT instead of a page of nonsense."""
    async with front_on() as rig:
        for number in range(3):
            await rig.register(f"n{number}")
        token = (await rig.fleet.ListNodes(fb.ListNodesRequest(page_size=1))).next_page_token
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "page_token"):
            await rig.fleet.ListNodes(fb.ListNodesRequest(page_token=token, status="Ready"))
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "page_token"):
            await rig.fleet.ListWorkloads(fb.ListWorkloadsRequest(page_token=token))


async def test_a_filtered_page_is_full_when_there_is_enough() -> None:
    """Pages are filled from behind what does not match."""
    async with front_on() as rig:
        for number in range(6):
            await rig.register(f"n{number}")
            if number % 2:
                await lose(rig, f"n{number}")
        assert await pages(rig, "nodes", page_size=2, status="ready") == [["n0", "n2"], ["n4"]]


async def test_F52_an_explanation_counts_every_node_once_and_names_the_nearest() -> None:
    """For a workload that waits: the filters that rejected, how many each, and what the nearest node lacks."""
    async with front_on() as rig:
        await rig.register("n1")
        await rig.register("n2")
        await lose(rig, "n2")
        spec = container()
        spec.resources.memory_mb = 100_000
        await rig.apply(spec=spec)
        found = await rig.fleet.ExplainWorkload(fb.ExplainWorkloadRequest(workload_id="web"))
        assert (found.status, found.assigned_node_id, found.nodes_total) == ("Pending", "", 2)
        assert sum(r.nodes for r in found.rejections) == 2
        assert found.nearest.node_id == "n1"
        assert "100000 MB" in found.nearest.missing
        assert found.summary


async def test_an_explanation_of_what_is_placed_says_where_and_why() -> None:
    """And of what is not there: NOT_FOUND."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        found = await rig.fleet.ExplainWorkload(fb.ExplainWorkloadRequest(workload_id="web"))
        assert found.assigned_node_id == "n1"
        assert found.summary.startswith("runs on n1: ")
        with refused(grpc.StatusCode.NOT_FOUND):
            await rig.fleet.ExplainWorkload(fb.ExplainWorkloadRequest(workload_id="ghost"))


async def test_a_list_that_is_too_large_says_how_to_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """RESOURCE_EXHAUSTED that names the paged call."""
    monkeypatch.setattr("scheduler.front.control.MAX_ANSWER_BYTES", 500)
    async with front_on() as rig:
        for number in range(10):
            await rig.apply(f"w{number}")
        with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "Fleet.ListWorkloads"):
            await list_workloads(rig)
