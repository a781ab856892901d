"""Lost nodes and their return, with real agents' gRPC servers: who moves, who stays, which copy survives."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from scheduler.domain.brake import BrakeRelease
from scheduler.domain.event import EventType
from scheduler.domain.node import Health
from scheduler.domain.policy import PINNED_REASON_KEY
from scheduler.domain.workload import Actual, Phase, WorkloadStatus
from scheduler.store.fences import fence_node, release_brake
from scheduler.store.keys import BRAKES, LEDGERS, NODES, STATUSES
from scheduler.store.nodes import set_health
from tests.support.loop_world import World, world
from tests.support.placement import check_history, put, spec

BUSY = (grpc.StatusCode.FAILED_PRECONDITION, "takes no orders now")


@pytest.fixture
async def fleet() -> AsyncIterator[World]:
    """Two nodes, our own agents, which enforce stop_after; 10 s of it."""
    async with world(exclusive_stop_after_seconds=10.0, orphan_after_seconds=1000.0) as this:
        for node_id in ("n-1", "n-2"):
            await this.add_node(node_id, enforces_stop_after=True)
        yield this


async def running(fleet: World, workload_id: str = "web", *, cpu: float = 0.1, **policies: str) -> str:
    """Get a workload running and reported; return its node. In names of policies two underscores are a dot."""
    metadata = {key.replace("__", "."): value for key, value in policies.items()}
    await fleet.apply(spec(workload_id, cpu=cpu, metadata=metadata))
    await fleet.cycle()
    node_id = (await fleet.status(workload_id)).node_id
    await fleet.report(node_id)
    assert fleet.copies(workload_id) == [node_id]
    return node_id


async def wait(fleet: World, seconds: float, *alive: str) -> None:
    """Let time pass while these nodes are heard."""
    fleet.clock.forward(seconds)
    fleet.pulses.beat(*alive)


def other(node_id: str) -> str:
    """Return the other node."""
    return {"n-1": "n-2", "n-2": "n-1"}[node_id]


def told(fleet: World, kind: EventType) -> list[tuple[str, str, str]]:
    """Return the events of a kind."""
    return [event for event in fleet.events if event[0] == kind]


def code(status: WorkloadStatus) -> str:
    """Return the code of the reason."""
    return status.status_info.reason.code if status.status_info.reason else ""


async def test_F33_without_a_target_it_waits_says_so_once_and_burns_no_budget(fleet: World) -> None:
    """RetryPending, "no failover target"; it moves as soon as there is room; its old node takes it back before."""
    first = await running(fleet, cpu=3.0)
    blocker = await running(fleet, "big", cpu=3.0)
    assert blocker == other(first)
    await fleet.lose(first)
    assert await fleet.cycle() == {"AwaitFailover_failed": 1, "NoAction": 1}
    status = await fleet.status()
    assert (status.status, code(status), status.retry.attempts) == (Phase.RETRY_PENDING, "NO_FAILOVER_TARGET", 0)
    assert "no failover target" in status.status_info.failure_reason
    written = (await fleet.store.get(STATUSES, "web")).mod_revision
    for _ in range(3):
        await fleet.cycle()
    assert (await fleet.store.get(STATUSES, "web")).mod_revision == written
    assert told(fleet, EventType.RESCHEDULE_SKIPPED) == [(EventType.RESCHEDULE_SKIPPED, "web", first)]
    await fleet.delete("big")
    await fleet.cycle()
    await fleet.cycle()
    status = await fleet.status()
    assert (status.node_id, status.previous_node, code(status)) == (blocker, first, "")
    await check_history(fleet.etcd)


async def test_F33_a_node_that_comes_back_ends_the_wait(fleet: World) -> None:
    """Its copy runs on; nothing is left of the reason."""
    first = await running(fleet, cpu=3.0)
    await running(fleet, "big", cpu=3.0)
    await fleet.lose(first)
    await fleet.cycle()
    await fleet.come_back(first)
    await fleet.report(first)
    status = await fleet.status()
    assert (status.status, status.node_id, status.status_info.reason) == (Phase.RUNNING, first, None)
    assert (await fleet.cycle()).keys() == {"NoAction"}


async def test_F34_a_pinned_workload_stays_with_its_data_until_it_may_move(fleet: World) -> None:
    """Pending, pinned_reason, one event an episode; allow_move works at the next look."""
    first = await running(fleet, persys__storage__local="true")
    await fleet.lose(first)
    for _ in range(3):
        await fleet.cycle()
    status = await fleet.status()
    assert (status.status, code(status), status.node_id) == (Phase.PENDING, "PINNED_AWAIT_NODE", first)
    assert first in status.metadata[PINNED_REASON_KEY]
    assert len(told(fleet, EventType.RESCHEDULE_SKIPPED)) == 1
    metadata = {"persys.storage.local": "true", "persys.scheduling.allow_move": "true"}
    await fleet.apply(spec(metadata=metadata))
    await fleet.cycle()
    status = await fleet.status()
    assert status.node_id == other(first)
    assert PINNED_REASON_KEY not in status.metadata


async def test_F34_the_next_loss_of_a_pinned_workload_is_an_episode_of_its_own(fleet: World) -> None:
    """Back, running, lost again: a second event."""
    first = await running(fleet, persys__storage__local="true")
    for episode in (1, 2):
        await fleet.lose(first)
        await fleet.cycle()
        assert len(told(fleet, EventType.RESCHEDULE_SKIPPED)) == episode
        await fleet.come_back(first)
        await fleet.report(first)
        status = await fleet.status()
        assert (status.status, code(status)) == (Phase.RUNNING, "")
        assert PINNED_REASON_KEY not in status.metadata


async def test_scenario_L7_a_workload_that_is_not_replaced_is_lost_in_the_end(fleet: World) -> None:
    """No replacement, ever; its node's return ends it."""
    first = await running(fleet, fleetbeat__replace="false", fleetbeat__lost_after="60s")
    await fleet.lose(first)
    await fleet.cycle()
    assert (await fleet.status()).status == Phase.RUNNING  # shown as Unknown, for nobody hears its node
    await wait(fleet, 60, other(first))
    await fleet.cycle()
    status = await fleet.status()
    assert (status.status, code(status), status.node_id) == (Phase.LOST, "NODE_LOST", first)
    await fleet.come_back(first)
    await fleet.report(first)
    assert (await fleet.status()).status == Phase.RUNNING
    assert fleet.copies() == [first]


async def test_scenario_L15_exclusive_work_moves_when_its_old_copy_provably_has_ended(fleet: World) -> None:
    """Not after the grace, but after stop_after, the lease and a margin of proven silence."""
    first = await running(fleet, fleetbeat__exclusive="true")
    assert (await fleet.status()).told_stop_after_ms == 10_000
    assert fleet.fakes[first].applied[-1].exclusive
    await fleet.lose(first)
    assert await fleet.cycle() == {"AwaitFailover": 1}
    await wait(fleet, 6.9, other(first))
    assert await fleet.cycle() == {"AwaitFailover": 1}
    await wait(fleet, 0.2, other(first))
    assert "Reschedule" in await fleet.cycle()
    assert (await fleet.status()).node_id == other(first)


async def test_scenario_L15_an_agent_that_does_not_stop_by_itself_needs_an_operators_word(fleet: World) -> None:
    """No time is long enough; a fence is, at once."""
    await fleet.add_node("n-3", labels={"old": "yes"})
    fleet.pulses.beat("n-3")
    await fleet.apply(spec(labels={"old": "yes"}, metadata={"fleetbeat.exclusive": "true"}))
    await fleet.cycle()
    await fleet.report("n-3")
    await fleet.lose("n-3")
    await wait(fleet, 900, "n-1", "n-2")
    assert await fleet.cycle() == {"AwaitFailover": 1}
    await fleet.apply(spec(metadata={"fleetbeat.exclusive": "true"}))
    assert await fleet.cycle() == {"AwaitFailover": 1}
    await fence_node(fleet.store, "n-3", "power off", force=False, now=fleet.clock())
    await fleet.settle()
    assert "Reschedule" in await fleet.cycle()
    assert (await fleet.status()).node_id in ("n-1", "n-2")


async def test_scenario_L15_a_fence_lets_exclusive_work_go_before_the_grace_and_ends_with_a_sign_of_life(
    fleet: World,
) -> None:
    """Fenced right after it fell silent; heard again, it is not fenced any more."""
    first = await running(fleet, fleetbeat__exclusive="true")
    await fence_node(fleet.store, first, "unplugged", force=True, now=fleet.clock())
    await fleet.settle()
    assert "Reschedule" in await fleet.cycle()
    assert (await fleet.status()).node_id == other(first)
    await fleet.come_back(first)
    node = (await fleet.store.get(NODES, first)).record
    assert node
    assert (node.fenced_at, node.fenced_by, node.is_ready) == (None, "", True)


async def test_scenario_L15_a_namesake_of_a_deleted_exclusive_workload_waits_for_its_end(fleet: World) -> None:
    """Deleted on a lost node and created anew: the old copy may still run there."""
    first = await running(fleet, fleetbeat__exclusive="true")
    await fleet.lose(first)
    await fleet.delete("web")
    await fleet.cycle()
    assert not await fleet.exists(STATUSES, "web")
    assert await fleet.tombstone(first)
    await fleet.apply(spec(metadata={"fleetbeat.exclusive": "true"}))
    assert await fleet.cycle() == {"Assign_failed": 1}
    assert f"may still run on {first}" in (await fleet.status()).pending_reason
    revision = fleet.store.last_revision
    await wait(fleet, 1.0, other(first))
    await fleet.cycle()
    assert fleet.store.last_revision == revision, "a wait is told once, and goes on for no write"
    await wait(fleet, 6.1, other(first))
    await fleet.cycle()
    status = await fleet.status()
    assert (status.node_id, status.pending_reason) == (other(first), "")


async def test_scenario_L15_an_exclusive_workload_that_no_longer_fits_stops_before_it_starts_elsewhere(
    fleet: World,
) -> None:
    """Its node gives it up: as long as the removal does not get through, it starts nowhere."""
    first = await running(fleet, fleetbeat__exclusive="true")
    fleet.fakes[first].lingers = 10_000
    await fleet.apply(spec(labels={"zone": "x"}, metadata={"fleetbeat.exclusive": "true"}))
    node = (await fleet.store.get(NODES, other(first))).record
    assert node
    await put(fleet.store, NODES, node.node_id, node.replace(labels={"zone": "x"}))
    await fleet.settle()
    await fleet.cycle()
    assert fleet.copies() == [first]
    assert not (await fleet.status()).node_id
    fleet.fakes[first].lingers = 1
    await fleet.cycle()
    await fleet.cycle()
    assert fleet.copies() == [other(first)]


async def test_scenario_L16_an_orphan_gives_its_share_of_the_node_back_and_takes_it_again(fleet: World) -> None:
    """After so long the ledger is free; when the node is back, the copy is committed anew."""
    first = await running(fleet, persys__storage__local="true")
    await fleet.lose(first)
    await fleet.cycle()
    await wait(fleet, 1000, other(first))
    await fleet.cycle()
    status = await fleet.status()
    assert (status.status, code(status)) == (Phase.ORPHANED, "ORPHANED")
    ledger = (await fleet.store.get(LEDGERS, first)).record
    assert ledger
    assert not ledger.commitments
    await fleet.come_back(first)
    await fleet.report(first)
    await fleet.cycle()
    status, ledger = await fleet.status(), (await fleet.store.get(LEDGERS, first)).record
    assert status.status == Phase.RUNNING
    assert ledger
    assert ledger.commitments["web"].epoch == status.epoch
    assert fleet.copies() == [first]


async def test_scenario_L14_nodes_of_a_zone_that_fall_silent_together_keep_their_work(fleet: World) -> None:
    """A third of all, but a whole zone: it holds; an operator's release lets go; single losses move."""
    for number in range(3, 12):
        await fleet.add_node(f"n-{number}", labels={"topology.kubernetes.io/zone": "a" if number < 6 else "b"})
    await fleet.apply(spec(labels={"topology.kubernetes.io/zone": "a"}))
    await fleet.cycle()
    old = (await fleet.status()).node_id
    await fleet.report(old)
    await fleet.apply(spec())
    zone = ["n-3", "n-4", "n-5"]
    alive = [n for n in fleet.fakes if n not in zone]
    await wait(fleet, 3, *alive)
    for node_id in zone:
        await set_health(fleet.store, node_id, Health.NOT_READY, "silent", "monitor", now=fleet.clock())
    await wait(fleet, 5, *alive)
    assert await fleet.cycle() == {"AwaitFailover": 1}
    assert (await fleet.status()).node_id == old
    release = await release_brake(fleet.store, 0, seconds=60, reason="burnt down", now=fleet.clock())
    assert isinstance(release, BrakeRelease)
    await fleet.settle()
    assert fleet.cache.get(BRAKES, "0").record == release
    await fleet.cycle()
    assert (await fleet.status()).node_id in alive


async def test_scenario_L1_a_pending_replacement_is_cancelled_before_it_starts(fleet: World) -> None:
    """The original is kept, with a new epoch and without a restart; nothing ever ran on the other node."""
    first = await running(fleet)
    second = other(first)
    fleet.fakes[second].refuse = BUSY
    await fleet.lose(first)
    await fleet.cycle()
    status = await fleet.status()
    assert (status.node_id, fleet.copies()) == (second, [first])
    starts = len(fleet.fakes[first].applied)
    await fleet.come_back(first)
    fleet.fakes[second].refuse = None
    fleet.clock.forward(10)
    fleet.pulses.beat("n-1", "n-2")
    for _ in range(3):
        await fleet.cycle()
        assert fleet.copies() == [first]
        assert not fleet.fakes[second].copies
    after = await fleet.status()
    assert (after.node_id, after.status, after.previous_node) == (first, Phase.RUNNING, second)
    assert after.epoch > status.epoch
    assert len(fleet.fakes[first].applied) == starts + 1, "told its new epoch"
    assert await fleet.tombstone(first) is None
    assert await fleet.tombstone(second) is None
    await check_history(fleet.etcd)


@pytest.mark.parametrize(
    ("rule", "original"),
    [("", False), ("keep_replacement", False), ("keep_original", True), ("longest_running", True)],
)
async def test_scenario_L2_of_two_running_copies_the_stated_rule_keeps_one(
    fleet: World, rule: str, *, original: bool
) -> None:
    """Exactly one survives; the loser is stopped; the event names the rule."""
    first = await running(fleet, fleetbeat__on_return=rule)
    await fleet.lose(first)
    await fleet.cycle()
    await fleet.report(other(first))
    assert fleet.copies() == sorted([first, other(first)])
    await fleet.come_back(first)
    for _ in range(3):
        await fleet.cycle()
    winner = first if original else other(first)
    assert fleet.copies() == [winner]
    status = await fleet.status()
    assert (status.node_id, status.actual) == (winner, Actual.RUNNING)
    kind = EventType.RESCHEDULED if original else EventType.RESCHEDULE_SKIPPED
    assert told(fleet, kind)[-1] == (kind, "web", winner)
    assert await fleet.cycle() == {"NoAction": 1}
    await check_history(fleet.etcd)


async def test_scenario_L2_the_better_score_wins(fleet: World) -> None:
    """The node that is back is empty, the other one nearly full."""
    first = await running(fleet, fleetbeat__on_return="best_score")
    await running(fleet, "big", cpu=3.0)
    await fleet.lose(first)
    await fleet.cycle()
    await fleet.come_back(first)
    for _ in range(3):
        await fleet.cycle()
    assert fleet.copies() == [first]


async def test_scenario_L3_a_newer_revision_always_wins(fleet: World) -> None:
    """Whatever the rule says."""
    first = await running(fleet, fleetbeat__on_return="keep_original")
    await fleet.lose(first)
    await fleet.cycle()
    await fleet.apply(spec(image="newer", metadata={"fleetbeat.on_return": "keep_original"}))
    await fleet.cycle()
    await fleet.come_back(first)
    for _ in range(2):
        await fleet.cycle()
    assert fleet.copies() == [other(first)]


async def test_scenario_L5_an_original_that_failed_while_away_is_not_started_again(fleet: World) -> None:
    """Its attempts are used up: the replacement stays the only copy, and its own count goes on."""
    first = await running(fleet, fleetbeat__on_return="keep_original")
    await fleet.lose(first)
    await fleet.cycle()
    before = (await fleet.status()).reapply
    starts = len(fleet.fakes[first].applied)
    fleet.fakes[first].crash("web")
    await fleet.come_back(first)
    for _ in range(3):
        await fleet.cycle()
    assert fleet.copies() == [other(first)]
    assert len(fleet.fakes[first].applied) == starts
    assert (await fleet.status()).reapply == before


async def test_an_assignment_that_its_own_node_refuses_gets_a_new_epoch(fleet: World) -> None:
    """Somebody cancelled it there and then did not end it: it heals by itself."""
    await fleet.apply(spec())
    await fleet.settle()
    fleet.fakes["n-1"].deleted["web"] = fleet.fakes["n-2"].deleted["web"] = 1000
    status = await fleet.status()
    assert not status.node_id
    for _ in range(3):
        await fleet.cycle()
        fleet.clock.forward(10)
        fleet.fakes["n-1"].deleted.pop("web", None)
        fleet.fakes["n-2"].deleted.pop("web", None)
    assert len(fleet.copies()) == 1
