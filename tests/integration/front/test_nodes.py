"""Registration and heartbeats of nodes: rows F1 to F5."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from scheduler.domain.node import Health, Node, Taint
from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import NODES
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.fronts import Heartbeat, Rig, eventually, front_on, refused


def lease_of(answer: Any) -> timedelta:
    """Return how long the lease in an answer lasts from now."""
    found: timedelta = answer.lease_expires_at.ToDatetime(UTC) - datetime.now(UTC)
    return found


async def stored_node(rig: Rig, node_id: str = "n1") -> Node:
    """Read a node's record from etcd."""
    record = (await rig.parts.store.get(NODES, node_id)).record
    assert record
    return record


async def test_F1_a_registration_is_answered_with_the_interval_and_the_lease_of_the_settings(etcd: EtcdApi) -> None:
    """Accepted; whole seconds for old agents, the exact interval beside them; the node is Ready."""
    async with front_on(etcd, heartbeat_interval_seconds=0.4, node_lease_seconds=1.5) as rig:
        answer = await rig.register()
        assert answer.accepted
        assert answer.reason == "registered"
        assert (answer.heartbeat_interval_seconds, answer.heartbeat_interval_ms, answer.lease_ms) == (1, 400, 1500)
        assert timedelta(0) < lease_of(answer) <= timedelta(seconds=1.5)
        assert (await rig.node()).status == Health.READY


@pytest.mark.parametrize(
    ("given", "stored", "host"),
    [
        ("10.0.0.7:50051", "10.0.0.7:50051", "10.0.0.7"),
        ("[::1]:50051", "[::1]:50051", "::1"),
        (":50051", "127.0.0.1:50051", "127.0.0.1"),
        ("node-7.example:1", "node-7.example:1", "node-7.example"),
    ],
)
async def test_F1_endpoints_are_taken_apart(given: str, stored: str, host: str) -> None:
    """IPv6 brackets are cut off the address; no host means 127.0.0.1."""
    async with front_on() as rig:
        capabilities = pb.NodeCapabilities(cpu_total_millicores=1, memory_total_mb=1)
        await rig.control.RegisterNode(
            pb.RegisterNodeRequest(node_id="n1", grpc_endpoint=given, capabilities=capabilities)
        )
        node = await stored_node(rig)
        assert (node.agent_endpoint, node.ip_address) == (stored, host)


async def test_F2_a_node_gets_its_defaults() -> None:
    """Types in their one spelling, `local` first among the drivers, the shard label, the disk of local pools."""
    async with front_on(shard_key="alpha") as rig:
        await rig.register(
            supported_workload_types=["docker-container", "Compose", "container"],
            supported_storage_drivers=["nfs", "ceph_rbd"],
            storage_pools=[pb.StoragePool(total_gb=10), pb.StoragePool(type="nfs", total_gb=99)],
        )
        node = await stored_node(rig)
        assert node.supported_workload_types == ("container", "compose")
        assert node.supported_storage_drivers == ("local", "nfs", "ceph-rbd")
        assert node.labels == {"scheduler_shard": "alpha"}
        assert node.total_disk == 10


async def test_F3_what_operators_set_survives_a_registration() -> None:
    """Taints, a drain and an operator's labels stay; the agent's label wins on the same key."""
    async with front_on() as rig:
        await rig.register()
        node = await stored_node(rig)
        labels = {**node.labels, "rack": "7", "zone": "old"}
        changed = node.replace(taints=(Taint(key="gpu"),), drain="Draining", schedulable=False, labels=labels)
        await rig.put(NODES, "n1", changed)
        capabilities = pb.NodeCapabilities(cpu_total_millicores=4000, memory_total_mb=1)
        request = pb.RegisterNodeRequest(
            node_id="n1", grpc_endpoint="h:1", capabilities=capabilities, labels={"zone": "new"}
        )
        assert (await rig.control.RegisterNode(request)).accepted
        await rig.settled()
        after = await stored_node(rig)
        assert (after.taints, after.drain, after.schedulable) == ((Taint(key="gpu"),), "Draining", False)
        assert after.labels == {"scheduler_shard": "genesis", "rack": "7", "zone": "new"}
        assert after.total_cpu == 4
        assert [t.key for t in (await rig.node()).taints] == ["gpu"]


async def test_registering_the_same_again_writes_nothing() -> None:
    """An agent that reconnects costs no write."""
    async with front_on() as rig:
        await rig.register()
        before = await rig.stored()
        await rig.register()
        assert await rig.stored() == before


async def test_F4_a_heartbeat_of_an_unknown_node_is_not_found(etcd: EtcdApi) -> None:
    """The agent learns that it must register."""
    async with front_on(etcd) as rig:
        with refused(grpc.StatusCode.NOT_FOUND, "ghost", "not registered"):
            await rig.control.Heartbeat(Heartbeat(node_id="ghost"))


async def test_F4_available_is_the_total_less_what_is_used(etcd: EtcdApi) -> None:
    """500 of 2000 millicores used leaves 1.5 cores; a heartbeat without usage leaves that as it is; never below 0."""
    async with front_on(etcd) as rig:
        await rig.register()
        answer = await rig.control.Heartbeat(
            Heartbeat(node_id="n1", usage=pb.NodeUsage(cpu_used_millicores=500, memory_used_mb=96))
        )
        assert answer.acknowledged
        assert not answer.drain_node
        assert timedelta(seconds=29) < lease_of(answer) <= timedelta(seconds=30)
        await rig.control.Heartbeat(Heartbeat(node_id="n1"))
        view = await rig.node()
        assert (view.available_cpu_cores, view.available_memory_mb) == (1.5, 4000)
        assert view.HasField("last_heartbeat")
        await rig.control.Heartbeat(Heartbeat(node_id="n1", usage=pb.NodeUsage(cpu_used_millicores=9000)))
        assert (await rig.node()).available_cpu_cores == 0


async def test_F4_a_node_that_is_heard_again_becomes_ready_with_a_reason(etcd: EtcdApi) -> None:
    """NotReady ends with the first heartbeat; who did it, when and why is recorded."""
    async with front_on(etcd) as rig:
        await rig.register()
        lost = (await stored_node(rig)).replace(status=Health.NOT_READY, status_reason="expired")
        await rig.put(NODES, "n1", lost)
        await rig.control.Heartbeat(Heartbeat(node_id="n1"))
        await rig.settled()
        view = await rig.node()
        assert (view.status, view.status_updated_by) == (Health.READY, "heartbeat")
        assert "heard again" in view.status_reason


async def test_an_agent_whose_node_another_one_has_registered_is_told_to_register_again(etcd: EtcdApi) -> None:
    """Else the endpoint of one that is gone would stay, while the other's heartbeats keep the node Ready."""
    async with front_on(etcd, heartbeat_interval_seconds=0.1, node_lease_seconds=0.3) as rig:
        assert (await register_as(rig, "a", "127.0.0.1:1")).accepted
        await rig.control.Heartbeat(Heartbeat(node_id="n1", instance_id="a", sequence=1))
        await until(lambda: register_as(rig, "b", "127.0.0.1:2"))
        await rig.control.Heartbeat(Heartbeat(node_id="n1", instance_id="b", sequence=1))
        with refused(grpc.StatusCode.NOT_FOUND, "n1", "another agent", "127.0.0.1:2"):
            await rig.control.Heartbeat(Heartbeat(node_id="n1", instance_id="a", sequence=2))
        await until(lambda: register_as(rig, "a", "127.0.0.1:1"))
        await rig.control.Heartbeat(Heartbeat(node_id="n1", instance_id="a", sequence=3))
        assert (await stored_node(rig)).agent_endpoint == "127.0.0.1:1"


async def test_persys_9_12_the_id_of_a_living_agent_cannot_be_taken_by_another(etcd: EtcdApi) -> None:
    """The second one is told where the first is; one that starts again at the same place is let in."""
    async with front_on(etcd) as rig:
        assert (await register_as(rig, "a", "127.0.0.1:1")).accepted
        answer = await register_as(rig, "b", "127.0.0.1:2")
        assert not answer.accepted
        assert "node_id" in answer.reason
        assert "127.0.0.1:1" in answer.reason
        assert (await stored_node(rig)).instance_id == "a"
        assert (await register_as(rig, "c", "127.0.0.1:1")).accepted


async def register_as(rig: Rig, instance_id: str, endpoint: str) -> pb.RegisterNodeResponse:
    """Register node n1 as this instance of an agent."""
    capabilities = pb.NodeCapabilities(cpu_total_millicores=1, memory_total_mb=1)
    request = pb.RegisterNodeRequest(
        node_id="n1", grpc_endpoint=endpoint, instance_id=instance_id, capabilities=capabilities
    )
    answer: pb.RegisterNodeResponse = await rig.control.RegisterNode(request)
    return answer


async def until(register: Callable[[], Awaitable[pb.RegisterNodeResponse]]) -> None:
    """Register until it is accepted."""
    async with asyncio.timeout(10):
        while not (await register()).accepted:
            await asyncio.sleep(0.05)


async def test_F5_a_heartbeat_keeps_a_drain_also_across_not_ready() -> None:
    """Health and what operators want are separate: neither a heartbeat nor a loss ends a drain."""
    async with front_on() as rig:
        await rig.register()
        draining = (await stored_node(rig)).replace(drain="Draining", status=Health.NOT_READY)
        await rig.put(NODES, "n1", draining)
        await rig.control.Heartbeat(Heartbeat(node_id="n1"))
        await rig.settled()
        node = await stored_node(rig)
        assert (node.status, node.drain) == (Health.READY, "Draining")


async def test_F61_a_node_registered_at_another_front_is_known_at_once() -> None:
    """A front whose cache does not know a node asks etcd before it says that there is none."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as one, front_on(etcd) as two:
        await two.parts.cache.close()  # it hears of nothing any more
        await one.register()
        assert (await two.control.Heartbeat(Heartbeat(node_id="n1"))).acknowledged


async def test_while_etcd_is_away_heartbeats_of_known_nodes_are_taken_and_others_told_to_try_again() -> None:
    """Known: acknowledged. Unknown: UNAVAILABLE, not "not found", which would make the agent register."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        etcd.mishap = lambda _call: Mishap.UNAVAILABLE
        assert (await rig.control.Heartbeat(Heartbeat(node_id="n1"))).acknowledged
        with refused(grpc.StatusCode.UNAVAILABLE):
            await rig.control.Heartbeat(Heartbeat(node_id="n2"))
        with refused(grpc.StatusCode.UNAVAILABLE):
            await rig.register("n2")
        etcd.mishap = lambda _call: None


async def test_a_node_that_fell_silent_again_while_etcd_was_away_is_not_made_ready() -> None:
    """News that waited for etcd is checked for its age before it is written."""
    etcd = MemoryEtcd()
    async with front_on(etcd, heartbeat_interval_seconds=0.1, node_lease_seconds=0.3) as rig:
        await rig.register()
        await rig.put(NODES, "n1", (await stored_node(rig)).replace(status=Health.NOT_READY))
        etcd.mishap = lambda call: Mishap.UNAVAILABLE if call in ("txn", "get_many") else None
        await rig.control.Heartbeat(Heartbeat(node_id="n1"))
        await eventually(lambda: not rig.front.heartbeats._is_heard("n1"))
        etcd.mishap = lambda _call: None
        await rig.settled()
        assert (await stored_node(rig)).status == Health.NOT_READY
