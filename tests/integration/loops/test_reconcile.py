"""The reconcile loop with real agents' gRPC servers: what users see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from scheduler.domain.errors import Fenced, StoreUnavailable
from scheduler.domain.shard import FenceRecord
from scheduler.domain.workload import Actual, Desired, Phase
from scheduler.store.keys import ASSIGNMENTS, FENCES, LEDGERS, NODES, SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.workloads import add_tombstone, retry, set_desired
from scheduler.store.write import Ref, View, Write
from tests.support.fake_agent import FAILED, PENDING, RUNNING, STOPPED
from tests.support.loop_world import World, world
from tests.support.placement import check_history, put, spec
from tests.support.waiting import eventually


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Two nodes, our own agents."""
    async with world() as this:
        await this.add_node("n-1")
        await this.add_node("n-2")
        yield this


async def running(fleet: World, workload_id: str = "web") -> str:
    """Get a workload running and reported; return its node."""
    await fleet.apply(spec(workload_id))
    await fleet.cycle()
    node_id = (await fleet.status(workload_id)).node_id
    await fleet.report(node_id)
    return node_id


def other(node_id: str) -> str:
    """Return the other node."""
    return {"n-1": "n-2", "n-2": "n-1"}[node_id]


async def test_F8_a_new_workload_is_placed_and_applied_in_one_cycle(fleet: World) -> None:
    """Pending, Scheduled, Running; the assignment carries the reason, the order the epoch and what was promised."""
    await fleet.apply(spec(image="nginx"))
    assert (await fleet.status()).status == Phase.PENDING
    assert await fleet.cycle() == {"Assign": 1, "ReapplyRunning": 1}
    status = await fleet.status()
    assert (status.status, status.actual) == (Phase.RUNNING, Actual.RUNNING)
    assert fleet.copies() == [status.node_id]
    assignment = await fleet.assignment()
    assert assignment
    assert assignment.reason
    order = fleet.fakes[status.node_id].applied[0]
    assert (order.assignment_epoch, order.resources.cpu_millicores, order.resources.memory_mb) == (
        status.epoch,
        100,
        64,
    )
    assert fleet.events == [("WorkloadScheduled", "web", status.node_id)]


async def test_F44_an_idle_cycle_reads_nothing_writes_nothing_and_calls_nobody(fleet: World) -> None:
    """Any number of workloads as they should be cost no call to etcd and none to agents."""
    for index in range(20):
        await fleet.apply(spec(f"w{index}", cpu=0.01, memory=1))
    await fleet.cycle()
    for node_id in fleet.fakes:
        await fleet.report(node_id)
    assert isinstance(fleet.etcd, MemoryEtcd)
    before = (fleet.etcd.revision, fleet.etcd.calls, fleet.agent_calls)
    assert await fleet.cycle() == {"NoAction": 20}
    assert (fleet.etcd.revision, fleet.etcd.calls, fleet.agent_calls) == before
    assert fleet.pulses.reads == 0


async def test_F13_a_new_revision_reaches_its_node_in_the_next_cycle(fleet: World) -> None:
    """Same node, same epoch; the copy is replaced."""
    node_id = await running(fleet)
    epoch = (await fleet.status()).epoch
    new = await fleet.apply(spec(image="nginx:2"))
    assert (await fleet.status()).status == Phase.UPDATING
    await fleet.cycle()
    assert fleet.fakes[node_id].copies["web"].revision_id == new.revision_id
    status = await fleet.status()
    assert (status.node_id, status.epoch, status.status) == (node_id, epoch, Phase.RUNNING)


async def test_F13_a_bigger_request_is_committed_or_moves_the_workload(fleet: World) -> None:
    """It is told to the ledger; where it does not fit any more, the old copy goes and a new one runs elsewhere."""
    node_id = await running(fleet)
    await fleet.apply(spec(cpu=3.0))
    await fleet.cycle()
    ledger = (await fleet.store.get(LEDGERS, node_id)).record
    assert ledger
    assert ledger.cpu_millicores == 3000
    await fleet.apply(spec("db", cpu=3.0))
    await fleet.cycle()
    await put(fleet.store, NODES, node_id, fleet.fakes[node_id].node(total_cpu=2.0, labels={"zone": "a"}))
    await put(fleet.store, NODES, "n-3", (await fleet.add_node("n-3")).node())
    await fleet.apply(spec(cpu=3.5))
    done = await fleet.cycle()
    assert done["ReschedulePending"] == 1
    assert fleet.copies() == ["n-3"]
    assert await fleet.tombstone(node_id) is None


async def test_F19_a_stop_is_sent_once(fleet: World) -> None:
    """The agent gets one order with STOPPED, no guard is armed, and the next cycles are idle."""
    node_id = await running(fleet)
    await set_desired(fleet.store, "web", Desired.STOPPED, now=fleet.clock())
    assert await fleet.cycle() == {"ApplyStopped": 1}
    assert fleet.copies() == []
    status = await fleet.status()
    assert (status.status, status.reapply.attempts) == (Phase.STOPPED, 0)
    calls = fleet.fakes[node_id].calls["ApplyWorkload"]
    assert await fleet.cycle() == {"NoAction": 1}
    assert fleet.fakes[node_id].calls["ApplyWorkload"] == calls
    await set_desired(fleet.store, "web", Desired.RUNNING, now=fleet.clock())
    await fleet.cycle()
    assert fleet.copies() == [node_id]


@pytest.mark.parametrize("state", [FAILED, STOPPED, None])
async def test_F20_a_dead_copy_is_started_again(fleet: World, state: int | None) -> None:
    """Failed, Stopped or Missing: one order, an event, and the guard's count grows."""
    node_id = await running(fleet)
    fake = fleet.fakes[node_id]
    if state is None:
        del fake.copies["web"]
    else:
        fake.crash("web", state)
    await fleet.report(node_id)
    assert await fleet.cycle() == {"ReapplyRunning": 1}
    assert fleet.copies() == [node_id]
    assert (await fleet.status()).reapply.attempts == 2
    assert ("RetryTriggered", "web", node_id) in fleet.events


async def test_F22_a_crash_loop_follows_the_guard_to_the_second(fleet: World) -> None:
    """Starts at once three times, then after 45, 90, 180 s; deferred cycles write nothing."""
    node_id = await running(fleet)
    fake, started = fleet.fakes[node_id], fleet.clock()
    times = []
    for _ in range(70):
        if fake.copies["web"].actual_state == RUNNING:
            fake.crash("web")
            await fleet.report(node_id)
        fleet.clock.forward(5)
        calls = fake.calls["ApplyWorkload"]
        assert isinstance(fleet.etcd, MemoryEtcd)
        revision = fleet.etcd.revision
        await fleet.cycle()
        if fake.calls["ApplyWorkload"] > calls:
            times.append((fleet.clock() - started).total_seconds())
        else:
            assert fleet.etcd.revision == revision
    assert times == [5, 10, 55, 145, 325]


async def test_F18_retry_sends_the_order_again_at_once(fleet: World) -> None:
    """A guard that holds is lifted."""
    node_id = await running(fleet)
    for _ in range(3):
        fleet.fakes[node_id].crash("web")
        await fleet.report(node_id)
        done = await fleet.cycle()
    assert done == {"ReapplyBackoffWait": 1}
    await retry(fleet.store, "web", now=fleet.clock())
    await fleet.cycle()
    assert fleet.copies() == [node_id]


async def test_F15_a_delete_reaches_the_agent_and_removes_every_record(fleet: World) -> None:
    """Deleting, the agent is told once, then spec, status, assignment and commitment are gone together."""
    node_id = await running(fleet)
    await fleet.delete("web")
    assert (await fleet.status()).status == Phase.DELETING
    assert await fleet.cycle() == {"FinalizeDelete": 1}
    assert fleet.fakes[node_id].calls["DeleteWorkload"] == 1
    assert fleet.copies() == []
    for table in (SPECS, STATUSES, ASSIGNMENTS):
        assert not await fleet.exists(table, "web")
    ledger = (await fleet.store.get(LEDGERS, node_id)).record
    assert ledger
    assert ledger.commitments == {}
    assert await fleet.cycle() == {}


async def test_F15_the_records_stay_until_the_copy_is_gone() -> None:
    """An agent that takes long keeps the workload Deleting; the next cycle looks again."""
    async with world(timeout_seconds=0.4) as fleet:
        fake = await fleet.add_node("n-1")
        await running(fleet)
        fake.lingers = 10_000
        await fleet.delete("web")
        assert await fleet.cycle() == {"Delete": 1}
        assert (await fleet.status()).status == Phase.DELETING
        fake.lingers = 1
        assert await fleet.cycle() == {"FinalizeDelete": 1}
        assert not await fleet.exists(SPECS, "web")


async def test_F17_an_unassigned_workload_is_deleted_in_one_cycle() -> None:
    """No node, no agent: the records go."""
    async with world() as fleet:
        await fleet.apply(spec())
        assert await fleet.cycle() == {"Assign_failed": 1}
        await fleet.delete("web")
        assert await fleet.cycle() == {"FinalizeDelete": 1}
        assert not await fleet.exists(SPECS, "web")


async def test_F11_a_workload_that_fits_nowhere_waits_without_writing() -> None:
    """The reason is stored once; the cycles after that write nothing; a node that fits gets it."""
    async with world() as fleet:
        await fleet.add_node("n-1", total_cpu=1.0)
        await fleet.apply(spec(cpu=2.0))
        await fleet.cycle()
        assert "cpu_insufficient" in (await fleet.status()).pending_reason
        status = (await fleet.store.get(STATUSES, "web")).mod_revision
        for _ in range(3):
            await fleet.cycle()
        assert (await fleet.store.get(STATUSES, "web")).mod_revision == status
        await fleet.add_node("n-2")
        await fleet.cycle()
        assert fleet.copies() == ["n-2"]


async def test_F32_the_work_of_a_lost_node_moves_after_the_grace(fleet: World) -> None:
    """It runs elsewhere under a newer epoch, previous_node says from where, and the old node owes the removal."""
    old = await running(fleet)
    before = await fleet.status()
    await fleet.fakes[old].stop()
    await fleet.lose(old)
    assert await fleet.cycle() == {"Reschedule": 1, "ReapplyRunning": 1}
    status = await fleet.status()
    assert (status.node_id, status.previous_node, status.retry.attempts) == (other(old), old, 0)
    assert status.epoch > before.epoch
    owed = await fleet.tombstone(old)
    assert owed
    assert owed.epoch == before.epoch
    assert ("Rescheduled", "web", other(old)) in fleet.events
    await check_history(fleet.etcd)


async def test_F32_nothing_moves_within_the_grace(fleet: World) -> None:
    """A node that is NotReady for less than the grace keeps its work, and no agent is called."""
    old = await running(fleet)
    await fleet.lose(old)
    fleet.clock.forward(-1)
    calls = fleet.agent_calls
    assert await fleet.cycle() == {"AwaitFailover": 1}
    assert (await fleet.status()).node_id == old
    assert fleet.agent_calls == calls


async def test_scenario_L8_silence_that_nobody_listened_to_moves_nothing(fleet: World) -> None:
    """A node marked before all fronts were away is not lost: its silence since then is not confirmed."""
    old = await running(fleet)
    await fleet.lose(old)
    fleet.pulses.front_since = fleet.clock().timestamp() - 7.5
    assert await fleet.cycle() == {"AwaitFailover": 1}
    fleet.pulses.front_since = fleet.clock().timestamp() - 8
    assert (await fleet.cycle())["Reschedule"] == 1


async def test_scenario_L8_without_telemetry_nothing_moves(fleet: World) -> None:
    """When Redis does not answer, nobody can be proven silent."""
    old = await running(fleet)
    await fleet.lose(old)
    fleet.pulses.away = True
    assert await fleet.cycle() == {"AwaitFailover": 1}
    assert (await fleet.status()).node_id == old


async def test_scenario_L14_the_brake_holds_all_moves() -> None:
    """Three of four nodes silent at once: nothing moves, nothing is stopped; deletes still end."""
    async with world() as fleet:
        for index in range(4):
            await fleet.add_node(f"n-{index}")
        for index in range(4):
            await running(fleet, f"w{index}")
        homes = {f"w{i}": (await fleet.status(f"w{i}")).node_id for i in range(4)}
        assert len(set(homes.values())) == 4
        for node_id in ("n-1", "n-2"):
            await fleet.lose(node_id)
            fleet.clock.forward(-8)
        await fleet.lose("n-3")
        for node_id in ("n-1", "n-2", "n-3"):
            fleet.pulses.heard[node_id] = 0.0
        assert await fleet.cycle() == {"AwaitFailover": 3, "NoAction": 1}
        assert {f"w{i}": (await fleet.status(f"w{i}")).node_id for i in range(4)} == homes
        victim = next(w for w, n in homes.items() if n == "n-1")
        await fleet.delete(victim)
        assert (await fleet.cycle())["FinalizeDelete"] == 1
        await fleet.come_back("n-3")
        assert (await fleet.cycle()).get("Reschedule") == 1


async def test_scenario_L1_a_node_that_comes_back_before_its_work_found_a_place_keeps_it() -> None:
    """With nowhere to go the workload stays assigned; when its node heals the original is kept, and only that."""
    async with world() as fleet:
        fake = await fleet.add_node("n-1")
        await running(fleet)
        before = await fleet.status()
        await fleet.lose("n-1")
        assert await fleet.cycle() == {"AwaitFailover_failed": 1}
        assert (await fleet.status()).node_id == "n-1"
        await fleet.come_back("n-1")
        await fleet.add_node("n-2")
        assert await fleet.cycle() == {"NoAction": 1}
        assert (await fleet.status()).epoch == before.epoch
        assert fleet.copies() == ["n-1"]
        assert fake.calls["ApplyWorkload"] == 1


async def test_9_3_a_node_that_comes_back_gives_up_the_copy_it_owes(fleet: World) -> None:
    """The old copy is removed by its epoch, the tombstone goes, and one copy is left."""
    old = await running(fleet)
    await fleet.lose(old)
    await fleet.cycle()
    assert fleet.copies() == ["n-1", "n-2"]
    await fleet.come_back(old)
    assert (await fleet.cycle())["Delete"] == 1
    assert fleet.copies() == [other(old)]
    assert await fleet.tombstone(old) is None
    assert await fleet.cycle() == {"NoAction": 1}


async def test_9_3_a_tombstone_never_hits_a_newer_copy_on_the_same_node(fleet: World) -> None:
    """The workload came back to the node that owed its removal: the newer assignment takes the old copy over."""
    old = await running(fleet)
    status = await fleet.status()
    await add_tombstone(fleet.store, old, "web", status.epoch - 1, now=fleet.clock())
    assert (await fleet.cycle())["Delete"] == 1
    assert await fleet.tombstone(old) is None
    assert fleet.copies() == [old]
    assert fleet.fakes[old].calls["DeleteWorkload"] == 0


async def test_9_3_a_node_with_a_newer_copy_than_it_owes_settles_the_tombstone(fleet: World) -> None:
    """The agent refuses the older epoch, which is as good as done."""
    await add_tombstone(fleet.store, "n-1", "web", 5, now=fleet.clock())
    await fleet.agents.apply(fleet.fakes["n-1"].node(), spec(revision_id="r"), desired="Running", epoch=9)
    assert (await fleet.cycle())["Delete"] == 1
    assert await fleet.tombstone("n-1") is None
    assert fleet.copies() == ["n-1"]


async def test_F16_a_delete_on_a_lost_node_completes_and_is_enforced_on_return(fleet: World) -> None:
    """The records go after the grace; the node owes the removal and does it when it is back."""
    old = await running(fleet)
    await fleet.lose(old)
    await fleet.delete("web")
    assert await fleet.cycle() == {"FinalizeDelete": 1}
    assert not await fleet.exists(SPECS, "web")
    assert fleet.copies() == [old]
    await fleet.come_back(old)
    await fleet.cycle()
    assert fleet.copies() == []
    assert await fleet.tombstone(old) is None


async def test_9_20_a_workload_whose_node_record_is_gone_is_placed_anew(fleet: World) -> None:
    """It is found although no node's look covers it."""
    old = await running(fleet)
    await fleet.store.transact([Ref(NODES, old)], _deletion(old))
    assert (await fleet.cycle())["Reschedule"] == 1
    assert (await fleet.status()).node_id == other(old)
    await fleet.delete("web")
    await fleet.store.transact([Ref(NODES, other(old))], _deletion(other(old)))
    assert (await fleet.cycle())["FinalizeDelete"] == 1


def _deletion(node_id: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a decision
    def decide(_view: View) -> Write[None]:
        write: Write[None] = Write(None)
        write.delete(NODES, node_id)
        return write

    return decide


async def test_F75_the_channel_of_a_node_that_is_gone_is_closed(fleet: World) -> None:
    """The pool does not keep what nobody will call any more."""
    node_id = await running(fleet)
    assert fleet.agents.open_channels == 1
    await fleet.store.transact([Ref(NODES, node_id)], _deletion(node_id))
    await fleet.settle()
    assert fleet.agents.open_channels == 0


async def test_scenario_R5_an_agent_that_cannot_be_reached_uses_up_nothing(fleet: World) -> None:
    """The workload shows why, once; attempts and guard stay; it is applied when the agent answers."""
    for fake in fleet.fakes.values():
        fake.refuse = (grpc.StatusCode.UNAVAILABLE, "gone")
    await fleet.apply(spec())
    assert await fleet.cycle() == {"Assign": 1, "ReapplyRunning_failed": 1}
    status = await fleet.status()
    assert (status.retry.attempts, status.reapply.attempts) == (0, 0)
    assert status.status_info.reason
    assert status.status_info.reason.code == "AGENT_UNREACHABLE"
    revision = (await fleet.store.get(STATUSES, "web")).mod_revision
    await fleet.cycle()
    assert (await fleet.store.get(STATUSES, "web")).mod_revision == revision
    fake = fleet.fakes[status.node_id]
    fake.refuse = None
    fleet.agents.drop(status.node_id)
    await fleet.cycle()
    assert fleet.copies() == [status.node_id]
    assert (await fleet.status()).status_info.reason is None


async def test_F24_an_agent_that_refuses_is_asked_more_and_more_seldom(fleet: World) -> None:
    """Refusals at 0, 5 s, 10 s … and a delete does not wait for them."""
    for fake in fleet.fakes.values():
        fake.refuse = (grpc.StatusCode.INTERNAL, "cannot")
    await fleet.apply(spec())
    await fleet.cycle()
    node_id = (await fleet.status()).node_id
    fake = fleet.fakes[node_id]
    times = [0]
    for second in range(1, 80):
        fleet.clock.forward(1)
        calls = fake.calls["ApplyWorkload"]
        await fleet.cycle()
        if fake.calls["ApplyWorkload"] > calls:
            times.append(second)
    assert times == [0, 1, 2, 7, 17, 37, 77]
    assert (await fleet.status()).status == Phase.RETRY_PENDING
    fake.refuse = None
    await fleet.delete("web")
    assert (await fleet.cycle())["FinalizeDelete"] == 1


async def test_9_20_a_copy_that_stays_pending_is_asked_for_and_ordered_again(fleet: World) -> None:
    """A lost order is repeated after a minute, not in every cycle; the state at the agent is taken over."""
    for fake in fleet.fakes.values():
        fake.next_state = PENDING
    await fleet.apply(spec())
    await fleet.cycle()
    fake = fleet.fakes[(await fleet.status()).node_id]
    fleet.clock.forward(59)
    assert await fleet.cycle() == {"NoAction": 1}
    fleet.clock.forward(1)
    await fleet.cycle()
    assert (fake.calls["GetWorkloadStatus"], fake.calls["ApplyWorkload"]) == (1, 2)
    fleet.clock.forward(5)
    assert await fleet.cycle() == {"NoAction": 1}
    fake.crash("web", RUNNING, "up")
    fleet.clock.forward(60)
    assert (await fleet.cycle()) == {"Investigate": 1}
    assert (await fleet.status()).status == Phase.RUNNING
    assert fake.calls["ApplyWorkload"] == 2


async def test_F47_one_failing_workload_stops_no_other(fleet: World) -> None:
    """A record that etcd will not take, or a defect, costs only its own workload."""
    for name in ("a", "b", "c"):
        await fleet.apply(spec(name))
    place = fleet.ctx.placer.place

    async def fail_for_b(workload_id: str, **options: object) -> object:
        if workload_id == "b":
            raise RuntimeError("a defect")
        return await place(workload_id, **options)  # type: ignore[arg-type]

    fleet.ctx.placer.place = fail_for_b  # type: ignore[method-assign, assignment]
    done = await fleet.cycle()
    assert done == {"Assign": 2, "ReapplyRunning": 2, "error": 1}


async def test_E3_an_etcd_that_does_not_answer_ends_the_cycle(fleet: World) -> None:
    """No workload is tried against a store that is away."""
    await fleet.apply(spec())
    await fleet.settle()
    assert isinstance(fleet.etcd, MemoryEtcd)
    fleet.etcd.mishap = lambda call: Mishap.UNAVAILABLE if call != "watch" else None
    with pytest.raises(StoreUnavailable):
        await fleet.cycle()
    fleet.etcd.mishap = lambda _call: None


async def test_scenario_E4_a_cycle_that_was_overtaken_orders_nothing(fleet: World) -> None:
    """A newer cycle has begun to write: the older one stops before it calls an agent."""
    await fleet.apply(spec())
    await put(fleet.store, FENCES, "0/reconcile", FenceRecord(term=2, slot=1))
    with pytest.raises(Fenced):
        await fleet.cycle()
    assert fleet.agent_calls == 0
    assert (await fleet.status()).node_id == ""


async def test_F8_a_wake_up_places_and_applies_at_once(fleet: World) -> None:
    """It does not wait for the worker's cache to hear of the workload."""
    await fleet.apply(spec())
    assert await fleet.wake("web") == "Assign ReapplyRunning"
    assert len(fleet.copies()) == 1
    assert await fleet.wake("web") == "NoAction"
    assert await fleet.wake("nope") == "NoAction"


async def test_F16_a_wake_up_carries_out_what_is_owed(fleet: World) -> None:
    """A front that found a leftover copy has it removed without waiting for the cycle."""
    node_id = await running(fleet)
    stray = other(node_id)
    await fleet.agents.apply(fleet.fakes[stray].node(), spec(revision_id="r"), desired="Running", epoch=1)
    await fleet.report(stray)
    await fleet.settle()
    assert await fleet.wake("web") == "Delete NoAction"
    assert fleet.copies() == [node_id]


async def test_5_a_workload_placed_into_another_shard_is_handed_on() -> None:
    """Each shard drives its own nodes: the one that placed it wakes the one that has it."""
    async with world(shards=8) as fleet:
        await fleet.add_node("n-1")
        await fleet.apply(spec())
        done = [await fleet.cycle(shard=shard) for shard in range(8)]
        assert sum(one.get("Assign", 0) for one in done) == 1
        status = await fleet.status()
        if fleet.woken:
            assert fleet.woken == [("web", "n-1")]
            assert status.node_id == "n-1"
        for shard in range(8):
            await fleet.cycle(shard=shard)
        assert fleet.copies() == ["n-1"]
        assert fleet.fakes["n-1"].calls["ApplyWorkload"] == 1


async def test_F89_results_are_counted_by_the_reference_systems_names(fleet: World) -> None:
    """Action and success of each step reach the metric."""
    await fleet.apply(spec())
    await fleet.cycle()
    assert fleet.results == [("Assign", True), ("ReapplyRunning", True)]


async def test_F47_many_workloads_on_many_nodes_run_within_the_bounds() -> None:
    """No agent has more than four calls at a time, and everything runs after one cycle."""
    async with world() as fleet:
        for index in range(6):
            await fleet.add_node(f"n-{index}")
        for index in range(60):
            await fleet.apply(spec(f"w{index}", cpu=0.05, memory=16))
        await fleet.cycle()
        assert sum(len(fake.running()) for fake in fleet.fakes.values()) == 60
        assert max(fake.in_flight_max for fake in fleet.fakes.values()) <= 4
        await asyncio.sleep(0)


async def test_scenario_C23_an_update_counts_for_nothing_against_the_node_it_runs_on(fleet: World) -> None:
    """Content, size and policies change without a failure: same node, same assignment, no wait, nothing owed."""
    node_id = await running(fleet)
    epoch = (await fleet.status()).epoch
    for round_number in range(6):  # more often than the guard against crash loops lets a copy be started
        await fleet.apply(spec(image=f"nginx:{round_number}", cpu=0.1 + round_number / 10))
        assert await fleet.cycle() == {"ReapplyRunning": 1}
        await fleet.report(node_id)
        status = await fleet.status()
        assert (status.node_id, status.epoch, status.status) == (node_id, epoch, Phase.RUNNING)
    assert await fleet.tombstone(node_id) is None
    scores = [fleet.ctx.placer.score_on(spec("twin"), each) for each in (node_id, other(node_id))]
    await fleet.apply(spec(image="nginx:last", cpu=0.6))
    await fleet.cycle()
    assert [fleet.ctx.placer.score_on(spec("twin"), each) for each in (node_id, other(node_id))] == scores


async def test_scenario_C19_only_so_many_copies_start_at_once_on_a_node(fleet: World) -> None:
    """A node that is slow to start them is given no further ones, and holds up no other node."""
    ids = [f"w{number}" for number in range(30)]
    for workload_id in ids:
        await fleet.apply(spec(workload_id, cpu=0.01, memory=1))
    slow, quick = fleet.fakes["n-1"], fleet.fakes["n-2"]
    limit = fleet.ctx.settings.calls_per_node
    slow.gate.clear()
    cycle = asyncio.create_task(fleet.cycle())
    await eventually(lambda: slow.in_flight == limit and len(quick.running()) > limit)
    slow.gate.set()
    await cycle
    assert slow.in_flight_max == limit
    assert len(slow.running()) + len(quick.running()) == len(ids)
