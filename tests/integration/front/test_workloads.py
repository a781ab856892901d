"""What people ask of workloads: rows F8 to F20 as far as the front answers them."""

from __future__ import annotations

import base64
import re
from typing import Any

import grpc
import pytest

from scheduler.domain.workload import Desired, Phase, Reapply, Retry, WorkloadSpec
from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, SPECS, STATUSES
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.workloads import finalize_delete
from tests.support.fronts import Heartbeat, Rig, container, front_on, refused, status


async def stored_spec(rig: Rig, workload_id: str = "web") -> WorkloadSpec:
    """Read a spec from etcd."""
    record = (await rig.parts.store.get(SPECS, workload_id)).record
    assert record
    return record


async def desire(rig: Rig, state: str, workload_id: str = "web") -> Any:
    """Apply without a spec."""
    request = pb.ApplyWorkloadRequest(workload_id=workload_id, desired_state=state)
    return await rig.control.ApplyWorkload(request)


async def delete(rig: Rig, workload_id: str = "web") -> Any:
    """Delete a workload."""
    return await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id=workload_id))


async def retry(rig: Rig, workload_id: str = "web") -> Any:
    """Retry a workload."""
    return await rig.control.RetryWorkload(pb.RetryWorkloadRequest(workload_id=workload_id))


async def test_F8_a_workload_is_placed_at_once_and_runs_when_its_node_says_so(etcd: EtcdApi) -> None:
    """Scheduled in the answer, with an assignment that says why; its shard is woken; then Running."""
    async with front_on(etcd) as rig:
        await rig.register()
        answer = await rig.apply()
        assert (answer.success, answer.status, answer.assigned_node_id) == (True, Phase.SCHEDULED, "n1")
        assert rig.woken == [("web", "n1")]
        assignment = (await rig.parts.store.get(ASSIGNMENTS, "web")).record
        assert assignment
        assert (assignment.node_id, bool(assignment.reason)) == ("n1", True)
        ledger = (await rig.parts.store.get(LEDGERS, "n1")).record
        assert ledger
        assert ledger.commitments["web"].cpu_millicores == 100
        report = status("web", "Running", epoch=assignment.epoch, revision=answer.revision_id)
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[report]))
        await rig.settled()
        assert (await rig.workload()).status == Phase.RUNNING


async def test_F8_the_caller_sees_what_it_has_written() -> None:
    """A read right after an apply, from the cache, shows the workload with its node."""
    async with front_on() as rig:
        await rig.register()
        for number in range(20):
            answer = await rig.apply(f"w{number}")
            view = await rig.workload(f"w{number}")
            assert (view.assigned_node_id, view.revision_id) == (answer.assigned_node_id, answer.revision_id)


async def test_F9_an_apply_without_a_spec_changes_only_what_is_desired(etcd: EtcdApi) -> None:
    """Blank means Running; the revision stays, the generation grows; an unknown id is no success."""
    async with front_on(etcd) as rig:
        await rig.register()
        revision = (await rig.apply()).revision_id
        assert (await desire(rig, "stopped")).success
        spec = await stored_spec(rig)
        assert (spec.desired_state, spec.revision_id, spec.generation) == (Desired.STOPPED, revision, 2)
        assert (await desire(rig, "")).success
        assert (await stored_spec(rig)).desired_state == Desired.RUNNING
        answer = await desire(rig, "", "ghost")
        assert not answer.success
        assert "ghost" in answer.error_message
        assert answer.failure_reason == pb.RUNTIME_ERROR


async def test_F9_nothing_brings_a_deleted_workload_back() -> None:
    """Neither a desired state nor a new spec is accepted while it is being deleted; the answer says so."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        await delete(rig)
        for answer in (await desire(rig, "Running"), await rig.apply(spec=container(image="other"))):
            assert not answer.success
            assert "being deleted" in answer.error_message
        assert (await stored_spec(rig)).desired_state == Desired.DELETED


async def test_F9_desired_deleted_is_a_delete() -> None:
    """Clients that delete by applying are understood."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        assert (await desire(rig, "Deleted")).success
        assert (await rig.workload()).status == Phase.DELETING
        assert not (await desire(rig, "Deleted", "ghost")).success


async def test_F11_without_room_the_workload_is_accepted_and_says_why_it_waits(etcd: EtcdApi) -> None:
    """Success, Pending, no node, and a reason in figures, in the answer and in the views."""
    async with front_on(etcd) as rig:
        await rig.register()
        spec = container()
        spec.resources.cpu_millicores = 64_000
        answer = await rig.apply(spec=spec)
        assert (answer.success, answer.status, answer.assigned_node_id) == (True, Phase.PENDING, "")
        assert not answer.error_message
        assert "n1" in answer.pending_reason
        view = await rig.workload()
        assert (view.status, view.pending_reason) == (Phase.PENDING, answer.pending_reason)


async def test_F11_a_workload_that_fits_at_last_waits_for_nothing_any_more(etcd: EtcdApi) -> None:
    """The answer to the apply that places it does not repeat why the earlier one did not."""
    async with front_on(etcd) as rig:
        await rig.register()
        spec = container()
        spec.resources.cpu_millicores = 64_000
        assert (await rig.apply(spec=spec)).pending_reason
        answer = await rig.apply()
        assert (answer.status, answer.assigned_node_id, answer.pending_reason) == (Phase.SCHEDULED, "n1", "")


async def test_F11_without_any_node_too() -> None:
    """The first workload of a cluster without nodes waits."""
    async with front_on() as rig:
        answer = await rig.apply()
        assert answer.success
        assert answer.pending_reason == "no nodes available"


async def test_F13_a_new_spec_has_a_new_revision_and_the_same_spec_has_not(etcd: EtcdApi) -> None:
    """24 hex characters; Updating; whatever revision_id the caller sends; identical writes nothing."""
    async with front_on(etcd) as rig:
        await rig.register()
        first = await rig.apply(revision_id="rev-1")
        assert re.fullmatch(r"[0-9a-f]{24}", first.revision_id)
        before = await rig.stored()
        assert (await rig.apply(revision_id="rev-2")).revision_id == first.revision_id
        assert await rig.stored() == before
        second = await rig.apply(spec=container(image="nginx:2"), revision_id="rev-1")
        assert second.revision_id != first.revision_id
        assert (second.status, second.assigned_node_id) == (Phase.UPDATING, "n1")
        assert rig.woken[-1] == ("web", "n1")


async def test_F14_the_same_spec_has_the_same_revision_whatever_its_order() -> None:
    """Maps are unordered on the wire: their order does not count, nor does the time."""
    async with front_on() as one, front_on() as two:
        env = {f"K{i}": str(i) for i in range(50)}
        backwards = dict(reversed(env.items()))
        first = await one.apply(spec=container(env=env))
        second = await two.apply(spec=container(env=backwards))
        assert first.revision_id == second.revision_id


async def test_F15_deleting_is_idempotent_and_the_workload_vanishes(etcd: EtcdApi) -> None:
    """Deleting at once, again, and after it is gone all succeed; then GetWorkload says NOT_FOUND."""
    async with front_on(etcd) as rig:
        await rig.register()
        await rig.apply()
        rig.woken.clear()
        assert (await delete(rig)).success
        assert rig.woken == [("web", "n1")]
        assert (await rig.workload()).status == Phase.DELETING
        before = await rig.stored()
        assert (await delete(rig)).success
        assert await rig.stored() == before
        await finalize_delete(rig.parts.store, "web", tombstone=False, now=rig.parts.now())
        await rig.settled()
        with refused(grpc.StatusCode.NOT_FOUND, "web"):
            await rig.workload()
        assert (await delete(rig)).success


async def test_F15_deleting_what_never_was_succeeds_and_stores_nothing() -> None:
    """The caller wants it gone, and it is."""
    async with front_on() as rig:
        before = await rig.stored()
        answer = await delete(rig, "ghost")
        assert (answer.success, answer.error_message) == (True, "")
        assert await rig.stored() == before


async def test_F17_a_workload_without_a_node_is_marked_and_its_own_shard_woken() -> None:
    """Nobody else can be asked."""
    async with front_on() as rig:
        await rig.apply()
        rig.woken.clear()
        await delete(rig)
        assert rig.woken == [("web", "")]


async def test_F18_a_retry_clears_what_went_wrong_and_wakes_the_shard() -> None:
    """Attempts, guard and failure reason are gone; the answer says accepted."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        record = (await rig.parts.store.get(STATUSES, "web")).record
        assert record
        failed = record.replace(
            status=Phase.FAILED,
            retry=Retry(attempts=5),
            reapply=Reapply(attempts=7),
            status_info=record.status_info.replace(failure_reason="it burnt", actual_state="Failed"),
            metadata={"retry_terminal": "true", "failure_reason": "INVALID_IMAGE"},
        )
        await rig.put(STATUSES, "web", failed)
        rig.woken.clear()
        answer = await retry(rig)
        assert (answer.accepted, answer.reason) == (True, "retry triggered")
        after = (await rig.parts.store.get(STATUSES, "web")).record
        assert after
        assert (after.retry.attempts, after.reapply.attempts, after.metadata) == (0, 0, {})
        assert not (await rig.workload()).failure_reason
        assert rig.woken == [("web", "n1")]


async def test_F18_a_retry_that_is_not_accepted_says_why() -> None:
    """There is no such workload; it is being deleted."""
    async with front_on() as rig:
        answer = await retry(rig, "ghost")
        assert not answer.accepted
        assert "ghost" in answer.reason
        await rig.apply()
        await delete(rig)
        answer = await retry(rig)
        assert not answer.accepted
        assert "being deleted" in answer.reason


async def test_F19_a_workload_to_be_stopped_is_stored_and_not_placed() -> None:
    """Desired Stopped needs no node as long as it has none."""
    async with front_on() as rig:
        await rig.register()
        answer = await rig.apply(desired_state="Stopped")
        assert (answer.success, answer.assigned_node_id) == (True, "")
        assert (await stored_spec(rig)).desired_state == Desired.STOPPED
        assert (await desire(rig, "Running")).assigned_node_id == "n1"


@pytest.mark.parametrize("call", ["apply", "delete", "retry", "desire"])
async def test_writes_are_refused_while_etcd_is_away(call: str) -> None:
    """UNAVAILABLE, so that the caller tries again; nothing is half done."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE
        with refused(grpc.StatusCode.UNAVAILABLE):
            await {"apply": rig.apply, "delete": lambda: delete(rig), "retry": lambda: retry(rig),
                   "desire": lambda: desire(rig, "Stopped")}[call]()  # fmt: skip
        etcd.mishap = lambda _call: None
        assert "/workloads-spec/web" not in await rig.stored()


async def test_a_workload_that_is_stored_but_cannot_be_placed_just_now_is_a_success() -> None:
    """Etcd goes away between the two: the answer says stored and pending, for the next cycle places it."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE if "/workloads-spec/web" in etcd._versions else None
        answer = await rig.apply()
        etcd.mishap = lambda _call: None
        assert (answer.success, answer.assigned_node_id) == (True, "")
        assert answer.pending_reason.startswith("not placed yet")
        assert rig.woken == [("web", "")]


async def test_F85_an_embedded_vm_wins_and_leaves_the_metadata() -> None:
    """The figures of persys.vm_spec_b64 are stored as the VM; the key itself is not."""
    async with front_on() as rig:
        packed = base64.b64encode(b'{"vcpus": 2, "memory_mb": 512, "disks": [{}, {"device": "vda"}, {}]}').decode()
        spec = pb.WorkloadSpec(type="vm", vm=pb.VMSpec(vcpus=9), metadata={"persys.vm_spec_b64": packed, "k": "v"})
        assert (await rig.apply(spec=spec)).success
        stored = await stored_spec(rig)
        assert stored.vm
        assert (stored.vm.vcpus, stored.vm.memory_mb) == (2, 512)
        assert [disk.device for disk in stored.vm.disks] == ["vdb", "vda", "vdc"]
        assert stored.metadata == {"k": "v"}
