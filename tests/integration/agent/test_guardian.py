"""Exclusive workloads of a real agent that is not heard: its guardian ends them in time, whatever the agent does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import AsyncIterator

import grpc
import pytest

from agent.guardian import Awake, Guarded, boot_seconds
from agent.process import table
from tests.integration.agent.conftest import Node, a_node
from tests.support.agent_process import order
from tests.support.waiting import eventually

STOP_AFTER_MS = 2000
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
time.sleep(600)
"""
"""A process with a child in another session; neither heeds SIGTERM."""


@pytest.fixture
async def node(tmp_path: pathlib.Path) -> AsyncIterator[Node]:
    """A node that is heard five times a second."""
    async with a_node(tmp_path, interval_ms=200) as node:
        yield node


def awake(node: Node) -> Awake:
    """Return what the guardian says of itself."""
    found = Guarded(node.data).awake()
    assert found
    return found


def guardian_lives(node: Node) -> bool:
    """Say whether the guardian's process runs."""
    return table.is_alive(awake(node).pid, awake(node).start_ticks)


async def gone(node: Node, workload_id: str = "w") -> None:
    """Wait until no process of a workload is left."""
    await eventually(lambda: not node.pids(workload_id), 15, f"{workload_id} is ended")


async def run(node: Node, *command: str, workload_id: str = "w", epoch: int = 1, restart: str = "") -> None:
    """Run an exclusive workload."""
    request = order(workload_id, *command, epoch=epoch, restart=restart, stop_after_ms=STOP_AFTER_MS)
    await node.run(request)


async def test_scenario_L15_the_end_of_the_agent_does_not_save_an_exclusive_copy(node: Node) -> None:
    """Killed with SIGKILL: the guardian ends the whole tree within stop_after, and nothing else; then it goes too."""
    await run(node, sys.executable, "-c", STUBBORN)
    await eventually(lambda: len(node.pids()) == 2, 10, "the child runs")
    await node.run(order("other"))
    await node.signal(signal.SIGKILL)
    heard_last = Guarded(node.data).contact()
    assert heard_last
    assert heard_last.heard_at
    await gone(node)
    assert boot_seconds() > heard_last.heard_at + STOP_AFTER_MS / 1000 / 2, "not before it was due"
    assert node.pids("other")
    guardian = awake(node)
    await eventually(lambda: not table.is_alive(guardian.pid, guardian.start_ticks), 15, "the guardian goes")
    await node.start()
    status = await node.front.reported("w", "Stopped")
    assert status.reason.code == "STOPPED_UNHEARD"
    assert node.pids("other")


async def test_scenario_L15_a_stopped_agent_does_not_save_an_exclusive_copy(node: Node) -> None:
    """Frozen by SIGSTOP, it cannot stop anything; when it goes on, it starts nothing by itself."""
    await run(node, restart="always")
    assert node.agent.process
    node.agent.process.send_signal(signal.SIGSTOP)
    try:
        await gone(node)
    finally:
        node.agent.process.send_signal(signal.SIGCONT)
    status = await node.front.reported("w", "Stopped")
    assert status.reason.code == "STOPPED_UNHEARD"
    assert not node.pids()


async def test_scenario_L15_a_cut_off_agent_ends_and_reports_it_and_runs_it_when_ordered_anew(node: Node) -> None:
    """The restart policy does not count; the control plane does."""
    await run(node, restart="always")
    node.front.silent = True
    await gone(node)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.client.apply(order(epoch=2, stop_after_ms=STOP_AFTER_MS))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "has not heard this node" in (refused.value.details() or "")
    node.front.silent = False
    status = await node.front.reported("w", "Stopped", 40)
    assert status.reason.code == "STOPPED_UNHEARD"
    before = len(node.front.beats)
    await eventually(lambda: len(node.front.beats) > before + 2, 10, "it is heard")
    assert not node.pids()
    await node.client.apply(order(epoch=2, restart="always", stop_after_ms=STOP_AFTER_MS))
    status = await node.front.reported("w", "Running")
    assert status.assignment_epoch == 2


async def test_scenario_L15_heartbeats_that_nobody_can_learn_of_do_not_count(node: Node) -> None:
    """A front that is cut off from etcd and Redis says so."""
    await run(node)
    node.front.unrecorded = True
    await gone(node)


async def test_scenario_O2_a_new_agent_has_a_guardian_of_its_own_and_adopts_what_runs(node: Node) -> None:
    """Restarted in time: the same process runs on, guarded by one new guardian."""
    await run(node)
    pids, before = node.pids(), awake(node)
    await node.signal(signal.SIGKILL)
    await node.start()
    await node.front.reported("w", "Running")
    assert awake(node).pid != before.pid
    await eventually(lambda: not table.is_alive(before.pid, before.start_ticks), 10, "the old one ends")
    beats = len(node.front.beats)
    await eventually(lambda: len(node.front.beats) > beats + STOP_AFTER_MS / 200, 20, "time passes")
    assert node.pids() == pids
    assert guardian_lives(node)


async def test_the_agent_replaces_a_guardian_that_is_gone(node: Node) -> None:
    """Killed by hand: there is another one soon, and it does its work."""
    await run(node)
    before = awake(node)
    os.kill(before.pid, signal.SIGKILL)
    await eventually(lambda: awake(node).pid != before.pid, 15, "there is another one")
    await node.signal(signal.SIGKILL)
    await gone(node)


async def test_a_policy_that_changes_reaches_the_copy_without_a_restart(node: Node) -> None:
    """The same revision with other terms: taken over by what runs."""
    await node.run(order())
    pids = node.pids()
    answer = await node.client.apply(order(epoch=2, stop_after_ms=STOP_AFTER_MS))
    assert answer.skipped
    assert node.pids() == pids
    await node.signal(signal.SIGKILL)
    await gone(node)


async def test_an_agent_without_exclusive_work_has_no_guardian(node: Node) -> None:
    """A process costs memory: it is started with the first exclusive order."""
    await node.run(order())
    assert Guarded(node.data).awake() is None


async def test_an_agent_whose_id_another_one_has_stops_everything_and_goes_on_asking(node: Node) -> None:
    """Superseded for stop_after: also what is not exclusive is stopped; accepted again, it waits for orders."""
    await node.run(order(restart="always"))
    node.front.superseded = True
    node.front.known = False
    await gone(node)
    asked = len(node.front.registrations)
    await eventually(lambda: len(node.front.registrations) > asked, 40, "it goes on asking")
    assert "superseded_stopping" in node.agent.log
    node.front.superseded = False
    status = await node.front.reported("w", "Stopped", 40)
    assert status.reason.code == "SUPERSEDED"
    await node.client.apply(order(epoch=2, restart="always"))
    await node.front.reported("w", "Running")


async def test_a_start_that_comes_too_late_runs_nothing(tmp_path: pathlib.Path) -> None:
    """The launcher itself looks at the time last."""
    launcher = pathlib.Path(table.__file__).with_name("launcher.py")
    instruction = {
        "command": ["touch", "x"],
        "env": {"PATH": "/usr/bin:/bin"},
        "folder": str(tmp_path),
        "cgroups": [],
        "file_bytes": 0,
        "nice": 0,
        "not_after": boot_seconds() - 1,
    }
    read, write = os.pipe()
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", f"exec 3>&{write}; exec {sys.executable} -I -S {launcher}",
        stdin=asyncio.subprocess.PIPE, pass_fds=[write],
    )  # fmt: skip
    os.close(write)
    await process.communicate(json.dumps(instruction).encode())
    with contextlib.closing(os.fdopen(read)) as answer:
        assert "has not been heard for too long" in answer.read()
    assert not (tmp_path / "x").exists()
