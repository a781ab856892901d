"""Copies of a workload by the reconcile loop, with agents that really answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from scheduler.domain.workload import Desired
from scheduler.loops.replicas import keep_copies
from scheduler.store.etcd import Etcd
from scheduler.store.keys import LEDGERS, SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.replicas import scale
from scheduler.store.workloads import finalize_delete, set_desired
from tests.support.fake_agent import FAILED, RUNNING
from tests.support.loop_world import World, world
from tests.support.placement import spec
from tests.support.servers import Server


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Three nodes."""
    async with world() as this:
        for node_id in ("n-1", "n-2", "n-3"):
            await this.add_node(node_id)
        yield this


async def turn(fleet: World, times: int = 3) -> None:
    """Run some cycles."""
    for _ in range(times):
        await fleet.cycle()


def where(fleet: World) -> dict[str, str]:
    """Return the node of each copy that runs; no copy runs twice."""
    found = [(w, n) for n, fake in fleet.fakes.items() for w in fake.running()]
    assert len(found) == len(dict(found)), found
    return dict(found)


def spread(fleet: World) -> list[int]:
    """Return how many copies the nodes have, the most first."""
    return sorted(Counter(where(fleet).values()).values(), reverse=True)


async def test_F87_a_workload_is_scaled_up_and_down_and_deleted(fleet: World) -> None:
    """1, 5, 2, gone: copies spread over the nodes, and nothing is left of them."""
    await fleet.apply(spec(image="nginx"))
    await turn(fleet, 1)
    await scale(fleet.store, "web", 5, now=fleet.clock())
    await turn(fleet)
    assert sorted(where(fleet)) == ["web", "web.2", "web.3", "web.4", "web.5"]
    assert spread(fleet) == [2, 2, 1]
    applied = sum(len(fake.applied) for fake in fleet.fakes.values())
    await turn(fleet)
    assert sum(len(fake.applied) for fake in fleet.fakes.values()) == applied
    await scale(fleet.store, "web", 2, now=fleet.clock())
    await turn(fleet)
    assert sorted(where(fleet)) == ["web", "web.2"]
    assert spread(fleet) == [1, 1]
    await fleet.delete("web")
    await turn(fleet)
    assert where(fleet) == {}
    assert not fleet.cache.all(SPECS)
    assert not fleet.cache.all(STATUSES)


async def test_F87_copies_get_a_new_spec_and_stop_and_start_with_their_workload(fleet: World) -> None:
    """All of them."""
    await fleet.apply(spec(image="nginx:1", replicas=3))
    await turn(fleet)
    await fleet.apply(spec(image="nginx:2", replicas=0))
    await turn(fleet)
    images = {order.id: order.spec.container.image for fake in fleet.fakes.values() for order in fake.applied}
    assert images == dict.fromkeys(("web", "web.2", "web.3"), "nginx:2")
    for desired, count in ((Desired.STOPPED, 0), (Desired.RUNNING, 3)):
        await set_desired(fleet.store, "web", desired, now=fleet.clock())
        await turn(fleet)
        assert len(where(fleet)) == count


async def test_F87_a_new_version_that_does_not_start_leaves_the_other_copies_alone(fleet: World) -> None:
    """It goes to one copy at a time, and no further when that fails; waiting costs nothing."""
    await fleet.apply(spec(image="nginx:1", replicas=4))
    await turn(fleet)
    for fake in fleet.fakes.values():
        fake.next_state = FAILED
    await fleet.apply(spec(image="nginx:bad", replicas=0))
    await turn(fleet, 6)
    assert sorted(where(fleet)) == ["web.2", "web.3", "web.4"]
    for fake in fleet.fakes.values():
        fake.next_state = RUNNING
    await fleet.apply(spec(image="nginx:2", replicas=0))
    seen = []
    for _ in range(8):
        await fleet.cycle()
        seen.append(len(where(fleet)))
    assert min(seen) >= 3
    images = {order.id: order.spec.container.image for fake in fleet.fakes.values() for order in fake.applied}
    assert images == dict.fromkeys(("web", "web.2", "web.3", "web.4"), "nginx:2")


async def test_F87_an_idle_cycle_over_copies_reads_and_writes_nothing() -> None:
    """The economy of design 1.5 holds for sets as well."""
    etcd = MemoryEtcd()
    async with world(etcd) as fleet:
        await fleet.add_node("n-1")
        await fleet.apply(spec(image="nginx", replicas=4))
        await turn(fleet)
        await fleet.report("n-1")
        await turn(fleet)
        calls, agent_calls = etcd.calls, fleet.agent_calls
        assert set(await fleet.cycle()) == {"NoAction"}
        assert (etcd.calls, fleet.agent_calls) == (calls, agent_calls)
    await etcd.close()


async def test_F87_a_number_that_is_wanted_again_is_taken_when_the_old_copy_is_gone(fleet: World) -> None:
    """A deletion is never taken back; the new copy has a higher epoch, and comes without waiting for a cycle."""
    await fleet.apply(spec(image="nginx", replicas=2))
    await turn(fleet)
    old = await fleet.status("web.2")
    await scale(fleet.store, "web", 1, now=fleet.clock())
    await fleet.settle()
    assert await keep_copies(fleet.ctx, "web", fleet.guards) == 1
    await scale(fleet.store, "web", 2, now=fleet.clock())
    await fleet.settle()
    assert await keep_copies(fleet.ctx, "web", fleet.guards) == 0
    fleet.woken.clear()
    await fleet.wake("web.2")
    assert ("web", (await fleet.status("web")).node_id) in fleet.woken
    await fleet.settle()
    await fleet.wake("web")
    await turn(fleet, 2)
    assert (await fleet.status("web.2")).epoch > old.epoch
    assert sorted(where(fleet)) == ["web", "web.2"]


async def test_F87_the_records_of_a_workload_stay_until_its_copies_are_marked(fleet: World) -> None:
    """So a process that dies in between leaves nothing that nobody removes."""
    await fleet.apply(spec(image="nginx", replicas=3))
    await turn(fleet)
    await fleet.delete("web")
    await fleet.settle()
    assert "FinalizeDelete" in await fleet.wake("web")
    for copy in ("web.2", "web.3"):
        record = (await fleet.store.get(SPECS, copy)).record
        assert record
        assert record.desired_state == Desired.DELETED
    await turn(fleet)
    assert where(fleet) == {}


async def test_F87_copies_that_were_left_behind_are_removed(fleet: World) -> None:
    """However their workload went."""
    await fleet.apply(spec(image="nginx", replicas=3))
    await turn(fleet)
    await fleet.delete("web")
    await finalize_delete(fleet.store, "web", tombstone=True, now=fleet.clock())
    await turn(fleet)
    assert where(fleet) == {}
    assert not fleet.cache.all(SPECS)


@pytest.mark.parametrize("shards", [1, 3])
async def test_F87_each_set_is_kept_by_one_shard(shards: int) -> None:
    """Also those whose workload has no node, and with copies on nodes of other shards."""
    async with world(shards=shards) as fleet:
        for index in range(4):
            await fleet.add_node(f"n-{index}")
        for name in ("a", "b", "c"):
            await fleet.apply(spec(name, image="nginx", replicas=3))
        for _ in range(3):
            done = [await fleet.cycle(shard=shard) for shard in range(shards)]
        assert sum(tally.get("Replicas", 0) for tally in done) == 0
        expected = [f"{name}{tail}" for name in ("a", "b", "c") for tail in ("", ".2", ".3")]
        assert sorted(where(fleet)) == expected


async def test_F87_scenario_C4_copies_with_a_group_are_all_on_different_nodes(fleet: World) -> None:
    """The fourth of three nodes waits and says why."""
    await fleet.apply(spec(image="nginx", replicas=4, metadata={"fleetbeat.anti_affinity": "web"}))
    await turn(fleet)
    assert spread(fleet) == [1, 1, 1]
    waiting = [s for w in ("web", "web.2", "web.3", "web.4") if not (s := await fleet.status(w)).node_id]
    assert len(waiting) == 1
    assert "anti_affinity" in waiting[0].pending_reason


async def test_F87_copies_on_a_real_etcd(etcd_server: Server, etcd_prefix: str) -> None:
    """Forty copies on two nodes, then one."""
    etcd: Any = Etcd([etcd_server.address], prefix=etcd_prefix)
    async with world(etcd) as fleet:
        await fleet.add_node("n-1", total_cpu=16.0, total_memory=16_384)
        await fleet.add_node("n-2", total_cpu=16.0, total_memory=16_384)
        await fleet.apply(spec(image="nginx", replicas=40))
        await turn(fleet)
        assert len(where(fleet)) == 40
        assert spread(fleet) == [20, 20]
        await scale(fleet.store, "web", 1, now=fleet.clock())
        await turn(fleet)
        assert list(where(fleet)) == ["web"]
    await etcd.close()


async def test_scenario_C4_a_group_that_is_set_later_parts_those_who_share_a_node(fleet: World) -> None:
    """One of the two moves; where nothing of the group is, a copy stays and is not started again."""
    for name in ("a", "b", "c", "d"):
        await fleet.apply(spec(name, image="nginx"))
    await turn(fleet)
    assert spread(fleet) == [2, 1, 1]
    before = where(fleet)
    for name in ("a", "b", "c"):
        await fleet.apply(spec(name, image="nginx", metadata={"fleetbeat.anti_affinity": "g"}))
    await turn(fleet, 5)
    after = where(fleet)
    assert sorted(after) == ["a", "b", "c", "d"]
    assert len({after[name] for name in ("a", "b", "c")}) == 3
    moved = [name for name in after if after[name] != before[name]]
    assert len(moved) <= 1


async def test_F87_the_first_copy_counts_as_one_of_its_set_once_there_are_more(fleet: World) -> None:
    """Its commitment says so, and the others keep away from its node."""
    await fleet.apply(spec(image="nginx"))
    await turn(fleet)
    first = (await fleet.status()).node_id
    await scale(fleet.store, "web", 2, now=fleet.clock())
    await turn(fleet)
    ledger = (await fleet.store.get(LEDGERS, first)).record
    assert ledger
    assert ledger.commitments["web"].replica_set == "web"
    assert (await fleet.status("web.2")).node_id != first
