"""SubmitAutomationSuggestion over gRPC: four actions, each carried out once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from scheduler.domain.workload import Desired, Retry, WorkloadSpec
from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import SPECS, STATUSES, SUGGESTIONS
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.fronts import Rig, front_on, refused

SET = pb.AUTOMATION_ACTION_SET_DESIRED_STATE
RETRY = pb.AUTOMATION_ACTION_RETRY_WORKLOAD
DELETE = pb.AUTOMATION_ACTION_DELETE_WORKLOAD
SCALE = pb.AUTOMATION_ACTION_SCALE_REPLICAS


async def suggest(
    rig: Rig, action: int, *, ago: float | None = 0.0, **fields: Any
) -> pb.SubmitAutomationSuggestionResponse:
    """Suggest something of "web", so many seconds ago; None: without a time."""
    given = {"target_workload": "web", "policy_id": "p-1", "policy_name": "night", "reason": "load", **fields}
    suggestion = pb.AutomationSuggestion(action_type=action, **given)  # type: ignore[arg-type]
    if ago is not None:
        suggestion.suggested_at.FromDatetime(datetime.now(UTC) - timedelta(seconds=ago))
    request = pb.SubmitAutomationSuggestionRequest(suggestion=suggestion)
    answer: pb.SubmitAutomationSuggestionResponse = await rig.control.SubmitAutomationSuggestion(request)
    assert answer.decision == ("accepted" if answer.accepted else "rejected")
    assert answer.reason
    assert answer.decided_at.seconds
    return answer


async def web(rig: Rig) -> WorkloadSpec:
    """Read the spec of "web" from etcd."""
    record = (await rig.parts.store.get(SPECS, "web")).record
    assert record
    return record


@pytest.mark.parametrize(
    ("state", "stored"), [("stop", "Stopped"), ("Stopped", "Stopped"), ("deleted", "Deleted"), ("", "Running")]
)
async def test_F87_a_desired_state_is_set(etcd: EtcdApi, state: str, stored: str) -> None:
    """In the reference system's words; whoever drives the workload is woken."""
    async with front_on(etcd) as rig:
        await rig.apply()
        rig.woken.clear()
        answer = await suggest(rig, SET, desired_state=state)
        assert (answer.accepted, answer.applied_action) == (True, "set_desired_state")
        assert (await web(rig)).desired_state == stored
        assert ("web", "") in rig.woken


async def test_F87_a_workload_is_retried_and_deleted(etcd: EtcdApi) -> None:
    """As by the calls of these names."""
    async with front_on(etcd) as rig:
        await rig.apply()
        status = (await rig.parts.store.get(STATUSES, "web")).record
        assert status
        await rig.put(STATUSES, "web", status.replace(retry=Retry(attempts=3)))
        answer = await suggest(rig, RETRY)
        assert (answer.accepted, answer.applied_action) == (True, "retry_workload")
        assert (await rig.workload()).retry_attempts == 0
        answer = await suggest(rig, DELETE)
        assert (answer.accepted, answer.applied_action) == (True, "delete_workload")
        assert (await web(rig)).desired_state == Desired.DELETED


async def test_F87_copies_are_scaled_to_a_number_and_by_a_difference(etcd: EtcdApi) -> None:
    """The copies are there at once."""
    async with front_on(etcd) as rig:
        await rig.apply()
        for fields, replicas in (
            ({"desired_replicas": 4}, 4),
            ({"replica_delta": -2}, 2),
            ({"replica_delta": 1, "desired_replicas": 3}, 3),
        ):
            answer = await suggest(rig, SCALE, **fields)
            assert (answer.accepted, answer.applied_action) == (True, "scale_replicas")
            assert (await rig.workload()).replicas == replicas
        assert (await rig.workload("web.3")).replica_of == "web"


@pytest.mark.parametrize(
    ("action", "fields", "words"),
    [
        (SET, {"desired_state": "paused"}, "Running, Stopped or Deleted"),
        (SET, {"target_workload": ""}, "target_workload"),
        (SET, {"target_workload": "a/b"}, "target_workload"),
        (SET, {"target_workload": "api"}, '"api"'),
        (RETRY, {"target_workload": "api"}, '"api"'),
        (DELETE, {"target_workload": "api"}, '"api"'),
        (SCALE, {"target_workload": "api", "desired_replicas": 2}, '"api"'),
        (SCALE, {}, "must be given"),
        (SCALE, {"replica_delta": -1}, "1 to 1000"),
        (SCALE, {"desired_replicas": 1001}, "1 to 1000"),
        (SCALE, {"desired_replicas": 500}, "100 may be at once"),
        (SCALE, {"desired_replicas": 3}, '"web.3"'),
        (0, {}, "action_type"),
        (99, {}, "action_type"),
        (SET, {"ago": 301.0}, "counts for 300 s"),
        (SET, {"ago": -60.0}, "in the future"),
    ],
)
async def test_9_24_what_cannot_be_done_is_rejected_with_a_reason(
    action: int, fields: dict[str, Any], words: str
) -> None:
    """And changes nothing but that the decision is kept."""
    async with front_on() as rig:
        await rig.apply()
        await rig.apply("web.3")
        before = await rig.stored()
        answer = await suggest(rig, action, suggestion_id="s-1", **fields)
        assert (answer.accepted, answer.applied_action) == (False, "")
        assert words in answer.reason
        after = await rig.stored()
        assert after.pop("/suggestions/s-1")
        assert after == before
        again = await suggest(rig, RETRY, suggestion_id="s-1")
        assert again == answer


async def test_F87_a_request_without_a_suggestion_is_an_invalid_argument() -> None:
    """As there; also one whose fields are too long."""
    async with front_on() as rig:
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "suggestion"):
            await rig.control.SubmitAutomationSuggestion(pb.SubmitAutomationSuggestionRequest())
        for name in ("suggestion_id", "policy_id", "desired_state"):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, f"suggestion.{name}"):
                await suggest(rig, SET, ago=None, **{name: "x" * 513})
        assert not any("suggestions" in key for key in await rig.stored())


async def test_F87_a_suggestion_without_a_time_is_taken_where_the_setting_allows_it() -> None:
    """It does by default."""
    for allowed in (True, False):
        async with front_on(suggestion_undated=allowed) as rig:
            await rig.apply()
            assert (await suggest(rig, SET, ago=None, desired_state="stop")).accepted is allowed
            assert ((await web(rig)).desired_state == "Stopped") is allowed


async def test_F87_the_same_suggestion_is_carried_out_once_at_whichever_front(etcd: EtcdApi) -> None:
    """The first decision is told again, also by another front and after a restart, and when it has become old."""
    async with front_on(etcd) as rig:
        await rig.apply()
        first = await suggest(rig, SCALE, suggestion_id="s/1", replica_delta=1)
        assert await suggest(rig, SCALE, suggestion_id="s/1", replica_delta=1) == first
        assert await suggest(rig, SCALE, suggestion_id="s/1", replica_delta=1, ago=9999.0) == first
    async with front_on(etcd, front_id="front-2") as rig:
        assert await suggest(rig, SCALE, suggestion_id="s/1", replica_delta=1) == first
        assert (await web(rig)).replicas == 2
        assert (await suggest(rig, SCALE, suggestion_id="s/2", replica_delta=1)).accepted
        assert (await web(rig)).replicas == 3


async def test_F87_two_suggestions_at_once_both_count_and_one_twice_does_not(etcd: EtcdApi) -> None:
    """Ten callers at two fronts: five ids, each sent twice."""
    async with front_on(etcd) as one, front_on(etcd, front_id="front-2") as two:
        await one.apply()
        answers = await asyncio.gather(
            *(
                suggest(rig, SCALE, suggestion_id=f"s-{index}", replica_delta=1)
                for index in range(5)
                for rig in (one, two)
            )
        )
        assert all(answer.accepted for answer in answers)
        assert (await web(one)).replicas == 6


async def test_F87_without_an_id_every_suggestion_counts() -> None:
    """There is nothing to tell them apart by."""
    async with front_on() as rig:
        await rig.apply()
        for replicas in (2, 3):
            assert (await suggest(rig, SCALE, replica_delta=1)).accepted
            assert (await web(rig)).replicas == replicas
        assert not any("suggestions" in key for key in await rig.stored())


async def test_F87_a_lost_answer_neither_loses_nor_doubles_the_action() -> None:
    """The action and the decision are one transaction."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.apply()
        etcd.mishap = lambda call: Mishap.ANSWER_LOST if call == "txn" else None
        answer = await suggest(rig, SCALE, suggestion_id="s-1", replica_delta=1)
        etcd.mishap = lambda call: Mishap.UNAVAILABLE if call == "txn" else None
        with refused(grpc.StatusCode.UNAVAILABLE):
            await suggest(rig, SCALE, suggestion_id="s-2", replica_delta=1)
        etcd.mishap = lambda _call: None
        assert answer.accepted
        assert (await web(rig)).replicas == 2
        assert await suggest(rig, SCALE, suggestion_id="s-1", replica_delta=1) == answer
        assert (await suggest(rig, SCALE, suggestion_id="s-2", replica_delta=1)).accepted
        assert (await web(rig)).replicas == 3


async def test_F87_decisions_end_with_their_lease(etcd: EtcdApi) -> None:
    """So there are never more than a bounded time's worth; all share a lease."""
    async with front_on(etcd, suggestion_ttl_seconds=400.0) as rig:
        await rig.apply()
        for index in range(3):
            await suggest(rig, RETRY, suggestion_id=f"s-{index}")
        found, _ = await etcd.scan("/suggestions/")
        leases = {kv.lease for kv in found}
        assert len(found) == 3
        assert len(leases) == 1
        lease = leases.pop()
        assert lease
        assert 400 < await etcd.keepalive(lease) <= 450
        await etcd.revoke(lease)
        assert (await rig.parts.store.get(SUGGESTIONS, "s-0")).record is None
        # The front does not know yet that its lease is gone.
        assert (await suggest(rig, RETRY, suggestion_id="s-0")).accepted


async def test_F87_a_copy_is_not_changed_by_a_suggestion() -> None:
    """The reason names its workload."""
    async with front_on() as rig:
        await rig.apply()
        await suggest(rig, SCALE, desired_replicas=2)
        for action in (SET, DELETE, SCALE):
            answer = await suggest(rig, action, target_workload="web.2", desired_replicas=2)
            assert not answer.accepted
            assert '"web.2" is a copy of "web"' in answer.reason
        assert (await suggest(rig, RETRY, target_workload="web.2")).accepted


async def test_F87_what_is_so_already_is_accepted_and_writes_nothing_of_the_workload() -> None:
    """The reason says so."""
    async with front_on() as rig:
        await rig.apply()
        before = await rig.stored()
        answer = await suggest(rig, SET, desired_state="Running")
        assert (answer.accepted, answer.reason) == (True, "it is so already")
        assert await rig.stored() == before
