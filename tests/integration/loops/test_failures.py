"""Failures through the real loops, a real etcd and agents over gRPC: who gives up, when, and how to go on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest

from scheduler.domain.event import EventType
from scheduler.domain.node import DrainJob
from scheduler.domain.workload import Actual, Phase, WorkloadSpec
from scheduler.pb import agent_pb2
from scheduler.store import workloads
from scheduler.store.etcd import Etcd
from scheduler.store.intent import Wish, drain, set_schedulable
from scheduler.store.keys import NODES, STATUSES
from scheduler.store.nodes import NO_TYPE
from tests.support import servers
from tests.support.fake_agent import FAILED, RUNNING
from tests.support.loop_world import World, world
from tests.support.placement import put


@pytest.fixture
async def fleet(etcd_server: servers.Server, etcd_prefix: str) -> AsyncIterator[World]:
    """A shard with two nodes."""
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    async with world(etcd) as fleet:
        for node_id in ("n1", "n2"):
            await fleet.add_node(node_id)
        yield fleet
    await etcd.close()


def spec(**fields: object) -> WorkloadSpec:
    """A container."""
    return WorkloadSpec(id="web", type="container", image="nginx:1").replace(**fields)


async def ended(fleet: World, code: str = "INVALID_IMAGE") -> str:
    """Have a workload run and then fail for good; return its node."""
    await fleet.apply(spec())
    await fleet.cycle()
    node_id = (await fleet.status()).node_id
    fake = fleet.fakes[node_id]
    fake.crash("web", FAILED, "no such image")
    fake.copies["web"].metadata["failure_reason"] = code
    await fleet.report(node_id)
    return node_id


def failures(fleet: World) -> list[str]:
    """The events that tell of an end."""
    return [workload_id for kind, workload_id, _ in fleet.events if kind == EventType.WORKLOAD_FAILED]


async def test_F27_a_terminal_failure_is_not_tried_again_and_told_once(fleet: World) -> None:
    """The workload shows Failed with code and words, for hours, without a call or a write."""
    node_id = await ended(fleet)
    calls = fleet.fakes[node_id].calls["ApplyWorkload"]
    assert (await fleet.cycle())["TerminalFailureNoReapply"] == 1
    status = await fleet.status()
    assert (status.status, status.terminal) == (Phase.FAILED, "INVALID_IMAGE")
    assert status.status_info.reason
    assert (status.status_info.reason.code, status.status_info.reason.retryable) == ("INVALID_IMAGE", False)
    revision = fleet.store.last_revision
    for _ in range(5):
        fleet.clock.forward(3600)
        fleet.pulses.beat("n1", "n2")
        await fleet.report(node_id)
        await fleet.cycle()
    assert fleet.fakes[node_id].calls["ApplyWorkload"] == calls
    assert failures(fleet) == ["web"]
    assert (await fleet.status()).status == Phase.FAILED
    assert fleet.store.last_revision - revision <= 1, "what the agent says may be taken over once"


async def test_F18_a_retry_starts_it_again_although_the_agent_tells_of_the_old_failure(fleet: World) -> None:
    """RetryWorkload clears everything, and its order goes out even when an old report comes first."""
    node_id = await ended(fleet)
    await fleet.cycle()
    status = await workloads.retry(fleet.store, "web", now=fleet.clock())
    assert (status.terminal, status.retry.attempts, status.status_info.reason) == ("", 0, None)
    await fleet.report(node_id)
    await fleet.settle()
    await fleet.cycle()
    assert fleet.fakes[node_id].copies["web"].actual_state == RUNNING
    await fleet.report(node_id)
    assert (await fleet.status()).status == Phase.RUNNING


async def test_F13_F27_a_new_spec_starts_it_again(fleet: World) -> None:
    """The mended image runs with the next look."""
    node_id = await ended(fleet)
    await fleet.cycle()
    await fleet.apply(spec(image="nginx:2"))
    await fleet.wake("web")
    assert fleet.fakes[node_id].copies["web"].actual_state == RUNNING
    assert (await fleet.status()).terminal == ""


async def test_F28_retry_terminal_of_an_agent_ends_it(fleet: World) -> None:
    """Whatever the code says."""
    node_id = await ended(fleet, "RUNTIME_ERROR")
    fleet.fakes[node_id].copies["web"].metadata["retry_terminal"] = "true"
    await fleet.report(node_id)
    assert (await fleet.cycle())["TerminalFailureNoReapply"] == 1


async def test_F25_F26_refusals_end_after_the_grace_when_the_tries_are_used_up(fleet: World) -> None:
    """Eight orders in 155 s, then none; one WorkloadFailed; a retry begins anew."""
    for fake in fleet.fakes.values():
        fake.refuse = (grpc.StatusCode.INTERNAL, "cannot")
    await fleet.apply(spec())
    for _ in range(400):
        await fleet.cycle()
        fleet.clock.forward(1)
        fleet.pulses.beat("n1", "n2")
    status = await fleet.status()
    fake = fleet.fakes[status.node_id]
    assert (status.status, status.terminal) == (Phase.FAILED, "RETRIES_EXHAUSTED")
    assert fake.calls["ApplyWorkload"] == 8
    assert failures(fleet) == ["web"]
    fake.refuse = None
    await workloads.retry(fleet.store, "web", now=fleet.clock())
    await fleet.settle()
    await fleet.cycle()
    assert fleet.copies() == [status.node_id]


async def test_F31_a_node_without_the_runtime_is_left_for_another(fleet: World) -> None:
    """Its type is taken off the node, and the workload runs elsewhere in the same pass."""
    await fleet.apply(spec())
    await fleet.ctx.placer.place("web")
    await fleet.settle()
    first = (await fleet.status()).node_id
    fleet.fakes[first].refuse = (grpc.StatusCode.INTERNAL, "container runtime not available")
    await fleet.wake("web")
    other = ({"n1", "n2"} - {first}).pop()
    assert fleet.copies() == [other]
    node = (await fleet.store.get(NODES, first)).record
    assert node
    assert node.supported_workload_types in (("compose",), (NO_TYPE,))
    assert (await fleet.status()).retry.attempts == 0
    assert [node_id for kind, _, node_id in fleet.events if kind == EventType.RESCHEDULED] == [first]


async def test_F21_a_copy_that_lives_is_not_started_again(fleet: World) -> None:
    """Of an agent that reports no epochs, news may be old: it is asked before the order."""
    fake = await fleet.add_node("n3", knows_epochs=False)
    await fleet.apply(spec(metadata={"fleetbeat.node": "n3"}))
    await fleet.cycle()
    fake.crash("web")
    await fleet.cycle("monitor_workloads")
    calls = fake.calls["ApplyWorkload"]
    fake.copies["web"].actual_state = RUNNING
    await fleet.settle()
    await fleet.wake("web")
    assert fake.calls["ApplyWorkload"] == calls
    assert (await fleet.status()).status == Phase.RUNNING


async def test_scenario_R7_interruptions_are_counted(fleet: World) -> None:
    """A running copy that ceases to run by itself; a stop or a new spec is none."""
    await fleet.apply(spec())
    await fleet.cycle()
    node_id = (await fleet.status()).node_id
    await fleet.report(node_id)
    for count in (1, 2):
        fleet.fakes[node_id].crash("web", agent_pb2.ACTUAL_STATE_PENDING, "starting again")
        await fleet.report(node_id)
        assert (await fleet.status()).interruptions == count
        fleet.fakes[node_id].crash("web", RUNNING, "up")
        await fleet.report(node_id)
    await fleet.apply(spec(image="nginx:2"))
    await fleet.wake("web")
    await fleet.report(node_id)
    assert (await fleet.status()).interruptions == 2


async def test_scenario_L5_the_count_of_a_failure_survives_its_nodes_absence(fleet: World) -> None:
    """A workload that had failed for good while its node was away is not begun anew when that returns."""
    node_id = await ended(fleet)
    await fleet.cycle()
    await fleet.lose(node_id)
    fleet.clock.forward(3600)
    await fleet.cycle()
    await fleet.come_back(node_id)
    await fleet.report(node_id)
    await fleet.cycle()
    status = await fleet.status()
    assert (status.node_id, status.terminal, status.status) == (node_id, "INVALID_IMAGE", Phase.FAILED)
    assert fleet.copies() == []


async def test_scenario_R1_a_count_survives_the_wait_for_a_node_and_one_more_failure_is_the_last(
    fleet: World,
) -> None:
    """Of two tries one is used up; the only node is left, no other has room for an hour; then one try, and no more."""
    await fleet.apply(spec())
    await fleet.ctx.placer.place("web")
    await fleet.settle()
    status = await fleet.status()
    first = status.node_id
    await put(fleet.store, STATUSES, "web", status.replace(retry=status.retry.replace(max_attempts=2)))
    second = ({"n1", "n2"} - {first}).pop()
    await set_schedulable(fleet.store, second, schedulable=False)
    fleet.fakes[first].refuse = (grpc.StatusCode.INTERNAL, "cannot")
    await fleet.settle()
    await fleet.wake("web")
    assert (await fleet.status()).retry.attempts == 1
    fleet.fakes[first].refuse = (grpc.StatusCode.INTERNAL, "container runtime not available")
    for _ in range(12):
        fleet.clock.forward(300)
        fleet.pulses.beat("n1", "n2")
        await fleet.settle()
        await fleet.wake("web")
    waiting = await fleet.status()
    assert (waiting.node_id, waiting.retry.attempts, bool(waiting.pending_reason)) == ("", 1, True)
    fleet.fakes[second].refuse = (grpc.StatusCode.INTERNAL, "cannot")
    await set_schedulable(fleet.store, second, schedulable=True)
    for _ in range(10):
        await fleet.cycle()
        fleet.clock.forward(300)
        fleet.pulses.beat("n1", "n2")
    status = await fleet.status()
    assert (status.node_id, status.terminal) == (second, "RETRIES_EXHAUSTED")
    assert fleet.fakes[second].calls["ApplyWorkload"] == 1
    assert len([kind for kind, _, _ in fleet.events if kind == EventType.RESCHEDULED]) == 1


async def test_F27_what_has_failed_for_good_still_says_so_when_its_copy_is_removed(fleet: World) -> None:
    """Somebody removes the failed container by hand: it is missing now, and why it is not started again stays."""
    node_id = await ended(fleet)
    await fleet.cycle()
    before = await fleet.status()
    del fleet.fakes[node_id].copies["web"]
    await fleet.report(node_id)
    await fleet.cycle()
    after = await fleet.status()
    assert (after.actual, after.status, after.terminal) == (Actual.MISSING, Phase.FAILED, "INVALID_IMAGE")
    assert after.status_info.reason == before.status_info.reason
    assert after.status_info.failure_reason == "no such image"
    assert fleet.copies() == []


async def test_F27_what_has_failed_for_good_still_says_so_after_its_node_was_drained(fleet: World) -> None:
    """It leaves the node like any other work, is started nowhere, and goes on telling why; a retry starts it."""
    node_id = await ended(fleet)
    await fleet.cycle()
    await drain(fleet.store, node_id, Wish(), DrainJob(), total=1, now=fleet.clock())
    await fleet.cycle()
    status = await fleet.status()
    assert status.node_id not in ("", node_id)
    assert (status.status, status.terminal) == (Phase.FAILED, "INVALID_IMAGE")
    reason = status.status_info.reason
    assert reason
    assert (reason.code, reason.message, reason.retryable) == ("INVALID_IMAGE", "no such image", False)
    assert fleet.copies() == []
    await workloads.retry(fleet.store, "web", now=fleet.clock())
    await fleet.settle()
    await fleet.cycle()
    assert fleet.copies() == [status.node_id]
