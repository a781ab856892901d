"""The agent's services, called as the control plane calls them."""

from __future__ import annotations

import asyncio
import pathlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scheduler.pb import agent_pb2 as pb
from scheduler.pb import fleetbeat_pb2
from tests.integration.agent.conftest import Node, a_node
from tests.support.agent_process import order
from tests.support.waiting import eventually


async def refused(call: object) -> grpc.aio.AioRpcError:
    """Return the error that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value


async def test_a_call_that_is_meant_for_another_node_is_refused(node: Node) -> None:
    """Another agent may have had this address before; unary calls and streams."""
    meant = (("x-node-id", "n-2"),)
    for call in (
        node.client.service.ApplyWorkload(order(), metadata=meant),
        node.client.service.DeleteWorkload(pb.DeleteWorkloadRequest(id="w"), metadata=meant),
        node.client.service.ListWorkloads(pb.ListWorkloadsRequest(), metadata=meant),
        node.client.node_agent.ReadLogs(fleetbeat_pb2.ReadLogsRequest(workload_id="w"), metadata=meant).read(),
    ):
        error = await refused(call)
        assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.details() == "this is node 'n-1', the call is meant for node 'n-2'"
    assert node.pids() == []
    await node.client.service.ListWorkloads(pb.ListWorkloadsRequest())


async def test_orders_of_older_epochs_are_refused_and_change_nothing(node: Node) -> None:
    """ABORTED, as the caller has to look again at what it decided from."""
    pid = await node.run(order(epoch=5))
    error = await refused(node.client.apply(order(epoch=4, revision="r2")))
    assert error.code() is grpc.StatusCode.ABORTED
    assert "assignment epoch 4 is older than 5" in str(error.details())
    error = await refused(node.client.delete("w", 4))
    assert error.code() is grpc.StatusCode.ABORTED
    assert "newer epoch" in str(error.details())
    assert node.pids() == [pid]
    assert (await node.client.apply(order(epoch=6))).status.assignment_epoch == 6
    status = await node.front.reported("w", "Running")
    await eventually(lambda: (last := node.front.last("w")) and last.assignment_epoch == 6)
    assert status.metadata["pid"] == str(pid)
    await node.client.delete("w", 6)
    error = await refused(node.client.apply(order(epoch=6)))
    assert error.code() is grpc.StatusCode.ABORTED
    assert node.pids() == []


async def test_a_malformed_request_leaves_no_trace(node: Node) -> None:
    """INVALID_ARGUMENT, naming the field."""
    for request, text in ((order("../x"), "id '../x'"), (order("w", revision=""), "revision_id")):
        error = await refused(node.client.apply(request))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in str(error.details())
    error = await refused(node.client.delete(""))
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "id must not be blank")
    error = await refused(node.client.service.ListActions(pb.ListActionsRequest(limit=-1)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert list((await node.client.service.ListWorkloads(pb.ListWorkloadsRequest())).workloads) == []
    assert list((node.data / "workloads").iterdir()) == []


async def test_what_this_node_cannot_run_is_failed_with_a_clear_text(tmp_path: pathlib.Path) -> None:
    """Host processes that were not allowed, images and projects without an engine, VMs."""
    async with a_node(tmp_path, "--no-host-processes") as node:
        assert list(node.front.registrations[0].capabilities.supported_workload_types) == []
        compose = order("compose")
        compose.type = pb.WORKLOAD_TYPE_COMPOSE
        compose.spec.compose.compose_yaml = "services: {a: {image: b}}"
        for request, code, text in (
            (order("host"), "INVALID_SPECIFICATION", "start it with --allow-host-processes"),
            (
                order("image", image="nginx:1"),
                "RUNTIME_ERROR",
                "image 'nginx:1' needs a Docker engine on the node; none answers",
            ),
            (compose, "RUNTIME_ERROR", "a compose project needs a Docker engine and docker compose"),
        ):
            answer = await node.client.apply(request)
            assert not answer.applied
            assert text in answer.message
            assert answer.status.actual_state == pb.ACTUAL_STATE_FAILED
            assert answer.status.metadata["failure_reason"] == code
            status = await node.front.reported(request.id, "Failed")
            assert (status.reason.code, status.reason.message) == (code, answer.message)
        assert (await node.client.delete("host", 1)).success
        assert await node.client.status("host") is None


async def test_list_and_health_tell_what_is_there(node: Node) -> None:
    """By type; with versions and what is limited."""
    await node.run(order("a"))
    await node.run(order("b"))
    listed = await node.client.service.ListWorkloads(pb.ListWorkloadsRequest())
    assert [w.id for w in listed.workloads] == ["a", "b"]
    by_type = pb.ListWorkloadsRequest(type=pb.WORKLOAD_TYPE_COMPOSE)
    assert list((await node.client.service.ListWorkloads(by_type)).workloads) == []
    health = await node.client.service.HealthCheck(pb.HealthCheckRequest())
    assert health.healthy
    assert health.version
    assert health.runtime_status["process"].startswith("available; ")
    assert 0 < health.memory_utilization <= 100
    assert 0 < health.disk_utilization <= 100


async def test_grpc_health_covers_the_server_and_each_service(node: Node) -> None:
    """For load balancers and supervisors."""
    stub = health_pb2_grpc.HealthStub(node.client.channel)
    for name in ("", "persys.agent.v1.AgentService", "fleetbeat.v1.NodeAgent"):
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_actions_tell_what_was_done(node: Node) -> None:
    """By workload, type and status, in either order, bounded by a limit."""
    await node.run(order("a"))
    await node.client.apply(order("b", "no-such-program"))
    await node.front.reported("b", "Failed")
    await node.client.delete("a", 1)

    async def actions(**wanted: object) -> list[tuple[str, str, str]]:
        answer = await node.client.service.ListActions(pb.ListActionsRequest(**wanted))
        return [(a.workload_id, a.action_type, a.status) for a in answer.actions]

    everything = [("a", "apply", "completed"), ("b", "apply", "failed"), ("a", "delete", "completed")]
    assert await actions() == everything
    assert await actions(newest_first=True) == everything[::-1]
    assert await actions(workload_id="a", action_type="delete") == everything[2:]
    assert await actions(status="failed") == everything[1:2]
    assert await actions(limit=1, newest_first=True) == everything[2:]
    (failed,) = (await node.client.service.ListActions(pb.ListActionsRequest(status="failed"))).actions
    assert "no-such-program" in failed.error
    assert 0 < failed.created_at <= failed.started_at <= failed.ended_at


async def test_the_last_output_is_read(node: Node) -> None:
    """At most what is asked for, in bounded chunks; a default, and a most."""
    await node.client.apply(order("w", "sh", "-c", "seq 1 100000"))
    await node.front.reported("w", "Stopped")
    text = node.output().encode()

    async def read(tail_bytes: int) -> bytes:
        request = fleetbeat_pb2.ReadLogsRequest(workload_id="w", tail_bytes=tail_bytes)
        chunks = [c.data async for c in node.client.node_agent.ReadLogs(request)]
        assert all(len(c) <= 65536 for c in chunks)
        return b"".join(chunks)

    assert await read(7) == b"100000\n"
    assert await read(0) == text[-65536:]
    assert await read(2**20) == text
    for bad in (-1, 2**20 + 1):
        with pytest.raises(grpc.aio.AioRpcError, match="tail_bytes"):
            await read(bad)
    request = fleetbeat_pb2.ReadLogsRequest(workload_id="nothing")
    error = await refused(node.client.node_agent.ReadLogs(request).read())
    assert error.code() is grpc.StatusCode.NOT_FOUND


async def test_output_is_followed_until_the_workload_goes(node: Node) -> None:
    """Over a restart of the process, and a cancelled follower leaves nothing behind."""
    await node.run(order("w", "sh", "-c", "echo begin; sleep 0.2; exit 1", restart="always"))
    request = fleetbeat_pb2.ReadLogsRequest(workload_id="w", follow=True)
    for _ in range(40):
        node.client.node_agent.ReadLogs(request).cancel()
    seen = b""

    async def follow() -> None:
        nonlocal seen
        async for chunk in node.client.node_agent.ReadLogs(request):
            seen += chunk.data

    follower = asyncio.create_task(follow())
    await eventually(lambda: seen.count(b"begin") >= 3)
    await node.client.delete("w", 1)
    await asyncio.wait_for(follower, 10)


async def test_followers_are_bounded(node: Node) -> None:
    """One too many is told so; a place is free again when one leaves."""
    await node.run(order())
    request = fleetbeat_pb2.ReadLogsRequest(workload_id="w", follow=True)
    calls = [node.client.node_agent.ReadLogs(request) for _ in range(33)]
    reads = [asyncio.ensure_future(call.read()) for call in calls]
    done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED, timeout=10)
    (first,) = done
    error = first.exception()
    assert isinstance(error, grpc.aio.AioRpcError)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in calls:
        call.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


async def test_scenario_O4_a_delete_right_behind_an_apply_wins(node: Node) -> None:
    """In whatever order the two are carried out, nothing runs afterwards and no record stays."""
    for number in range(10):
        name = f"w{number}"
        await asyncio.gather(
            node.client.apply(order(name, epoch=1)), node.client.delete(name, 1), return_exceptions=True
        )
    for number in range(10):
        for _ in range(200):
            if await node.client.status(f"w{number}") is None:
                break
            await asyncio.sleep(0.02)
        assert node.pids(f"w{number}") == []
    assert list((node.data / "workloads").glob("*.json")) == []
