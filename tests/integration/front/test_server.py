"""The server around the services: health (F90), metrics (F89), reflection, UNIMPLEMENTED, errors, stop (F92)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import grpc
import pytest
import structlog
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.front import calls
from scheduler.front.server import SERVICES, Front
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from scheduler.pb import scheduler_pb2
from scheduler.pb.control_pb2_grpc import AgentControlStub
from scheduler.pb.scheduler_pb2_grpc import SchedulerStub
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.fronts import Heartbeat, Rig, error_info, eventually, front_on, refused

SERVED = {
    "ApplyWorkload",
    "CreateDisk",
    "DeleteDisk",
    "DeleteNodeLabel",
    "DeleteWorkload",
    "DrainNode",
    "GetClusterSummary",
    "GetDisk",
    "GetNode",
    "GetWorkload",
    "Heartbeat",
    "ListDisks",
    "ListEvents",
    "ListNodes",
    "ListWorkloads",
    "RegisterNode",
    "RetryWorkload",
    "SetNodeLabel",
    "SubmitAutomationSuggestion",
    "TaintNode",
    "UndrainNode",
    "UntaintNode",
    "WatchEvents",
}


async def http(rig: Rig, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    """Ask the HTTP server; return status, headers and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.front.http_port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    first, *lines = head.split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, body


async def check(rig: Rig, service: str = "") -> int:
    """Ask for the gRPC health of a service."""
    stub: Any = health_pb2_grpc.HealthStub(rig.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(answer.status)


async def test_F90_health_is_told_overall_and_for_each_service() -> None:
    """SERVING once etcd has been read; an unknown service is NOT_FOUND."""
    async with front_on() as rig:
        for service in ("", *SERVICES):
            assert await check(rig, service) == health_pb2.HealthCheckResponse.SERVING
        with refused(grpc.StatusCode.NOT_FOUND):
            await check(rig, "nobody.v1.Nothing")
        code, headers, body = await http(rig, "/readyz")
        assert (code, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body)["mode"] == "normal"


async def test_F90_a_front_that_has_not_read_etcd_is_alive_and_not_ready() -> None:
    """503 on /readyz and NOT_SERVING, 200 on /healthz, both with the mode; and ready as soon as etcd answers."""
    etcd = MemoryEtcd()
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    async with front_on(etcd, wait=False) as rig:
        assert await check(rig) == health_pb2.HealthCheckResponse.NOT_SERVING
        code, _, body = await http(rig, "/readyz")
        assert code == 503
        assert json.loads(body)["mode"] == "degraded"
        for path in ("/healthz", "/health"):
            code, _, body = await http(rig, path)
            assert code == 200
            assert set(json.loads(body)) >= {"status", "mode", "reason", "modeChangedAt"}
        etcd.mishap = lambda _call: None

        async def serving() -> bool:
            return await check(rig) == health_pb2.HealthCheckResponse.SERVING

        await eventually(serving)
        assert (await http(rig, "/readyz"))[0] == 200


async def test_F90_a_front_whose_etcd_went_away_stays_ready_and_says_degraded() -> None:
    """It still hears agents and answers reads: taking it out of the balancer would make every node silent."""
    etcd = MemoryEtcd()
    async with front_on(etcd, store_probe_interval_seconds=0.05, store_patience_seconds=0.2) as rig:
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE

        async def degraded() -> bool:
            return bool(json.loads((await http(rig, "/healthz"))[2])["mode"] == "degraded")

        await eventually(degraded)
        assert (await http(rig, "/readyz"))[0] == 200
        etcd.mishap = lambda _call: None


async def test_the_http_server_serves_its_pages_and_nothing_else() -> None:
    """404 for other paths, 405 for other methods, HEAD without a body, nonsense is dropped."""
    async with front_on() as rig:
        assert (await http(rig, "/"))[0] == 404
        assert (await http(rig, "/metrics", "POST"))[0] == 405
        code, _, body = await http(rig, "/metrics", "HEAD")
        assert (code, body) == (200, "")
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.front.http_port)
        writer.write(b"x" * 100_000)
        assert await reader.read() == b""
        writer.close()
        assert (await http(rig, "/healthz?verbose=1"))[0] == 200


async def test_F89_the_reference_systems_metrics_are_there_and_right() -> None:
    """Codes in Go's spelling, states that are pre-set to 0, and states that vanish when nobody is in them."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        with pytest.raises(aio.AioRpcError):
            await rig.workload("ghost")
        text = (await http(rig, "/metrics"))[2]
        method = "persys.control.v1.AgentControl"
        for line in (
            f'persys_scheduler_grpc_server_requests_total{{code="NotFound",method="/{method}/GetWorkload"}} 1.0',
            f'persys_scheduler_grpc_server_requests_total{{code="OK",method="/{method}/ApplyWorkload"}} 1.0',
            'persys_scheduler_nodes_status{status="ready"} 1.0',
            'persys_scheduler_nodes_status{status="notready"} 0.0',
            'persys_scheduler_workloads_status{status="scheduled"} 1.0',
            'persys_scheduler_workloads_status{status="running"} 0.0',
            'persys_scheduler_workloads_desired_state{desired_state="running"} 1.0',
            'persys_scheduler_state_store_writes_total{category="spec"} 1.0',
            'persys_scheduler_state_store_writes_total{category="ledger"} 1.0',
            "persys_scheduler_cache_synced 1.0",
            "persys_scheduler_redis_up 0.0",
        ):
            assert line in text, line
        assert "persys_scheduler_grpc_server_request_duration_seconds_bucket" in text
        await rig.control.DeleteWorkload(pb.DeleteWorkloadRequest(workload_id="web"))
        text = (await http(rig, "/metrics"))[2]
        assert 'workloads_status{status="scheduled"}' not in text
        assert 'persys_scheduler_workloads_status{status="deleting"} 1.0' in text


async def test_every_call_of_every_service_exists() -> None:
    """What is not served yet answers UNIMPLEMENTED and names itself."""
    async with front_on() as rig:
        stub: Any = AgentControlStub(rig.channel)
        control = pb.DESCRIPTOR.services_by_name["AgentControl"]
        for method in control.methods:
            if method.name in SERVED:
                continue
            request = getattr(pb, method.input_type.name)()
            with refused(grpc.StatusCode.UNIMPLEMENTED, f"AgentControl.{method.name}"):
                await answer_of(getattr(stub, method.name), method, request)
        sandboxes: Any = SchedulerStub(rig.channel)
        for method in scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"].methods:
            request = getattr(scheduler_pb2, method.input_type.name)()
            with refused(grpc.StatusCode.UNIMPLEMENTED, f"Scheduler.{method.name}"):
                await answer_of(getattr(sandboxes, method.name), method, request)


async def answer_of(call: Any, method: Any, request: Any) -> Any:
    """Make a call of any kind."""
    if method.client_streaming:
        return [answer async for answer in call(iter([request]))]
    if method.server_streaming:
        return [answer async for answer in call(request)]
    return await call(request)


async def test_reflection_tells_every_service_and_its_types() -> None:
    """A client without our .proto files can list the services and read a request's fields."""
    async with front_on() as rig:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(rig.channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answers = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
        names = {service.name for service in answers[0].list_services_response.service}
        assert names >= {*SERVICES, "grpc.health.v1.Health"}

        def describe() -> list[str]:
            with grpc.insecure_channel(f"127.0.0.1:{rig.front.grpc_port}") as channel:
                pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
                found = pool.FindMessageTypeByName("persys.control.v1.HeartbeatRequest")
                return [field.name for field in found.fields]

        assert "workload_statuses" in await asyncio.to_thread(describe)


async def test_a_defect_is_told_without_its_traceback_logged_with_it_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unexpected exception in a handler: INTERNAL with a plain text, one log line, one count."""
    async with front_on() as rig:

        async def broken(*_args: object) -> None:
            raise ZeroDivisionError("secret detail")

        monkeypatch.setattr(rig.front.reader, "node", broken)
        with structlog.testing.capture_logs() as logs, pytest.raises(aio.AioRpcError) as caught:
            await rig.node()
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in (caught.value.details() or "")
        assert error_info(caught.value).reason == "INTERNAL"
        defects = [log for log in logs if log["event"] == "a call hit a defect"]
        assert [type(defect["exc_info"]) for defect in defects] == [ZeroDivisionError]
        assert (
            'unexpected_errors_total{method="/persys.control.v1.AgentControl/GetNode"} 1.0'
            in (await http(rig, "/metrics"))[2]
        )


async def test_a_flood_of_slow_calls_is_shed_and_heartbeats_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound calls get RESOURCE_EXHAUSTED at once; heartbeats, which wait for nothing, pass."""
    monkeypatch.setattr(calls, "MAX_IN_FLIGHT", 5)
    async with front_on() as rig:
        await rig.register()
        go_on = asyncio.Event()

        async def slow(*_args: object) -> Any:
            await go_on.wait()
            return pb.NodeView()

        monkeypatch.setattr(rig.front.reader, "node", slow)
        waiting = [asyncio.ensure_future(rig.node()) for _ in range(20)]
        done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert (await rig.control.Heartbeat(Heartbeat(node_id="n1"))).acknowledged
        go_on.set()
        await asyncio.wait(pending | done)
        codes = [e.code() for task in waiting if isinstance(e := task.exception(), aio.AioRpcError)]
        assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 15


async def test_many_calls_at_once_are_all_answered() -> None:
    """A fleet that reconnects at the same moment: nothing is cancelled by the server."""
    async with front_on() as rig:
        await rig.register()
        answers = await asyncio.gather(*(rig.control.Heartbeat(Heartbeat(node_id="n1")) for _ in range(3000)))
        assert all(answer.acknowledged for answer in answers)


async def logs_of(rig: Rig, **fields: Any) -> bytes:
    """Read a workload's output."""
    request = fb.ReadWorkloadLogsRequest(workload_id="web", **fields)
    return b"".join([chunk.data async for chunk in rig.fleet.ReadWorkloadLogs(request)])


async def test_logs_are_handed_on_from_the_workloads_node_in_bounded_chunks() -> None:
    """The default tail is 64 KiB; a chunk has at most 64 KiB; what the agent refuses is told."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        rig.agents.output = [b"a" * 100_000, b"b"]
        request = fb.ReadWorkloadLogsRequest(workload_id="web", follow=False)
        sizes = [len(chunk.data) async for chunk in rig.fleet.ReadWorkloadLogs(request)]
        assert sizes == [65_536, 34_464, 1]
        assert rig.agents.asked == [("n1", "web", 65_536, False)]
        rig.agents.error = AgentUnreachable("n1 does not answer")
        with refused(grpc.StatusCode.UNAVAILABLE, "n1 does not answer"):
            await logs_of(rig)
        rig.agents.error = AgentRejected("no such output")
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "no such output"):
            await logs_of(rig)


async def test_logs_of_what_has_none_say_so() -> None:
    """No such workload; a workload without a node."""
    async with front_on() as rig:
        with refused(grpc.StatusCode.NOT_FOUND):
            await logs_of(rig)
        await rig.apply()
        with refused(grpc.StatusCode.FAILED_PRECONDITION, "on no node"):
            await logs_of(rig)


async def test_a_caller_that_goes_away_ends_the_stream_to_the_agent() -> None:
    """Following logs is given up on both sides; the place among the streams is free again."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        rig.agents.output = [b"x"]
        stream = rig.fleet.ReadWorkloadLogs(fb.ReadWorkloadLogsRequest(workload_id="web", follow=True))
        assert (await stream.read()).data == b"x"
        assert rig.front._fleet._streams == 1
        stream.cancel()
        await eventually(lambda: rig.front._fleet._streams == 0)


async def test_F92_a_stop_says_so_first_lets_calls_end_and_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """NOT_SERVING before anything else; a call in flight is answered; a stream is sent elsewhere; below ten seconds."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        health: Any = health_pb2_grpc.HealthStub(rig.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        go_on = asyncio.Event()

        async def slow(*_args: object) -> Any:
            await go_on.wait()
            return pb.NodeView(node_id="late")

        monkeypatch.setattr(rig.front.reader, "node", slow)
        late = asyncio.ensure_future(rig.node())
        rig.agents.output = [b"x"]
        stream = rig.fleet.ReadWorkloadLogs(fb.ReadWorkloadLogsRequest(workload_id="web", follow=True))
        await stream.read()
        begun = time.monotonic()
        stopping = asyncio.ensure_future(rig.front.stop())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with refused(grpc.StatusCode.UNAVAILABLE, "another one"):
            await stream.read()
        go_on.set()
        assert (await late).node_id == "late"
        watch.cancel()
        await stopping
        assert time.monotonic() - begun < 10


async def test_F92_news_that_waits_is_written_before_the_front_ends() -> None:
    """A change acknowledged just before the stop is in etcd after it."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        await rig.apply()
        report = pb.WorkloadStatus(workload_id="web", state="Running")
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[report]))
        await rig.front.stop()
        assert b'"actualState":"Running"' in (await rig.stored())["/workloads-status/web"]


async def test_a_taken_port_is_an_error_that_names_it() -> None:
    """A second front on the same port does not silently share it."""
    async with front_on() as rig:
        other = Front(rig.parts)
        with pytest.raises(OSError, match=str(rig.front.grpc_port)):
            await other.start("127.0.0.1", rig.front.grpc_port, 0)
        await other.stop()
