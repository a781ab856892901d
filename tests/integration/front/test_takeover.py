"""What users see of workloads of the reference scheduler's, and what they may do with them, before any cycle."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.domain.node import Node
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fleet_pb
from scheduler.store.keys import LEDGERS, NODES
from scheduler.store.kv import EtcdApi, Put
from tests.integration.front.test_automation import suggest
from tests.support.fronts import Rig, container, front_on
from tests.support.legacy import REVISION, spec_json, status_json, unassigned, whole_json

FORMS = ["whole", "two keys"]
CONTENT = pb.WorkloadSpec(
    type="container",
    resources=pb.ResourceRequirements(cpu_millicores=500, memory_mb=256, disk_gb=1),
    metadata={"allow_move": "true", "persys.scheduling.persistence_class": "ephemeral"},
    container=pb.ContainerSpec(
        image="nginx:1",
        env={"MODE": "live"},
        ports=[pb.Port(host_port=8080, container_port=80)],
        restart_policy="always",
    ),
)


async def store(rig: Rig, form: str = "whole", workload_id: str = "web", **fields: Any) -> None:
    """Store a workload as the reference scheduler did, on a node that is there."""
    puts = [Put(f"/workloads/{workload_id}", whole_json(workload_id, **fields))]
    if form == "two keys":
        puts = [
            Put(f"/workloads-spec/{workload_id}", spec_json(workload_id, **fields)),
            Put(f"/workloads-status/{workload_id}", status_json(workload_id, **fields)),
        ]
    await rig.put(NODES, "n-1", Node(node_id="n-1", agent_endpoint="h:1", total_cpu=4, total_memory=8192))
    result = await rig.parts.etcd.txn((), puts)
    await rig.parts.cache.wait_revision(result.revision, 5)


async def listed(rig: Rig, **filters: str) -> list[str]:
    """List workloads."""
    answer = await rig.control.ListWorkloads(pb.ListWorkloadsRequest(**filters))
    return [view.workload_id for view in answer.workloads]


@pytest.mark.parametrize("form", FORMS)
async def test_F86_it_is_read_listed_and_counted_like_ours(etcd: EtcdApi, form: str) -> None:
    """By id, by node, by status, and in the summary; nothing is written by that."""
    async with front_on(etcd) as rig:
        await store(rig, form)
        await store(rig, form, "idle", **unassigned())
        before = await rig.stored()
        view = await rig.workload()
        assert (view.status, view.assigned_node_id, view.revision_id) == ("Running", "n-1", REVISION)
        assert await listed(rig) == ["idle", "web"]
        pages = await rig.fleet.ListWorkloads(fleet_pb.ListWorkloadsRequest())
        assert [view.workload_id for view in pages.workloads] == ["idle", "web"]
        assert await listed(rig, node_id="n-1") == ["web"]
        assert await listed(rig, node_id="n-2") == []
        assert await listed(rig, status="running") == ["web"]
        assert await listed(rig, status="pending") == ["idle"]
        summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
        assert (summary.total_workloads, summary.running_workloads, summary.pending_workloads) == (2, 1, 1)
        assert dict(summary.workloads_by_status) == {"Running": 1, "Pending": 1}
        assert await rig.stored() == before


@pytest.mark.parametrize("form", FORMS)
async def test_F86_the_same_content_applied_changes_nothing_that_runs(etcd: EtcdApi, form: str) -> None:
    """The revision stays, so no agent has anything to do."""
    async with front_on(etcd) as rig:
        await store(rig, form)
        answer = await rig.apply(spec=CONTENT)
        assert (answer.success, answer.revision_id, answer.assigned_node_id) == (True, REVISION, "n-1")
        assert "/workloads/web" not in await rig.stored()
        held = (await rig.parts.store.get(LEDGERS, "n-1")).record
        assert held
        assert set(held.commitments) == {"web"}
        assert await listed(rig) == ["web"]


@pytest.mark.parametrize("form", FORMS)
async def test_F86_other_content_is_an_update(form: str) -> None:
    """A new revision on the same node."""
    async with front_on() as rig:
        await store(rig, form)
        answer = await rig.apply(spec=container())
        assert answer.success
        assert answer.revision_id != REVISION
        assert answer.assigned_node_id == "n-1"


@pytest.mark.parametrize("form", FORMS)
async def test_F86_it_is_deleted_and_retried_like_ours(etcd: EtcdApi, form: str) -> None:
    """And counted as what it is meanwhile."""
    async with front_on(etcd) as rig:
        await store(rig, form)
        assert (await rig.control.RetryWorkload(pb.RetryWorkloadRequest(workload_id="web"))).accepted
        assert (await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="web"))).success
        assert (await rig.workload()).status == "Deleting"
        assert ("web", "n-1") in rig.woken
        summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
        assert (summary.total_workloads, summary.deleted_workloads) == (1, 1)


async def test_F86_a_suggestion_takes_it_over_first() -> None:
    """One for a record that cannot be read is rejected, with key and field."""
    async with front_on() as rig:
        await store(rig)
        await store(rig, workload_id="bad", type="lambda")
        assert (await suggest(rig, pb.AUTOMATION_ACTION_DELETE_WORKLOAD)).accepted
        assert (await rig.workload()).status == "Deleting"
        answer = await suggest(rig, pb.AUTOMATION_ACTION_DELETE_WORKLOAD, target_workload="bad")
        assert not answer.accepted
        assert "/workloads/bad" in answer.reason


async def test_F86_under_the_id_of_a_record_that_cannot_be_read_nothing_is_created() -> None:
    """A copy that only it knows of may run; the answer names key and field, and other ids are not concerned."""
    async with front_on() as rig:
        await store(rig, type="lambda")
        answer = await rig.apply()
        assert not answer.success
        assert "/workloads/web" in answer.error_message
        assert "type" in answer.error_message
        gone = await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="web"))
        assert not gone.success
        assert (await rig.apply("other")).success
        assert await listed(rig) == ["other"]


async def test_F86_the_index_follows_each_turn_of_a_whole_record() -> None:
    """Changed, gone bad, good again, gone: it is listed and counted once, or not at all."""
    async with front_on() as rig:
        for fields, shown in (({}, 1), ({"type": "lambda"}, 0), (unassigned(), 1), ({"desiredState": "Stopped"}, 1)):
            await store(rig, **fields)
            summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
            assert summary.total_workloads == sum(summary.workloads_by_status.values()) == shown
