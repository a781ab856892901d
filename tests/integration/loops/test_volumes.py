"""Volumes through the loops, with real agents' gRPC servers: what becomes of claims when nodes die or are left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler.domain.node import DrainJob
from scheduler.domain.workload import ManagedVolume
from scheduler.store import intent
from scheduler.store.fences import fence_node
from scheduler.store.intent import Wish
from scheduler.store.keys import ATTACHMENTS, VOLUMES
from scheduler.store.volumes import find_dangling
from tests.support.fake_agent import FAILED
from tests.support.loop_world import World, world
from tests.support.placement import records, spec

ONCE = ManagedVolume(name="data", driver="nfs", access_mode="ReadWriteOnce")
HERE = ManagedVolume(name="here", driver="local")


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Two nodes with our own agents and all drivers."""
    async with world(exclusive_stop_after_seconds=10.0) as this:
        for node_id in ("n-1", "n-2"):
            await this.add_node(node_id, enforces_stop_after=True, supported_storage_drivers=("local", "nfs"))
        yield this


async def running(fleet: World, *volumes: ManagedVolume) -> str:
    """Get a workload running with these volumes; return its node."""
    await fleet.apply(spec(managed_volumes=volumes))
    await fleet.cycle()
    first = (await fleet.status()).node_id
    await fleet.report(first)
    return first


async def attached(fleet: World) -> list[str]:
    """Return where the volumes are attached; none of it dangles."""
    assert await find_dangling(fleet.store) == []
    return sorted(key.split("/")[0] for key in await records(fleet.etcd, ATTACHMENTS))


def other(node_id: str) -> str:
    """Return the other node."""
    return "n-2" if node_id == "n-1" else "n-1"


async def test_scenario_V1_a_single_writer_moves_when_its_node_has_provably_ended_it(fleet: World) -> None:
    """Not before; the claim moves in the same transaction, and the volume is never attached twice."""
    first = await running(fleet, ONCE)
    assert fleet.fakes[first].applied[-1].exclusive
    await fleet.lose(first)
    await fleet.cycle()
    assert (await attached(fleet), (await fleet.status()).node_id) == ([first], first)
    fleet.clock.forward(60)
    fleet.pulses.beat(other(first))
    await fleet.cycle()
    assert (await attached(fleet), (await fleet.status()).node_id) == ([other(first)], other(first))
    assert fleet.copies("web") == ["n-1", "n-2"]  # the fake agent does not stop by itself; the claim is what counts


async def test_scenario_V1_an_operator_can_force_it_while_the_node_is_down(fleet: World) -> None:
    """By vouching that the node is off."""
    first = await running(fleet, ONCE)
    await fleet.lose(first)
    await fence_node(fleet.store, first, "power is cut", force=False, now=fleet.clock())
    await fleet.cycle()
    assert (await attached(fleet), (await fleet.status()).node_id) == ([other(first)], other(first))


async def test_F64_a_single_writer_leaves_a_drained_node_before_it_is_attached_elsewhere(fleet: World) -> None:
    """The agent has confirmed the end of the copy when the claim goes."""
    first = await running(fleet, ONCE)
    await intent.drain(fleet.store, first, Wish(), DrainJob(), total=1, now=fleet.clock())
    for _ in range(3):
        await fleet.cycle()
        assert len(await attached(fleet)) <= 1
    assert (await attached(fleet), fleet.copies("web")) == ([other(first)], [other(first)])


async def test_scenario_V3_a_failed_attach_leaves_no_claim_and_is_tried_again(fleet: World) -> None:
    """The next order claims the volume anew, and the copy runs."""
    first = await running(fleet, ONCE)
    fake = fleet.fakes[first]
    fake.crash("web", FAILED, "no such target")
    fake.copies["web"].metadata["failure_reason"] = "STORAGE_ATTACH_FAILED"
    await fleet.report(first)
    assert await attached(fleet) == []
    fleet.clock.forward(3600)
    fleet.pulses.beat("n-1", "n-2")
    await fleet.cycle()
    assert (await attached(fleet), fleet.copies("web")) == ([first], [first])


async def test_F81_a_deleted_workload_leaves_nothing(fleet: World) -> None:
    """Neither claim nor record, once its agent has confirmed."""
    await running(fleet, ONCE, HERE)
    await fleet.delete("web")
    await fleet.cycle()
    assert await attached(fleet) == []
    assert await records(fleet.etcd, VOLUMES) == {}


async def test_9_10_a_new_revision_reaches_the_agent_with_its_volumes(fleet: World) -> None:
    """Each time, and not only the first."""
    first = await running(fleet, ONCE)
    await fleet.apply(spec(managed_volumes=(ONCE, HERE), image="b"))
    await fleet.wake("web")
    sent = fleet.fakes[first].applied[-1].spec.container.managed_volumes
    assert [(v.name, v.volume_id) for v in sent] == [("data", "nfs:data"), ("here", "local:here")]
    await fleet.report(first)
    assert await attached(fleet) == [first, first]
