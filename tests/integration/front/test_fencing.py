"""What operators vouch for, how a loss is explained, and who gets a node's id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest
from redis.asyncio import Redis

from scheduler.domain.node import Health, Node
from scheduler.domain.workload import Actual, Phase, StatusInfo, WorkloadStatus
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2
from scheduler.store.keys import BRAKES, NODES, STATUSES
from tests.support.fronts import Heartbeat, Rig, container, eventually, front_on, refused

FAST: dict[str, Any] = {
    "heartbeat_interval_seconds": 0.1,
    "node_lease_seconds": 0.3,
    "node_grace_seconds": 0.3,
    "exclusive_stop_after_seconds": 1.0,
}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A front with two nodes."""
    async with front_on() as rig:
        for node_id in ("n1", "n2"):
            await rig.register(node_id)
        yield rig


async def stored(rig: Rig, node_id: str) -> Node:
    """Read a node from etcd."""
    record = (await rig.parts.store.get(NODES, node_id)).record
    assert record
    return record


async def lose(rig: Rig, node_id: str, minutes: float = 60) -> None:
    """Have a node be NotReady for so long."""
    since = datetime.now(UTC) - timedelta(minutes=minutes)
    node = await stored(rig, node_id)
    await rig.put(NODES, node_id, node.replace(status=Health.NOT_READY, status_updated_at=since))


async def assigned(rig: Rig, node_id: str = "n1", **metadata: str) -> None:
    """Have the workload `web` run on a node."""
    spec = container()
    spec.metadata.update({key.replace("__", "."): value for key, value in metadata.items()})
    await rig.apply(spec=spec)
    status = (await rig.parts.store.get(STATUSES, "web")).record or WorkloadStatus(id="web")
    info = StatusInfo(actual_state=Actual.RUNNING)
    await rig.put(STATUSES, "web", status.replace(status=Phase.RUNNING, node_id=node_id, status_info=info))


async def explained(rig: Rig) -> str:
    """Ask why `web` is where it is."""
    answer = await rig.fleet.ExplainWorkload(fleetbeat_pb2.ExplainWorkloadRequest(workload_id="web"))
    return str(answer.summary)


async def test_scenario_L15_an_operator_fences_a_node_that_is_off(rig: Rig) -> None:
    """Recorded, told, its workloads looked at; asking again is no news."""
    await assigned(rig, fleetbeat__exclusive="true")
    await lose(rig, "n1")
    request = fleetbeat_pb2.FenceNodeRequest(node_id="n1", reason="power off")
    checked = await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n1", validate_only=True))
    assert not checked.HasField("fenced_at")
    answer = await rig.fleet.FenceNode(request)
    assert (answer.workloads, answer.exclusive, answer.status) == (1, 1, "NotReady")
    node = await stored(rig, "n1")
    assert (node.is_fenced, node.fenced_by) == (True, "power off")
    assert ("web", "n1") in rig.woken
    before = (await rig.parts.store.get(NODES, "n1")).mod_revision
    await rig.fleet.FenceNode(request)
    assert (await rig.parts.store.get(NODES, "n1")).mod_revision == before


async def test_a_node_that_is_heard_is_fenced_only_by_force_and_only_until_it_is_heard_again(rig: Rig) -> None:
    """FAILED_PRECONDITION says what to do first."""
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "turn it off first"):
        await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n1"))
    answer = await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n1", force=True))
    assert answer.status == "NotReady"
    assert (await stored(rig, "n1")).is_fenced
    await rig.control.Heartbeat(Heartbeat(node_id="n1"))
    await rig.settled()
    await eventually(lambda: bool((n := rig.parts.cache.get(NODES, "n1").record) and n.is_ready and not n.fenced_at))


async def test_a_fence_is_checked_like_any_request(rig: Rig) -> None:
    """The id, that there is such a node, the length of the reason."""
    with refused(grpc.StatusCode.NOT_FOUND):
        await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n9"))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "node_id"):
        await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="-"))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "reason"):
        await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n1", reason="x" * 300))


async def test_scenario_L14_an_operator_sees_and_releases_the_brake(rig: Rig) -> None:
    """Held, released until then, held again; checked."""
    await rig.register("n3")
    for node_id in ("n1", "n2", "n3"):
        await lose(rig, node_id, 1)
    shown = await rig.fleet.ListBrakes(fleetbeat_pb2.ListBrakesRequest())
    assert [(b.shard, b.nodes) for b in shown.brakes] == [(0, 3)]
    assert "fell silent together" in shown.brakes[0].reason
    request = fleetbeat_pb2.ReleaseBrakeRequest(shard=0, seconds=60, reason="fire")
    answer = await rig.fleet.ReleaseBrake(request)
    assert (answer.brake.nodes, answer.brake.release_reason) == (0, "fire")
    assert answer.brake.HasField("released_until")
    assert (await rig.parts.store.get(BRAKES, "0")).record
    again = await rig.fleet.ReleaseBrake(fleetbeat_pb2.ReleaseBrakeRequest(shard=0, hold_again=True))
    assert again.brake.nodes == 3
    for wrong in ({"shard": 1}, {"seconds": 1e9}, {"seconds": -1}):
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await rig.fleet.ReleaseBrake(fleetbeat_pb2.ReleaseBrakeRequest(**wrong))


async def test_scenario_L7_explain_says_why_a_workload_is_not_replaced(rig: Rig) -> None:
    """By its own rule."""
    await assigned(rig, fleetbeat__replace="false")
    await lose(rig, "n1")
    assert "fleetbeat.replace=false" in await explained(rig)


async def test_F34_explain_says_where_the_data_of_a_pinned_workload_is(rig: Rig) -> None:
    """And what lets it go."""
    await assigned(rig, persys__storage__local="true")
    await lose(rig, "n1")
    text = await explained(rig)
    assert "its data is on node n1" in text
    assert "allow_move" in text


async def test_scenario_L15_explain_says_what_an_exclusive_workload_waits_for(rig: Rig) -> None:
    """An agent that does not stop it by itself: the operator's word, with the command."""
    await assigned(rig, fleetbeat__exclusive="true")
    await lose(rig, "n1")
    assert "fleetbeat node fence n1" in await explained(rig)
    await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n1"))
    assert "about to move to n2" in await explained(rig)


async def test_F33_explain_says_that_there_is_no_target(rig: Rig) -> None:
    """With the reasons of the other nodes."""
    await assigned(rig, fleetbeat__exclusive="true")
    await lose(rig, "n1")
    await lose(rig, "n2")
    await rig.fleet.FenceNode(fleetbeat_pb2.FenceNodeRequest(node_id="n1"))
    assert "no failover target" in await explained(rig)


def registration(instance: str, port: int, *, agent_id: str) -> pb.RegisterNodeRequest:
    """Return the registration of an agent as node n1."""
    capabilities = pb.NodeCapabilities(cpu_total_millicores=2000, memory_total_mb=4096)
    return pb.RegisterNodeRequest(
        node_id="n1",
        grpc_endpoint=f"127.0.0.1:{port}",
        capabilities=capabilities,
        instance_id=instance,
        enforces_stop_after=True,
        agent_id=agent_id,
    )


async def test_scenario_L15_an_id_is_not_handed_on_while_exclusive_work_may_run_beside_it(redis: Redis) -> None:
    """After the lease, but not before its copies have provably ended; the one refused is told that it is superseded."""
    async with front_on(redis=redis, **FAST) as rig:
        assert (await rig.control.RegisterNode(registration("a", 7001, agent_id="A"))).accepted
        await rig.settled()
        await assigned(rig, fleetbeat__exclusive="true")
        first = await rig.control.RegisterNode(registration("b", 7002, agent_id="B"))
        assert (first.accepted, first.superseded, first.stop_after_ms) == (False, True, 1000)
        assert "that is alive" in first.reason
        answers = []

        async def accepted() -> bool:
            answers.append(await rig.control.RegisterNode(registration("b", 7002, agent_id="B")))
            return bool(answers[-1].accepted)

        while not await accepted():
            await asyncio.sleep(0.05)
        assert any("exclusive work" in answer.reason for answer in answers)


async def test_scenario_O2_an_agent_with_the_same_data_folder_has_its_id_back_after_the_lease(redis: Redis) -> None:
    """Its copies are the same ones: exclusive work is no matter."""
    async with front_on(redis=redis, **FAST) as rig:
        await rig.control.RegisterNode(registration("a", 7001, agent_id="A"))
        await rig.settled()
        await assigned(rig, fleetbeat__exclusive="true")
        reasons = []
        while not (answer := await rig.control.RegisterNode(registration("b", 7002, agent_id="A"))).accepted:
            reasons.append(answer.reason)
            await asyncio.sleep(0.05)
        assert all("that is alive" in reason for reason in reasons)
