"""Calls to agents over real gRPC."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import pytest

from scheduler.agents.classify import MISSING, NOT_NOW, OLDER_EPOCH
from scheduler.agents.client import Agents
from scheduler.domain.errors import AgentRejected, AgentUnreachable
from scheduler.domain.node import Node
from scheduler.domain.workload import Actual, WorkloadSpec
from tests.support.fake_agent import FAILED, UNKNOWN, FakeAgent
from tests.support.servers import free_port

SPEC = WorkloadSpec(id="web", type="container", revision_id="r1", image="nginx")
TIMEOUT = 5.0


@pytest.fixture
async def agent() -> AsyncIterator[FakeAgent]:
    """A fake agent of n-1."""
    fake = await FakeAgent("n-1").start()
    yield fake
    await fake.stop()


@pytest.fixture
def codes() -> Counter[tuple[str, str]]:
    """What the client told of its calls."""
    return Counter()


@pytest.fixture
async def agents(codes: Counter[tuple[str, str]]) -> AsyncIterator[Agents]:
    """A client."""

    def count(rpc: str, code: str, _seconds: float) -> None:
        codes[rpc, code] += 1

    client = Agents(timeout_seconds=TIMEOUT, in_flight=6, per_node=2, on_call=count)
    yield client
    await client.close()


async def test_F8_apply_status_and_list_tell_how_the_copy_is(agent: FakeAgent, agents: Agents) -> None:
    """State, revision and epoch come back."""
    node = agent.node()
    report = await agents.apply(node, SPEC, desired="Running", epoch=7)
    assert (report.workload_id, report.state, report.revision_id, report.epoch) == ("web", Actual.RUNNING, "r1", 7)
    assert await agents.status(node, "web") == report
    assert await agents.list(node) == [report]


async def test_F75_a_hundred_calls_use_one_connection(agent: FakeAgent, agents: Agents) -> None:
    """One channel a node, reused."""
    node = agent.node()
    await asyncio.gather(*(agents.status(node, f"w{i}") for i in range(100)))
    assert len(agent.peers) == 1
    assert agents.open_channels == 1


async def test_F75_a_changed_endpoint_is_dialled_anew_and_a_gone_node_forgotten(
    agent: FakeAgent, agents: Agents
) -> None:
    """The old channel goes with the old address; forget and close leave none."""
    await agents.status(agent.node(), "web")
    other = await FakeAgent("n-1").start()
    try:
        await agents.status(other.node(), "web")
    finally:
        await other.stop()
    assert (agent.calls["GetWorkloadStatus"], other.calls["GetWorkloadStatus"]) == (1, 1)
    assert agents.open_channels == 1
    agents.drop("n-1")
    assert agents.open_channels == 0
    await agents.status(agent.node(), "web")
    await agents.close()
    assert agents.open_channels == 0


async def test_F75_calls_in_flight_survive_a_redial(agent: FakeAgent, agents: Agents) -> None:
    """An agent that registers again does not cost the calls that are under way."""
    agent.gate.clear()
    call = asyncio.create_task(agents.status(agent.node(instance_id="i1"), "web"))
    await agent.arrived.wait()
    second = asyncio.create_task(agents.status(agent.node(instance_id="i2"), "web"))
    agent.gate.set()
    assert (await call).state == (await second).state == Actual.MISSING


async def test_F75_closing_ends_calls_in_flight_as_unreachable(agent: FakeAgent, agents: Agents) -> None:
    """Whoever waits for one is told so; it is not taken for a cancellation of the caller."""
    agent.gate.clear()
    call = asyncio.create_task(agents.status(agent.node(), "web"))
    await agent.arrived.wait()
    await agents.close()
    with pytest.raises(AgentUnreachable):
        await call
    agent.gate.set()


async def test_F47_calls_are_bounded_for_a_node_and_for_the_process(agents: Agents) -> None:
    """Two at once to a node; six at once in all, though five nodes could take ten."""
    fakes = [await FakeAgent(f"n-{i}").start() for i in range(5)]
    for fake in fakes:
        fake.gate.clear()
    calls = [asyncio.create_task(agents.status(fake.node(), f"w{i}")) for fake in fakes for i in range(8)]
    while sum(fake.in_flight for fake in fakes) < 6:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert sum(fake.in_flight for fake in fakes) == 6
    for fake in fakes:
        fake.gate.set()
    await asyncio.gather(*calls)
    assert {fake.in_flight_max for fake in fakes} <= {1, 2}
    await asyncio.gather(*(fake.stop() for fake in fakes))


async def test_F76_a_silent_agent_costs_one_deadline_not_one_a_workload(
    agent: FakeAgent, codes: Counter[tuple[str, str]]
) -> None:
    """After the first calls ran into their deadline, the others are turned away at once."""
    agents = Agents(timeout_seconds=0.3, per_node=2, on_call=lambda rpc, code, _s: codes.update([(rpc, code)]))
    agent.gate.clear()
    started = time.monotonic()
    outcomes = await asyncio.gather(*(agents.status(agent.node(), f"w{i}") for i in range(50)), return_exceptions=True)
    assert all(isinstance(outcome, AgentUnreachable) for outcome in outcomes)
    assert codes == {("GetWorkloadStatus", "DEADLINE_EXCEEDED"): 2}
    assert time.monotonic() - started < 50 * 0.3 / 2
    agent.gate.set()
    await agents.close()


async def test_F75_a_new_instance_of_an_agent_is_called_at_once(agents: Agents) -> None:
    """The breaker of a dead agent does not hold up the one that registers in its place."""
    port = free_port()
    dead = Node(node_id="n-1", agent_endpoint=f"127.0.0.1:{port}", instance_id="i1")
    for _ in range(2):
        with pytest.raises(AgentUnreachable):
            await agents.status(dead, "web")
    fake = await FakeAgent("n-1").start(port)
    assert (await agents.status(fake.node(instance_id="i2"), "web")).state == Actual.MISSING
    await fake.stop()


async def test_9_4_errors_are_told_apart_by_code(agent: FakeAgent, agents: Agents) -> None:
    """A text with "not found" in it is not an absence; UNKNOWN "status not found" is."""
    node = agent.node()
    assert (await agents.status(node, "web")).state == Actual.MISSING
    agent.refuse = (grpc.StatusCode.INTERNAL, "image not found")
    with pytest.raises(AgentRejected, match="image not found") as rejected:
        await agents.status(node, "web")
    assert rejected.value.code == "INTERNAL"
    agent.refuse = (grpc.StatusCode.NOT_FOUND, "no")
    assert (await agents.status(node, "web")).state == Actual.MISSING
    with pytest.raises(AgentRejected) as rejected:
        await agents.apply(node, SPEC, desired="Running", epoch=1)
    assert rejected.value.code == MISSING
    agent.refuse = (grpc.StatusCode.UNAVAILABLE, "draining")
    with pytest.raises(AgentUnreachable):
        await agents.status(node, "web")


async def test_F75_a_call_for_another_node_is_refused(agent: FakeAgent, agents: Agents) -> None:
    """An address that was handed to another node does not get the first one's orders."""
    with pytest.raises(AgentRejected) as rejected:
        await agents.apply(agent.node(node_id="n-2"), SPEC, desired="Running", epoch=1)
    assert rejected.value.code == NOT_NOW
    assert agent.copies == {}


async def test_9_3_an_older_epoch_is_refused(agent: FakeAgent, agents: Agents) -> None:
    """Neither an apply nor a delete of an assignment that is over touches the newer copy."""
    node = agent.node()
    await agents.apply(node, SPEC, desired="Running", epoch=7)
    for call in (agents.apply(node, SPEC, desired="Running", epoch=6), agents.delete(node, "web", epoch=6)):
        with pytest.raises(AgentRejected) as rejected:
            await call
        assert rejected.value.code == OLDER_EPOCH
    assert agent.running() == ["web"]


async def test_F15_delete_returns_once_the_agent_says_it_is_gone(agent: FakeAgent, agents: Agents) -> None:
    """A copy that takes a moment to end is followed until it is gone; one never there is gone."""
    node = agent.node()
    assert await agents.delete(node, "never", epoch=1)
    await agents.apply(node, SPEC, desired="Running", epoch=7)
    agent.lingers = 3
    assert await agents.delete(node, "web", epoch=7)
    assert agent.copies == {}
    assert agent.calls["DeleteWorkload"] == 2


async def test_F15_a_delete_that_takes_long_is_not_waited_for(agent: FakeAgent) -> None:
    """The caller is told that it is not done, and may look again."""
    agents = Agents(timeout_seconds=0.3)
    await agents.apply(agent.node(), SPEC, desired="Running", epoch=7)
    agent.lingers = 10_000
    assert not await agents.delete(agent.node(), "web", epoch=7)
    await agents.close()


async def test_9_20_a_container_that_vanished_behind_the_agent_is_made_anew(agents: Agents) -> None:
    """The reference system's agent skips a revision it knows; a delete first makes it start one."""
    fake = await FakeAgent("n-1", knows_epochs=False).start()
    node = fake.node()
    await agents.apply(node, SPEC, desired="Running", epoch=7)
    fake.crash("web", UNKNOWN, "container not found")
    assert (await agents.status(node, "web")).state == Actual.MISSING
    assert (await agents.apply(node, SPEC, desired="Running", epoch=7)).state == Actual.RUNNING
    assert fake.calls["DeleteWorkload"] == 1
    await fake.stop()


async def test_F6_failure_codes_and_finality_are_read_from_metadata(agent: FakeAgent, agents: Agents) -> None:
    """failure_reason and retry_terminal become fields of the report."""
    await agents.apply(agent.node(), SPEC, desired="Running", epoch=7)
    agent.crash("web", FAILED, "bad image")
    agent.copies["web"].metadata.update({"failure_reason": "INVALID_IMAGE", "retry_terminal": "true"})
    agent.copies["web"].usage.cpu_percent = 12.5
    report = await agents.status(agent.node(), "web")
    assert (report.failure_code, report.retryable, report.message) == ("INVALID_IMAGE", False, "bad image")
    assert report.usage
    assert report.usage["cpu_percent"] == 12.5


async def test_F8_logs_are_streamed_and_can_be_left(agent: FakeAgent, agents: Agents) -> None:
    """All chunks of a tail; a follower may go at any time; an unknown workload is told."""
    node = agent.node()
    await agents.apply(node, SPEC, desired="Running", epoch=7)
    assert [c async for c in agents.logs(node, "web", tail_bytes=100, follow=False)] == [b"first ", b"second"]
    followed = agents.logs(node, "web", tail_bytes=100, follow=True)
    assert await anext(followed) == b"first "
    await followed.aclose()  # type: ignore[attr-defined]
    with pytest.raises(AgentRejected) as rejected:
        _ = [c async for c in agents.logs(node, "nope", tail_bytes=0, follow=False)]
    assert rejected.value.code == MISSING


async def test_F47_readers_of_logs_are_bounded_and_do_not_hold_up_orders(agent: FakeAgent, agents: Agents) -> None:
    """Two followers, a third is refused; orders get through all the same; closing ends followers as unreachable."""
    node = agent.node()
    await agents.apply(node, SPEC, desired="Running", epoch=7)
    followers = [agents.logs(node, "web", tail_bytes=0, follow=True) for _ in range(3)]
    for follower in followers[:2]:
        await anext(follower)
    with pytest.raises(AgentRejected, match="readers"):
        await anext(followers[2])
    assert (await agents.status(node, "web")).state == Actual.RUNNING
    rest = asyncio.ensure_future(_drain(followers[0]))
    await asyncio.sleep(0)
    await agents.close()
    with pytest.raises(AgentUnreachable):
        await rest


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    async for _ in chunks:
        pass


async def test_F75_a_node_without_an_address_is_unreachable(agents: Agents) -> None:
    """It is told as such, not as a defect."""
    with pytest.raises(AgentUnreachable, match="n-9"):
        await agents.list(Node(node_id="n-9"))


async def test_9_10_a_removal_says_which_data_the_node_must_keep() -> None:
    """What that is, is asked for the node and the workload."""
    fake = await FakeAgent("n-1").start()
    agents = Agents(timeout_seconds=5, kept_volumes=lambda node_id, workload_id: [f"local:{node_id}-{workload_id}"])
    try:
        await agents.delete(fake.node(), "web", epoch=1)
    finally:
        await agents.close()
        await fake.stop()
    assert list(fake.removals[0].keep_volumes) == ["local:n-1-web"]
