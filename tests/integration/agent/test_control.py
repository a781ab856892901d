"""The agent's side of the talk with the control plane, against fronts that only listen."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from agent.actions import Actions
from agent.control import About, Link
from agent.host import Capacity
from agent.records import Code, ContainerSpec, Desired, Failure, Limits, Order
from agent.roster import Roster
from agent.runtimes import Runtimes
from agent.shelf import Shelf
from agent.telemetry import Telemetry
from agent.workload import Parts
from scheduler.pb import control_pb2 as pb
from tests.support.fake_front import FakeFront
from tests.support.fake_runtime import FakeRuntime
from tests.support.waiting import eventually


@dataclass
class Linked:
    """A roster over a fake runtime, linked to some fronts."""

    fronts: list[FakeFront]
    roster: Roster
    runtime: FakeRuntime
    link: Link
    types: list[str] = field(default_factory=lambda: ["container"])

    async def run(self, workload_id: str = "w", *, revision: str = "r1", epoch: int = 1) -> None:
        """Order a workload."""
        spec = ContainerSpec(image="host", command=("run",))
        await self.roster.apply(
            Order(workload_id, "container", revision, epoch, Desired.RUNNING, spec, Limits(100, 64, 1))
        )


@contextlib.asynccontextmanager
async def linked(folder: pathlib.Path, *fronts: FakeFront) -> AsyncIterator[Linked]:
    """Run a link to these fronts for a block."""
    shelf = Shelf(folder)
    shelf.open("n-1")
    runtime, runtimes = FakeRuntime(), Runtimes()
    runtimes.offer(runtime)
    versions = iter(range(1, 10_000))

    def changed() -> int:
        link.changed()
        return next(versions)

    roster = Roster(Parts(shelf, runtimes, Actions(), 0.1, changed), {})
    types = ["container"]
    about = About("n-1", "127.0.0.1:50051", Capacity(2000, 1024, 10), lambda: {"zone": "a"}, lambda: types)
    link = Link([f.address for f in fronts], about, roster, Telemetry(runtimes, folder))
    task = asyncio.create_task(link.run())
    try:
        yield Linked(list(fronts), roster, runtime, link, types)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await roster.close()
        shelf.close()


@pytest.fixture
async def front() -> AsyncIterator[FakeFront]:
    """A front that names a heartbeat interval of a minute, so that each beat before has its own reason."""
    async with FakeFront() as front:
        yield front


async def beats(front: FakeFront, count: int) -> list[pb.HeartbeatRequest]:
    """Wait for this many heartbeats and return them."""
    await eventually(lambda: len(front.beats) >= count, 10, f"{count} heartbeats, have {len(front.beats)}")
    return front.beats


async def test_F1_registration_says_what_the_node_is_and_offers(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """Id, endpoint, capacity, labels, types, version, instance; and that its reports carry epochs."""
    async with linked(tmp_path, front):
        await beats(front, 1)
    request = front.registrations[0]
    assert (request.node_id, request.grpc_endpoint, request.reports_epochs) == ("n-1", "127.0.0.1:50051", True)
    capacity = request.capabilities
    assert (capacity.cpu_total_millicores, capacity.memory_total_mb) == (2000, 1024)
    assert (capacity.storage_pools[0].total_gb, list(capacity.supported_workload_types)) == (10, ["container"])
    assert dict(request.labels) == {"zone": "a"}
    assert request.agent_version
    assert request.instance_id == front.beats[0].instance_id


async def test_the_first_heartbeat_follows_at_once_and_carries_everything(
    tmp_path: pathlib.Path, front: FakeFront
) -> None:
    """Full, sequence 1, what is used and what is committed."""
    async with linked(tmp_path, front):
        (beat, *_) = await beats(front, 1)
    assert (beat.node_id, beat.full, beat.sequence) == ("n-1", True, 1)
    assert beat.usage.memory_used_mb > 0
    assert beat.usage.disk_used_gb > 0


async def test_F6_a_change_is_reported_at_once_with_revision_and_epoch(
    tmp_path: pathlib.Path, front: FakeFront
) -> None:
    """Long before the next heartbeat would be due."""
    async with linked(tmp_path, front) as node:
        await beats(front, 1)
        await node.run(epoch=7)
        status = await front.reported("w", "Running")
        assert (status.revision_id, status.assignment_epoch, status.message) == ("r1", 7, "running")
        assert front.beats[-1].usage.cpu_allocated_millicores == 100
        node.runtime.fails = Failure(Code.PORT_BIND_CONFLICT, "port 80 is taken")
        await node.run(revision="r2", epoch=7)
        status = await front.reported("w", "Failed")
    assert (status.reason.code, status.reason.message) == ("PORT_BIND_CONFLICT", "port 80 is taken")
    assert not status.reason.retryable
    assert status.metadata["failure_reason"] == "PORT_BIND_CONFLICT"
    assert status.failure_reason == pb.RUNTIME_ERROR


async def test_heartbeats_carry_nothing_when_nothing_changed(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """What was acknowledged is not sent again; the sequence shows that none was lost."""
    front.interval_ms = 100
    async with linked(tmp_path, front) as node:
        await node.run("a")
        await node.run("b")
        await front.reported("a", "Running")
        await front.reported("b", "Running")
        first = len(front.beats)
        await beats(front, first + 5)
        quiet = front.beats[first : first + 5]
        assert [len(b.workload_statuses) for b in quiet] == [0] * 5
        assert not any(b.full for b in quiet)
        await node.run("b", epoch=2)
        await eventually(lambda: front.beats[-1].workload_statuses)
        assert [s.workload_id for s in front.beats[-1].workload_statuses] == ["b"]
    assert [b.sequence for b in front.beats] == list(range(1, len(front.beats) + 1))


async def test_every_thirtieth_heartbeat_carries_everything(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """So that what a front lost is told again."""
    front.interval_ms = 100
    async with linked(tmp_path, front) as node:
        await node.run()
        await beats(front, 31)
    full = [n for n, beat in enumerate(front.beats) if beat.full]
    assert full[:2] == [0, 30]
    assert [s.workload_id for s in front.beats[30].workload_statuses] == ["w"]


async def test_everything_is_sent_at_once_when_the_front_asks_for_it(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """It may have lost what it knew."""
    async with linked(tmp_path, front) as node:
        await node.run()
        await front.reported("w", "Running")
        front.send_full = True
        count = len(front.beats)
        await node.run("x")
        await eventually(lambda: any(b.full for b in front.beats[count:]))
    full = next(b for b in front.beats[count:] if b.full)
    assert {s.workload_id for s in full.workload_statuses} == {"w", "x"}


async def test_many_changes_share_a_heartbeat(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """Between two heartbeats lies a least gap, however much changes."""
    async with linked(tmp_path, front) as node:
        await beats(front, 1)
        await asyncio.gather(*(node.run(f"w{n}") for n in range(40)))
        for number in range(40):
            await front.reported(f"w{number}", "Running")
    assert len(front.beats) < 20


async def test_the_exact_interval_goes_before_the_rounded_one(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """heartbeat_interval_ms is ours; without it the reference's seconds count; 0 keeps what was."""
    async with linked(tmp_path, front) as node:
        await beats(front, 1)
        assert node.link.interval_seconds == 60
        for given, expected in (((250, 1), 0.25), ((0, 7), 7.0), ((0, 0), 7.0), ((1, 0), 0.1), ((10**9, 0), 600.0)):
            node.link._set_interval(*given)
            assert node.link.interval_seconds == expected


async def test_F4_a_node_that_is_not_known_registers_again(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """NOT_FOUND to a heartbeat; then everything is told again."""
    async with linked(tmp_path, front) as node:
        await node.run()
        await front.reported("w", "Running")
        front.known = False
        count = len(front.beats)
        node.link.changed()
        await eventually(lambda: len(front.registrations) == 2)
        await beats(front, count + 1)
    assert front.beats[count].full


async def test_a_registration_that_is_not_accepted_is_repeated(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """With a pause in between; no heartbeat is sent before."""
    front.accepts = False
    async with linked(tmp_path, front):
        await eventually(lambda: len(front.registrations) >= 2)
        assert front.beats == []
        front.accepts = True
        await beats(front, 1)


async def test_what_a_node_offers_is_told_anew_when_it_changes(tmp_path: pathlib.Path, front: FakeFront) -> None:
    """As when a Docker engine has come up."""
    async with linked(tmp_path, front) as node:
        await beats(front, 1)
        node.types.append("compose")
        node.link.register_again()
        await eventually(lambda: len(front.registrations) == 2)
    assert list(front.registrations[1].capabilities.supported_workload_types) == ["container", "compose"]


async def test_scenario_L10_a_dead_front_is_left_for_another_at_once(tmp_path: pathlib.Path) -> None:
    """Within one heartbeat interval, and the other one is told everything."""
    async with FakeFront() as first, FakeFront() as second, linked(tmp_path, first, second) as node:
        first.interval_ms = second.interval_ms = 1000
        await node.run()
        await first.reported("w", "Running")
        await first.stop()
        await beats(second, 1)
        assert second.beats[0].full
        assert second.registrations == []
        await second.reported("w", "Running")


async def test_scenario_L10_a_front_that_takes_calls_and_does_not_answer_is_left(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline of a heartbeat is no longer than the interval."""
    monkeypatch.setattr("agent.control._LEAST_CALL_SECONDS", 0.2)
    async with FakeFront() as first, FakeFront() as second:
        first.interval_ms = second.interval_ms = 200
        async with linked(tmp_path, first, second):
            await beats(first, 1)
            first.silent = True
            await beats(second, 1)
            first.silent = False


async def test_a_front_that_comes_later_or_comes_back_is_found(tmp_path: pathlib.Path) -> None:
    """An agent keeps trying, before and after its registration."""
    front = FakeFront(interval_ms=200)
    async with linked(tmp_path, front) as node:
        await asyncio.sleep(0.2)
        async with front:
            await beats(front, 1)
        again = FakeFront(front.port, interval_ms=200)
        await node.run()
        async with again:
            await beats(again, 1)
            await again.reported("w", "Running")
