"""Node records: registration and health."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.domain.node import Health, Node, Taint
from scheduler.store.keys import NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health, storage_drivers, workload_types
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
OFFER = Node(
    node_id="n-1",
    agent_endpoint="10.0.0.1:50051",
    total_cpu=4.0,
    total_memory=8192,
    labels={"zone": "a"},
    supported_workload_types=("Docker-Container", "compose", "docker-compose"),
    supported_storage_drivers=("nfs", "Ceph_RBD"),
)


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


@pytest.fixture
def store(etcd: MemoryEtcd) -> Store:
    """A store without a cache."""
    return Store(etcd)


async def change(store: Store, **fields: object) -> None:
    """Change a node as an operator's call would."""

    def decide(view: View) -> Write[None]:
        write: Write[None] = Write(None)
        record = view.get(NODES, "n-1").record
        assert record
        write.put(NODES, "n-1", record.replace(**fields))
        return write

    await store.transact([Ref(NODES, "n-1")], decide)


async def node_of(store: Store) -> Node:
    """Read the node."""
    record = (await store.get(NODES, "n-1")).record
    assert record
    return record


async def test_F1_a_registered_node_is_ready(store: Store) -> None:
    """Status, reason, source and time are recorded."""
    assert await register(store, OFFER, now=NOW) == await node_of(store)
    node = await node_of(store)
    assert (node.status, node.status_reason, node.status_updated_by) == ("Ready", "registered", "register")
    assert (node.status_updated_at, node.registered_at) == (NOW, NOW)


async def test_F2_names_are_brought_to_one_spelling(store: Store) -> None:
    """Types and drivers are lower-cased, once each; local comes first; the shard label is there."""
    node = await register(store, OFFER, now=NOW, shard_key="genesis")
    assert node.supported_workload_types == ("container", "compose")
    assert node.supported_storage_drivers == ("local", "nfs", "ceph-rbd")
    assert node.labels == {"zone": "a", "scheduler_shard": "genesis"}
    assert node.hostname == "n-1"


def test_F2_defaults() -> None:
    """The rows of the table."""
    assert storage_drivers([]) == ("local",)
    assert storage_drivers(["nfs"]) == ("local", "nfs")
    assert storage_drivers(["nfs", "local", "NFS"]) == ("local", "nfs")
    assert workload_types([]) == ()
    assert workload_types(["docker-container", " VM "]) == ("container", "vm")


async def test_F3_what_operators_set_survives_registering_again(store: Store) -> None:
    """Taints, labels, cordon and drain stay; the agent's label wins on the same key; capacity is the agent's."""
    await register(store, OFFER, now=NOW)
    taint = Taint(key="gpu", value="yes")
    labels = {"zone": "b", "rack": "7", "scheduler_shard": "genesis"}
    await change(store, taints=(taint,), labels=labels, schedulable=False, drain="Draining")
    node = await register(store, OFFER.replace(total_memory=4096, instance_id="i2"), now=LATER)
    assert node.taints == (taint,)
    assert node.labels == {"zone": "a", "rack": "7", "scheduler_shard": "genesis"}
    assert (node.schedulable, node.drain) == (False, "Draining")
    assert (node.total_memory, node.instance_id, node.registered_at) == (4096, "i2", NOW)


async def test_F3_registering_the_same_again_writes_nothing(etcd: MemoryEtcd, store: Store) -> None:
    """An agent that lost its connection costs no write."""
    await register(store, OFFER, now=NOW)
    revision = etcd.revision
    await register(store, OFFER, now=LATER)
    assert etcd.revision == revision


async def test_F5_a_drain_survives_silence_and_a_reboot(store: Store) -> None:
    """NotReady and Ready again are health; the operator's wish is another field."""
    await register(store, OFFER, now=NOW)
    await change(store, drain="Draining")
    await set_health(store, "n-1", Health.NOT_READY, "heartbeat expired: last heartbeat x", "monitor", now=NOW)
    node = await register(store, OFFER.replace(instance_id="i2"), now=LATER)
    assert (node.status, node.drain, node.status_updated_at) == ("Ready", "Draining", LATER)


async def test_F7_health_changes_once(etcd: MemoryEtcd, store: Store) -> None:
    """The transition carries reason, source and time; repeating it is none."""
    await register(store, OFFER, now=NOW)
    assert await set_health(store, "n-1", Health.NOT_READY, "silent", "monitor", now=LATER)
    node = await node_of(store)
    assert (node.status, node.status_reason, node.status_updated_by) == ("NotReady", "silent", "monitor")
    assert node.status_updated_at == LATER
    revision = etcd.revision
    assert not await set_health(store, "n-1", Health.NOT_READY, "silent still", "monitor", now=LATER)
    assert etcd.revision == revision
    assert not await set_health(store, "nope", Health.READY, "", "", now=NOW)


async def test_F7_a_judgement_about_an_older_record_changes_nothing(store: Store) -> None:
    """A node that registered again after it was judged silent stays Ready."""
    await register(store, OFFER, now=NOW)
    judged = (await store.get(NODES, "n-1")).mod_revision
    await register(store, OFFER.replace(instance_id="i2"), now=NOW)
    assert not await set_health(store, "n-1", "NotReady", "silent", "monitor", now=NOW, seen_revision=judged)
    assert not await set_health(store, "n-1", "NotReady", "silent", "monitor", now=NOW, expect_status="NotReady")
    assert (await node_of(store)).is_ready


async def test_F48_concurrent_changes_of_a_node_all_survive(store: Store) -> None:
    """A taint, a health transition and a registration at once: none is lost."""
    await register(store, OFFER, now=NOW)
    await asyncio.gather(
        change(store, taints=(Taint(key="gpu"),)),
        set_health(store, "n-1", Health.NOT_READY, "silent", "monitor", now=LATER),
        register(store, OFFER.replace(total_cpu=8.0), now=NOW),
        change(store, schedulable=False),
    )
    node = await node_of(store)
    assert node.taints == (Taint(key="gpu"),)
    assert node.total_cpu == 8.0
    assert not node.schedulable
