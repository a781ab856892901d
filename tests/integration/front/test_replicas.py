"""Copies as the front takes, shows and scales them."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from scheduler.domain.workload import Desired, StatusInfo
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2
from scheduler.store.keys import SPECS, STATUSES
from scheduler.store.kv import EtcdApi
from scheduler.store.store import Store
from tests.support.fronts import Rig, container, front_on, refused


async def scale(
    rig: Rig, replicas: int, workload_id: str = "web", **fields: Any
) -> fleetbeat_pb2.ScaleWorkloadResponse:
    """Scale a workload."""
    request = fleetbeat_pb2.ScaleWorkloadRequest(workload_id=workload_id, replicas=replicas, **fields)
    answer: fleetbeat_pb2.ScaleWorkloadResponse = await rig.fleet.ScaleWorkload(request)
    return answer


def with_replicas(replicas: int, **metadata: str) -> pb.WorkloadSpec:
    """Describe a container of which there are to be so many."""
    spec = container()
    spec.replicas = replicas
    spec.metadata.update(metadata)
    return spec


async def copies(rig: Rig) -> dict[str, str]:
    """Return the desired states of all workloads that etcd holds."""
    return {
        key.removeprefix("/workloads-spec/"): SPECS.model.from_json(value).desired_state
        for key, value in (await rig.stored()).items()
        if key.startswith("/workloads-spec/")
    }


async def test_F87_an_apply_writes_the_copies_at_once_and_wakes_who_drives_them(etcd: EtcdApi) -> None:
    """The rest of a large number is left to the loop."""
    async with front_on(etcd) as rig:
        assert (await rig.apply(spec=with_replicas(3))).success
        assert sorted(await copies(rig)) == ["web", "web.2", "web.3"]
        assert {w for w, _ in rig.woken} == {"web", "web.2", "web.3"}
        view = await rig.workload()
        assert (view.replicas, view.replicas_present, view.replicas_running, view.replica_of) == (3, 3, 0, "")
        copy = await rig.workload("web.2")
        assert (copy.replicas, copy.replica_of) == (1, "web")
        listed = await rig.control.ListWorkloads(pb.ListWorkloadsRequest())
        assert [w.workload_id for w in listed.workloads] == ["web", "web.2", "web.3"]
        assert (await rig.apply("big", spec=with_replicas(1000))).success
        assert (await rig.workload("big")).replicas == 1000


async def test_F88_the_summary_counts_copies_as_workloads(etcd: EtcdApi) -> None:
    """Each of them by its own status."""
    async with front_on(etcd) as rig:
        await rig.register()
        await rig.apply(spec=with_replicas(4))
        summary = await rig.control.GetClusterSummary(pb.GetClusterSummaryRequest())
        assert summary.total_workloads == 4
        assert sum(summary.workloads_by_status.values()) == 4


async def test_F87_a_workload_is_scaled(etcd: EtcdApi) -> None:
    """Up and down; the answer tells what it was."""
    async with front_on(etcd) as rig:
        await rig.apply()
        first = await scale(rig, 4)
        assert (first.previous_replicas, first.replicas, first.generation) == (1, 4, 2)
        assert sorted(await copies(rig)) == ["web", "web.2", "web.3", "web.4"]
        rig.woken.clear()
        assert (await scale(rig, 2)).previous_replicas == 4
        gone = {w for w, desired in (await copies(rig)).items() if desired == Desired.DELETED}
        assert gone == {"web.3", "web.4"}
        assert gone <= {w for w, _ in rig.woken}
        view = await rig.workload()
        assert (view.replicas, view.replicas_present) == (2, 4)


async def test_F87_a_scale_can_be_checked_and_bound_to_a_generation(etcd: EtcdApi) -> None:
    """Nothing is stored by a check, nor by a call for another generation."""
    async with front_on(etcd) as rig:
        await rig.apply()
        before = await rig.stored()
        checked = await scale(rig, 5, validate_only=True, expected_generation=1)
        assert (checked.previous_replicas, checked.replicas) == (1, 5)
        with refused(grpc.StatusCode.ABORTED, "generation 1, not at 9"):
            await scale(rig, 5, expected_generation=9)
        assert await rig.stored() == before


@pytest.mark.parametrize("replicas", [0, -1, 1001])
async def test_F87_a_wrong_number_is_refused(replicas: int) -> None:
    """By the name of the field, and nothing is stored."""
    async with front_on() as rig:
        await rig.apply()
        before = await rig.stored()
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "replicas", "1 to 1000"):
            await scale(rig, replicas)
        with refused(grpc.StatusCode.NOT_FOUND, '"api"'):
            await scale(rig, 2, "api")
        if replicas:
            answer = await rig.apply(spec=with_replicas(replicas))
            assert (answer.success, answer.failure_reason) == (False, pb.INVALID_SPEC)
            assert "spec.replicas" in answer.error_message
        assert await rig.stored() == before


async def test_F87_a_copy_cannot_be_changed_by_itself() -> None:
    """The error names its workload; a retry of the copy alone is fine."""
    async with front_on() as rig:
        await rig.apply(spec=with_replicas(2))
        before = await rig.stored()
        words = '"web.2" is a copy of "web"'
        applied = await rig.apply("web.2")
        assert (applied.success, words in applied.error_message) == (False, True)
        stopped = await rig.control.ApplyWorkload(pb.ApplyWorkloadRequest(workload_id="web.2", desired_state="Stopped"))
        assert (stopped.success, words in stopped.error_message) == (False, True)
        deleted = await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="web.2"))
        assert (deleted.success, words in deleted.error_message) == (False, True)
        with refused(grpc.StatusCode.FAILED_PRECONDITION, words):
            await scale(rig, 2, "web.2")
        assert await rig.stored() == before
        assert (await rig.control.RetryWorkload(pb.RetryWorkloadRequest(workload_id="web.2"))).accepted


async def test_F87_an_id_that_is_taken_is_told_and_nothing_is_stored() -> None:
    """Both ways round."""
    async with front_on() as rig:
        await rig.apply("web.3")
        before = await rig.stored()
        answer = await rig.apply(spec=with_replicas(3))
        assert not answer.success
        assert '"web"' in answer.error_message
        assert '"web.3"' in answer.error_message
        assert await rig.stored() == before
        await rig.apply(spec=with_replicas(2))
        taken = await rig.apply("web.2")
        assert not taken.success


async def test_F87_deleting_a_workload_marks_its_copies_at_once() -> None:
    """Nobody has to wait for a cycle."""
    async with front_on() as rig:
        await rig.apply(spec=with_replicas(3))
        assert (await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="web"))).success
        assert set((await copies(rig)).values()) == {Desired.DELETED}


async def test_F87_the_policy_says_the_same_as_the_field(etcd: EtcdApi) -> None:
    """For gateways that know no field; it is kept in one place. Two numbers that differ are refused."""
    async with front_on(etcd) as rig:
        assert (await rig.apply(spec=with_replicas(0, **{"fleetbeat.replicas": "2"}))).success
        stored = (await Store(rig.parts.etcd).get(SPECS, "web")).record
        assert stored
        assert (stored.replicas, stored.metadata) == (2, {})
        answer = await rig.apply(spec=with_replicas(3, **{"fleetbeat.replicas": "2"}))
        assert (answer.success, answer.failure_reason) == (False, pb.INVALID_SPEC)
        again = await rig.apply(spec=with_replicas(0))
        assert again.success
        assert (await rig.workload()).replicas == 2


async def test_F87_a_view_says_how_many_copies_have_the_new_version() -> None:
    """Copies that run wait for their turn: the workload itself is not reported yet."""
    async with front_on() as rig:
        await rig.register()
        answer = await rig.apply(spec=with_replicas(3))
        stored = Store(rig.parts.etcd)
        for workload_id in ("web", "web.2", "web.3"):
            record = (await stored.get(SPECS, workload_id)).record
            status = (await stored.get(STATUSES, workload_id)).record
            assert record
            assert status
            info = StatusInfo(actual_state="Running")
            there = status.replace(node_id="n1", observed_revision=record.revision_id, status_info=info)
            await rig.put(STATUSES, workload_id, there)
        new = with_replicas(0)
        new.container.image = "nginx:2"
        assert (await rig.apply(spec=new)).revision_id != answer.revision_id
        assert (await rig.workload()).replicas_updated == 1
