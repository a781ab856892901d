"""Draining nodes with real agents' gRPC servers: what moves, when, and what users see of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
import pytest

from scheduler.domain.ledger import left_by
from scheduler.domain.node import Drain, DrainJob, Node, Taint
from scheduler.domain.workload import Actual
from scheduler.loops.drain_turns import MAX_TRIED
from scheduler.store import intent
from scheduler.store.intent import Wish
from scheduler.store.keys import LEDGERS, NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register
from scheduler.store.workloads import set_desired
from tests.support.fake_agent import PENDING, RUNNING
from tests.support.loop_world import World, world
from tests.support.placement import spec

EXCLUSIVE = {"fleetbeat.exclusive": "true"}
PINNED = {"persys.scheduling.persistence_class": "node-local"}


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Three nodes, our own agents."""
    async with world() as this:
        for node_id in ("n-1", "n-2", "n-3"):
            await this.add_node(node_id)
        yield this


async def running(fleet: World, *names: str, node_id: str = "n-1", **fields: Any) -> None:
    """Get workloads running on one node, and reported."""
    others = [n for n in fleet.fakes if n != node_id]
    for other in others:
        await intent.set_schedulable(fleet.store, other, schedulable=False)
    for name in names:
        await fleet.apply(spec(name, **fields))
    await fleet.cycle()
    await fleet.report(node_id)
    for other in others:
        await intent.set_schedulable(fleet.store, other, schedulable=True)
    assert set(names) <= at(fleet, node_id)


def at(fleet: World, node_id: str = "n-1") -> set[str]:
    """Return what runs on a node."""
    return set(fleet.fakes[node_id].running())


async def drain(fleet: World, node_id: str = "n-1", **wish: object) -> None:
    """Ask for a drain, as a front does."""
    await intent.drain(fleet.store, node_id, Wish(**wish), DrainJob(), total=0, now=fleet.clock())  # type: ignore[arg-type]


async def node(fleet: World, node_id: str = "n-1") -> Node:
    """Read a node."""
    record = (await fleet.store.get(NODES, node_id)).record
    assert record
    return record


async def idle_cycle(fleet: World) -> None:
    """Run a cycle that makes no call, neither to etcd nor to an agent."""
    await fleet.settle()
    assert isinstance(fleet.etcd, MemoryEtcd)
    before = fleet.agent_calls, fleet.etcd.calls
    await fleet.cycle()
    assert (fleet.agent_calls, fleet.etcd.calls) == before


async def under_way(fleet: World, node_id: str = "n-1") -> list[str]:
    """Return who is on the way from a node, by its ledger."""
    ledger = (await fleet.store.get(LEDGERS, node_id)).record
    return ledger.leaving if ledger else []


async def report_all(fleet: World) -> None:
    """Have all rosters recorded."""
    for node_id in fleet.fakes:
        await fleet.report(node_id)


async def cycles(fleet: World, most: int = 12) -> int:
    """Run cycles until the node is drained; return how many it took."""
    for count in range(1, most):
        await fleet.cycle()
        await report_all(fleet)
        if (await node(fleet)).drain == Drain.DRAINED:
            return count
    raise AssertionError(await node(fleet))


async def test_F64_a_drained_node_is_empty_and_everything_runs_elsewhere(fleet: World) -> None:
    """Draining, then Drained, each told once; the copies run on other nodes."""
    await running(fleet, "a", "b", "c")
    await drain(fleet)
    await cycles(fleet)
    assert fleet.copies("a") == [(await fleet.status("a")).node_id]
    assert not fleet.fakes["n-1"].copies
    assert "n-1" not in {(await fleet.status(w)).node_id for w in "abc"}
    assert [e[0] for e in fleet.events].count("NodeDrained") == 1
    assert [e[0] for e in fleet.events].count("Relocated") == 3
    assert not (await fleet.store.get(LEDGERS, "n-1")).record.commitments  # type: ignore[union-attr]
    job = (await node(fleet)).drain_job
    assert job
    assert job.finished_at == fleet.clock()


async def test_F64_the_old_copy_runs_until_the_new_one_does(fleet: World) -> None:
    """No moment without a running copy, however long the new one takes to start."""
    await running(fleet, "web")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet)
    for _ in range(3):
        await fleet.cycle()
        await report_all(fleet)
        assert fleet.copies("web") == ["n-1"]
    new = (await fleet.status("web")).node_id
    assert new != "n-1"
    fleet.fakes[new].copies["web"].actual_state = RUNNING
    await report_all(fleet)
    await fleet.cycle()
    assert fleet.copies("web") == [new]


async def test_F64_a_drain_that_waits_costs_nothing(fleet: World) -> None:
    """While the new copies start, and while nothing fits, a cycle neither reads, writes nor calls."""
    await running(fleet, "a", "b", "c", "d")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet)
    await fleet.cycle()
    await report_all(fleet)
    await fleet.cycle()
    await idle_cycle(fleet)


async def test_F64_no_more_workloads_are_on_their_way_than_allowed(fleet: World) -> None:
    """max_parallel holds, also when every workload is looked at at once; the next ones go when those have arrived."""
    await running(fleet, *"abcdef")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet, max_parallel=2)
    for _ in range(3):
        await fleet.cycle()
        for name in "abcdef":
            await fleet.wake(name)
        assert len(await under_way(fleet)) == 2
    for fake in fleet.fakes.values():
        for copy in fake.copies.values():
            copy.actual_state = RUNNING
        fake.next_state = RUNNING
    await report_all(fleet)
    await cycles(fleet)


async def test_scenario_D4_the_next_ones_wait_until_the_new_copies_are_healthy(fleet: World) -> None:
    """max_parallel=2, min_healthy=10 s: two under way for ten seconds, then the next two."""
    await running(fleet, *"abcd")
    await drain(fleet, max_parallel=2, min_healthy_seconds=10.0)
    for _ in range(3):
        await fleet.cycle()
        await report_all(fleet)
        assert await under_way(fleet) == ["a", "b"]
        assert at(fleet) == set("abcd")
    fleet.clock.forward(10)
    await fleet.cycle()
    await fleet.cycle()
    assert await under_way(fleet) == ["c", "d"]
    assert at(fleet) == set("cd")


async def test_scenario_D1_the_deadline_overrides_health_and_pace(fleet: World) -> None:
    """From the deadline on everything leaves at once and old copies wait for nothing; each is stopped by an order."""
    await running(fleet, *"abcd")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet, max_parallel=1, deadline=fleet.clock() + timedelta(seconds=60))
    await fleet.cycle()
    await fleet.cycle()
    assert at(fleet) == set("abcd")
    fleet.clock.forward(60)
    await fleet.cycle()
    await fleet.cycle()
    assert not fleet.fakes["n-1"].copies
    assert fleet.fakes["n-1"].calls["DeleteWorkload"] == 4
    assert (await node(fleet)).drain == Drain.DRAINED


async def test_F64_an_exclusive_workload_stops_before_it_starts_elsewhere(fleet: World) -> None:
    """Never two copies; the order elsewhere comes after the old node's word."""
    await running(fleet, "vm", metadata=EXCLUSIVE)
    old = fleet.fakes["n-1"]
    old.lingers = 2
    await drain(fleet)
    for _ in range(8):
        await fleet.cycle()
        assert len(fleet.copies("vm")) <= 1
        await report_all(fleet)
    assert fleet.copies("vm") == [(await fleet.status("vm")).node_id] != ["n-1"]
    assert (await node(fleet)).drain == Drain.DRAINED
    assert (await fleet.status("vm")).previous_node == "n-1"


async def test_F64_an_exclusive_workload_is_not_stopped_while_no_node_takes_it(fleet: World) -> None:
    """A target first; without one it runs on, and no budget is used up."""
    await running(fleet, "vm", metadata=EXCLUSIVE)
    for other in ("n-2", "n-3"):
        await intent.set_schedulable(fleet.store, other, schedulable=False)
    await drain(fleet)
    for _ in range(3):
        await idle_cycle(fleet)
    status = await fleet.status("vm")
    assert (fleet.copies("vm"), status.retry.attempts, status.vacating) == (["n-1"], 0, 0)
    await intent.set_schedulable(fleet.store, "n-3", schedulable=True)
    await cycles(fleet)
    assert fleet.copies("vm") == ["n-3"]


async def test_F64_an_exclusive_workload_whose_stop_was_ordered_leaves_although_the_drain_ended(fleet: World) -> None:
    """Its agent takes no order of the old assignment any more; so it is placed anew."""
    await running(fleet, "vm", metadata=EXCLUSIVE)
    old = fleet.fakes["n-1"]
    await drain(fleet)
    old.refuse = (grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
    await fleet.cycle()
    assert (await fleet.status("vm")).vacating
    await intent.undrain(fleet.store, "n-1")
    old.refuse = None
    for _ in range(3):
        await fleet.cycle()
        await report_all(fleet)
    status = await fleet.status("vm")
    assert (fleet.copies("vm"), status.actual) == ([status.node_id], Actual.RUNNING)
    assert await under_way(fleet) == []


async def test_F64_undrained_on_the_way_the_old_copies_still_go(fleet: World) -> None:
    """What has set out arrives; what has not stays."""
    await running(fleet, *"abc")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet, max_parallel=1)
    await fleet.cycle()
    await intent.undrain(fleet.store, "n-1")
    for fake in fleet.fakes.values():
        for copy in fake.copies.values():
            copy.actual_state = RUNNING
    await report_all(fleet)
    await fleet.cycle()
    await fleet.cycle()
    assert at(fleet) == set("bc")
    assert len(fleet.copies("a")) == 1
    assert await under_way(fleet) == []


async def test_F64_pinned_workloads_stay_and_keep_the_node_draining(fleet: World) -> None:
    """Unless the operator says that they do not matter."""
    await running(fleet, "db", metadata=PINNED)
    await running(fleet, "web")
    await drain(fleet)
    for _ in range(4):
        await fleet.cycle()
        await report_all(fleet)
    assert at(fleet) == {"db"}
    assert (await node(fleet)).drain == Drain.DRAINING
    await drain(fleet, ignore_pinned=True)
    await cycles(fleet)
    assert at(fleet) == {"db"}


async def test_F64_stopped_workloads_move_without_waiting_and_deleted_ones_do_not(fleet: World) -> None:
    """There is nothing to start first; what is to be deleted is deleted where it is."""
    await running(fleet, "idle", "gone")
    await set_desired(fleet.store, "idle", "Stopped", now=fleet.clock())
    await fleet.cycle()
    await report_all(fleet)
    await drain(fleet)
    await fleet.delete("gone")
    await cycles(fleet)
    assert (await fleet.status("idle")).node_id != "n-1"
    assert [e[0] for e in fleet.events].count("Relocated") == 1


async def test_F64_a_drain_goes_on_where_it_was_after_everything_restarted() -> None:
    """Another worker with nothing but etcd carries it on."""
    async with world() as first:
        for node_id in ("n-1", "n-2"):
            await first.add_node(node_id)
        await running(first, *"abcd")
        for fake in first.fakes.values():
            fake.next_state = PENDING
        await drain(first, max_parallel=2)
        await first.cycle()
        async with world(first.etcd, agents=first.agents, clock=first.clock, pulses=first.pulses) as second:
            second.fakes.update(first.fakes)
            second.slot = first.slot
            assert len(await under_way(second)) == 2
            for fake in second.fakes.values():
                fake.next_state = RUNNING
                for copy in fake.copies.values():
                    copy.actual_state = RUNNING
            await report_all(second)
            await cycles(second)
            assert at(second, "n-2") == set("abcd")
            second.fakes.clear()


async def test_F5_a_reboot_during_a_drain_does_not_end_it(fleet: World) -> None:
    """Silent, NotReady, registered again: the job and its options are as they were, and it goes on."""
    await running(fleet, *"ab")
    await drain(fleet, max_parallel=1, reason="new kernel")
    job = (await node(fleet)).drain_job
    await fleet.lose("n-1")
    await register(fleet.store, fleet.fakes["n-1"].node(instance_id="i2"), now=fleet.clock())
    after = await node(fleet)
    assert (after.state_shown, after.drain_job) == ("Draining", job)
    await cycles(fleet)


async def test_F53_NoExecute_drives_off_what_does_not_tolerate_it(fleet: World) -> None:
    """Paced like a drain; what tolerates it stays; the node stays Ready."""
    await running(fleet, *"abc")
    await running(fleet, "keeper", metadata={"fleetbeat.tolerations": "power:NoExecute"})
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await intent.add_taint(fleet.store, "n-1", Taint(key="power", effect="NoExecute"))
    await fleet.cycle()
    assert len(await under_way(fleet)) == fleet.ctx.settings.drain_max_parallel
    for _ in range(4):
        for fake in fleet.fakes.values():
            for copy in fake.copies.values():
                copy.actual_state = RUNNING
        await report_all(fleet)
        await fleet.cycle()
    assert at(fleet) == {"keeper"}
    assert (await node(fleet)).state_shown == "Ready"


async def test_F53_NoSchedule_and_a_cordon_drive_nothing_off(fleet: World) -> None:
    """They keep new work away; what is there stays."""
    await running(fleet, "web")
    await intent.add_taint(fleet.store, "n-1", Taint(key="power", effect="NoSchedule"))
    await intent.set_schedulable(fleet.store, "n-1", schedulable=False)
    await idle_cycle(fleet)
    assert fleet.copies("web") == ["n-1"]


async def test_F64_a_crashed_workload_that_waits_for_its_turn_is_started_again(fleet: World) -> None:
    """Waiting is no reason to be left alone."""
    await running(fleet, *"ab")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet, max_parallel=1)
    await fleet.cycle()
    fleet.fakes["n-1"].next_state = RUNNING
    del fleet.fakes["n-1"].copies["b"]
    await fleet.report("n-1")
    await fleet.cycle()
    assert at(fleet) == {"a", "b"}


async def test_F64_the_target_is_lost_before_the_new_copy_runs(fleet: World) -> None:
    """The workload moves on; the copy on the draining node runs all the time."""
    await running(fleet, "web")
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await drain(fleet)
    await fleet.cycle()
    target = (await fleet.status("web")).node_id
    await fleet.lose(target)
    third = ({"n-2", "n-3"} - {target}).pop()
    fleet.fakes[third].next_state = RUNNING
    await fleet.cycle()
    assert (await fleet.status("web")).node_id == third
    assert "n-1" in fleet.copies("web")
    await report_all(fleet)
    await fleet.cycle()
    assert [n for n in fleet.copies("web") if n != target] == [third]
    assert left_by("web") not in (await fleet.store.get(LEDGERS, "n-1")).record.commitments  # type: ignore[union-attr]


async def test_F64_workloads_that_no_node_takes_keep_no_other_from_its_turn(fleet: World) -> None:
    """However many they are, and although only some are asked in each look."""
    stuck = [f"a{n}" for n in range(MAX_TRIED + 6)]
    await running(fleet, *stuck, cpu=0.01, memory=1, metadata={"fleetbeat.node": "n-1"})
    await running(fleet, "web", cpu=0.01, memory=1)
    await drain(fleet)
    for _ in range(4):
        fleet.clock.forward(1)
        await fleet.cycle()
        await report_all(fleet)
    assert at(fleet) == set(stuck)
    assert fleet.copies("web") != ["n-1"]


async def test_scenario_D4_two_nodes_under_drain_stop_no_more_of_one_replica_set_than_one_would(fleet: World) -> None:
    """Exclusive copies of one workload: at most max_parallel of them are down, over all nodes."""
    await fleet.apply(spec("set", metadata=EXCLUSIVE, replicas=6))
    for _ in range(3):
        await fleet.cycle()
        await report_all(fleet)
    assert sum(len(fake.running()) for fake in fleet.fakes.values()) == 6
    assert all(len(at(fleet, n)) == 2 for n in fleet.fakes)
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    for node_id in ("n-1", "n-2"):
        await drain(fleet, node_id, max_parallel=2)
    for _ in range(3):
        await fleet.cycle()
        await report_all(fleet)
        assert sum(len(fake.running()) for fake in fleet.fakes.values()) >= 4
    for _ in range(8):
        for fake in fleet.fakes.values():
            fake.next_state = RUNNING
            for copy in fake.copies.values():
                copy.actual_state = RUNNING
        await report_all(fleet)
        await fleet.cycle()
    assert len(at(fleet, "n-3")) == 6


async def test_a_node_removed_by_force_leaves_its_work_to_the_others(fleet: World) -> None:
    """Placed anew at once; should the node come back, it first removes what it has left over."""
    await running(fleet, "web")
    await fleet.lose("n-1")
    await intent.remove_node(fleet.store, "n-1", force=True)
    await fleet.cycle()
    new = (await fleet.status("web")).node_id
    assert new in ("n-2", "n-3")
    await register(fleet.store, fleet.fakes["n-1"].node(), now=fleet.clock())
    await report_all(fleet)
    await fleet.cycle()
    await fleet.cycle()
    assert fleet.copies("web") == [new]
