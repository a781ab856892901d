"""Modes over a real front and a real etcd that is killed, paused and wiped (F73, F74, F90, sections 9.1, 9.18)."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from scheduler.store.cluster import join_cluster
from scheduler.store.etcd import Etcd
from scheduler.store.keys import NODES, STATUSES
from scheduler.store.kv import Delete, StoreRefused
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from tests.integration.front.test_server import http
from tests.support import servers
from tests.support.fronts import Heartbeat, Rig, error_info, eventually, front_on, refused

QUICK: dict[str, Any] = {
    "store_probe_interval_seconds": 0.1,
    "store_patience_seconds": 0.5,
    "etcd_timeout_seconds": 0.5,
}


@asynccontextmanager
async def front_of_a_cluster(etcd: Any) -> AsyncIterator[tuple[Rig, list[tuple[str, dict[str, str]]]]]:
    """Run a front whose cluster is in etcd; also return the events that it emits."""
    await join_cluster(Store(etcd))
    told: list[tuple[str, dict[str, str]]] = []
    async with front_on(etcd, **QUICK) as rig:
        found, _ = await etcd.get("/cluster")
        modes = rig.parts.modes
        modes.cluster_id = rig.parts.cluster_id = json.loads(found.value)["clusterId"]

        def emit(kind: str, *, reason: str = "", details: Mapping[str, str] | None = None) -> None:
            assert reason
            told.append((kind, dict(details or {})))

        modes._emit = emit
        await modes.look()
        yield rig, told


async def beat(rig: Rig, node_id: str = "n1") -> pb.HeartbeatResponse:
    """Send a heartbeat."""
    answer: pb.HeartbeatResponse = await rig.control.Heartbeat(Heartbeat(node_id=node_id))
    return answer


async def assert_frozen(rig: Rig) -> None:
    """Check every kind of refusal, in the reference's order of checks."""
    control = rig.control
    applied = await control.ApplyWorkload(pb.ApplyWorkloadRequest(workload_id=""))
    assert (applied.success, applied.failure_reason) == (False, pb.RUNTIME_ERROR)
    assert rig.parts.modes.mode in applied.error_message
    assert not (await control.DeleteWorkload(pb.DeleteWorkloadRequest())).success
    assert not (await control.RetryWorkload(pb.RetryWorkloadRequest())).accepted
    decided = await control.SubmitAutomationSuggestion(pb.SubmitAutomationSuggestionRequest())
    assert (decided.accepted, decided.decision) == (False, "rejected")
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "node_id"):
        await control.RegisterNode(pb.RegisterNodeRequest())
    registered = await control.RegisterNode(pb.RegisterNodeRequest(node_id="n9"))
    assert not registered.accepted
    assert registered.reason
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.fleet.CordonNode(fb.CordonNodeRequest(node_id="n1"))
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error_info(caught.value).reason == "NOT_WRITABLE"


async def assert_calm(rig: Rig, node_id: str) -> None:
    """Check that an agent is told to go on: acknowledged, no drain, a lease of at least the interval."""
    answer = await beat(rig, node_id)
    assert answer.acknowledged
    assert not answer.drain_node
    lease = answer.lease_expires_at.ToDatetime(tzinfo=rig.parts.now().tzinfo) - rig.parts.now()
    assert lease.total_seconds() >= rig.parts.settings.heartbeat_interval_seconds
    with refused(grpc.StatusCode.INVALID_ARGUMENT):
        await beat(rig, "")


async def test_F73_F74_a_killed_etcd_degrades_a_front_and_a_restarted_one_heals_it(tmp_path: pathlib.Path) -> None:
    """Writes get the frozen answers, reads come from the cache and are marked, agents stay calm; one event a change."""
    server = servers.etcd(tmp_path).start()
    etcd = Etcd([server.address], timeout_seconds=0.5)
    try:
        async with front_of_a_cluster(etcd) as (rig, told):
            await rig.register("n1")
            await rig.apply("web")
            server.kill()
            await eventually(lambda: rig.parts.modes.mode == "degraded")
            await assert_frozen(rig)
            await assert_calm(rig, "n1")
            await assert_calm(rig, "never-seen")
            nodes = await rig.control.ListNodes(pb.ListNodesRequest())
            assert ([n.node_id for n in nodes.nodes], nodes.stale) == (["n1"], True)
            assert (await rig.workload("web")).assigned_node_id == "n1"
            status = await rig.fleet.GetClusterStatus(fb.GetClusterStatusRequest())
            assert (status.mode, status.writable, status.stale) == ("degraded", False, True)
            code, _, body = await http(rig, "/readyz")
            assert (code, json.loads(body)["mode"]) == (200, "degraded")
            server.start()
            await eventually(lambda: rig.parts.modes.writable)
            assert (await rig.apply("web-2")).success
            assert [(d["from"], d["to"], d["writable"]) for _, d in told] == [
                ("normal", "degraded", "false"),
                ("degraded", "normal", "true"),
            ]
            assert {kind for kind, _ in told} == {"SchedulerModeChanged"}
    finally:
        await etcd.close()
        server.stop()


async def test_F73_a_paused_etcd_for_less_than_the_patience_changes_nothing(tmp_path: pathlib.Path) -> None:
    """One slow answer is no outage: the mode does not flap."""
    with servers.running(servers.etcd(tmp_path)) as server:
        etcd = Etcd([server.address], timeout_seconds=5)
        async with front_of_a_cluster(etcd) as (rig, told):
            object.__setattr__(rig.parts.settings, "store_patience_seconds", 30.0)
            server.pause()
            for _ in range(3):
                rig.parts.modes._judge()
            server.resume()
            await rig.parts.modes.look()
            assert rig.parts.modes.writable
            assert told == []
        await etcd.close()


async def test_scenario_9_1_an_error_of_one_key_never_changes_the_mode() -> None:
    """A value that is too large is refused: that call fails, and nothing else does."""
    etcd = MemoryEtcd()
    async with front_of_a_cluster(etcd) as (rig, told):
        await rig.register("n1")
        for _ in range(10):
            with pytest.raises(StoreRefused):
                await rig.put_key("/workloads-status/big", b"x" * 2_000_000)
            await rig.parts.modes.look()
        assert rig.parts.modes.writable
        assert told == []
        assert (await rig.apply("web")).success


async def test_scenario_9_18_a_wiped_etcd_means_recovery_until_it_is_accepted(tmp_path: pathlib.Path) -> None:
    """Writes are refused, nobody creates anything; accepted by the cluster's id, nodes register again."""
    server = servers.etcd(tmp_path).start()
    etcd = Etcd([server.address], timeout_seconds=0.5)
    try:
        async with front_of_a_cluster(etcd) as (rig, told):
            await rig.register("n1")
            placed = await rig.apply("web")
            assert placed.assigned_node_id == "n1"
            epoch = rig.parts.cache.get(STATUSES, "web").record
            server.kill()
            shutil.rmtree(server.folder / "data")
            server.start()
            await eventually(lambda: rig.parts.modes.mode == "recovery", 20)
            await assert_frozen(rig)
            await assert_calm(rig, "n1")
            found, _ = await etcd.scan("/")
            assert found == []
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "cluster_id"):
                await rig.fleet.AcceptStore(fb.AcceptStoreRequest(cluster_id="wrong"))
            await rig.fleet.AcceptStore(fb.AcceptStoreRequest(cluster_id=rig.parts.cluster_id))
            await eventually(lambda: rig.parts.modes.writable)
            await eventually(lambda: not rig.parts.cache.all(NODES), 20)
            with refused(grpc.StatusCode.NOT_FOUND):
                await beat(rig)
            await rig.register("n1")
            assert (await rig.apply("web")).assigned_node_id == "n1"
            again = rig.parts.cache.get(STATUSES, "web").record
            assert epoch
            assert again
            assert again.epoch > epoch.epoch + 1_000_000
            assert [d["to"] for _, d in told][-2:] == ["recovery", "normal"]
    finally:
        await etcd.close()
        server.stop()


async def test_scenario_9_18_nodes_and_workloads_that_vanish_at_once_mean_recovery() -> None:
    """The record of the cluster is still there, but no call of ours removes all nodes and all workloads together."""
    etcd = MemoryEtcd()
    async with front_of_a_cluster(etcd) as (rig, _):
        await rig.register("n1")
        await rig.apply("web")
        found, _ = await etcd.scan("/")
        await etcd.txn((), [Delete(kv.key) for kv in found if kv.key not in ("/cluster", "/shards/map")])
        await eventually(lambda: rig.parts.modes.mode == "recovery")
        await rig.fleet.AcceptStore(fb.AcceptStoreRequest(cluster_id=rig.parts.cluster_id))
        await eventually(lambda: rig.parts.modes.writable)


async def test_scenario_9_18_a_fresh_cluster_whose_etcd_hiccups_takes_its_first_node() -> None:
    """Nothing was ever stored but the cluster itself: after the hiccup registrations are welcome."""
    from scheduler.store.memory import Mishap  # noqa: PLC0415

    etcd = MemoryEtcd()
    async with front_of_a_cluster(etcd) as (rig, _):
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE
        await eventually(lambda: rig.parts.modes.mode == "degraded")
        etcd.mishap = lambda _call: None
        await eventually(lambda: rig.parts.modes.writable)
        assert (await rig.register("n1")).accepted
