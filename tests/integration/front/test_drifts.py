"""Removing one copy that nobody knows, on the word of an operator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from scheduler.domain.drift import DriftRecord
from scheduler.domain.errors import AgentUnreachable
from scheduler.domain.shard import ClusterRecord
from scheduler.front.parts import utc_now
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.keys import CLUSTER, CLUSTER_ID, DRIFTS
from scheduler.store.kv import EtcdApi
from tests.support.fronts import Rig, front_on, refused

FINDING = "n1/stranger/orphan_on_agent"


@pytest.fixture
async def rig(etcd: EtcdApi) -> AsyncIterator[Rig]:
    """A front of a cluster with one node, on which an unknown copy was found."""
    async with front_on(etcd) as made:
        await made.put(CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="test"))
        await made.register()
        await made.put(DRIFTS, FINDING, finding())
        yield made


def finding(**fields: Any) -> DriftRecord:
    """A finding of an unknown copy of epoch 3."""
    base: dict[str, Any] = {
        "node_id": "n1", "workload_id": "stranger", "drift_type": "orphan_on_agent", "detected_at": utc_now(),
        "scheduler_status": "unknown", "agent_status": "Running", "action": "operator_investigation", "epoch": 3,
    }  # fmt: skip
    return DriftRecord(**{**base, **fields})


async def delete(rig: Rig, node_id: str = "n1", workload_id: str = "stranger", **fields: Any) -> pb.Drift:
    """Ask for it."""
    request = pb.DeleteUnknownRequest(node_id=node_id, workload_id=workload_id, **fields)
    found: pb.Drift = (await rig.fleet.DeleteUnknown(request)).drift
    return found


async def test_F36_F43_an_operator_removes_one_unknown_copy(rig: Rig) -> None:
    """The agent confirms it, for the epoch that was found; the finding goes; an event says why."""
    told: list[dict[str, Any]] = []
    rig.parts.events.emit = lambda _kind, **about: told.append(about)  # type: ignore[method-assign]
    assert (await delete(rig, reason="ticket 12")).workload_id == "stranger"
    assert rig.agents.deleted == [("n1", "stranger", 3)]
    assert (await rig.parts.store.get(DRIFTS, FINDING)).record is None
    ((reason, action),) = [(about["reason"], about["details"]["action"]) for about in told]
    assert (reason, action) == ("ticket 12", "delete_by_operator")
    with refused(grpc.StatusCode.NOT_FOUND, "stranger"):
        await delete(rig)


async def test_F36_what_has_a_record_or_is_of_another_cluster_is_not_removed(rig: Rig) -> None:
    """Each with its reason, and no agent is called."""
    with refused(grpc.StatusCode.NOT_FOUND, "n9"):
        await delete(rig, "n9")
    with refused(grpc.StatusCode.NOT_FOUND, "web"):
        await delete(rig, workload_id="web")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "node_id"):
        await delete(rig, "a/b")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "workload_id"):
        await delete(rig, workload_id="a/b")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "reason"):
        await delete(rig, reason="x" * 300)
    await rig.put(CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="another"))
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "another cluster"):
        await delete(rig)
    await rig.put(CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="test"))
    await rig.apply("stranger")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "has a record"):
        await delete(rig)
    assert rig.agents.deleted == []


async def test_F36_a_removal_that_the_agent_does_not_confirm_leaves_the_finding_open(rig: Rig) -> None:
    """With what went wrong; and it can be asked for again."""
    rig.agents.error = AgentUnreachable("the agent of node n1 does not answer")
    with refused(grpc.StatusCode.UNAVAILABLE, "does not answer"):
        await delete(rig)
    stored = (await rig.parts.store.get(DRIFTS, FINDING)).record
    assert stored
    assert stored.last_error
    rig.agents.error, rig.agents.deletes = None, False
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "still removing"):
        await delete(rig)
    rig.agents.deletes = True
    await delete(rig)
    assert (await rig.parts.store.get(DRIFTS, FINDING)).record is None


async def test_F43_findings_are_listed_by_type(rig: Rig) -> None:
    """A type that there is not is refused."""
    await rig.put(DRIFTS, "n1/web/state_mismatch", finding(workload_id="web", drift_type="state_mismatch"))

    async def listed(kind: str) -> list[str]:
        answer = await rig.fleet.ListDrifts(pb.ListDriftsRequest(type=kind))
        return [one.workload_id for one in answer.drifts]

    assert await listed("") == ["stranger", "web"]
    assert await listed("state_mismatch") == ["web"]
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "type"):
        await listed("nonsense")
