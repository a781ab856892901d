"""How an agent starts and ends, and what a crash at the worst moment leaves."""

from __future__ import annotations

import asyncio
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import msgspec

from agent.process import spawn, table
from tests.integration.agent.conftest import Node, a_node
from tests.support.agent_process import AgentProcess, marked, order
from tests.support.fake_front import FakeFront
from tests.support.waiting import eventually

CRASHES_BEFORE_THE_START = """
import asyncio, os, pathlib, signal, sys
from agent.process.cgroups import Cgroups, mounts
from agent.process.runtime import ProcessRuntime
from agent.records import ContainerSpec, Desired, Order, Record
from agent.shelf import Shelf

async def main(folder):
    shelf = Shelf(pathlib.Path(folder))
    identity = shelf.open("n-1")
    cgroups = Cgroups(identity.agent_id, mounts())
    runtime = ProcessRuntime(identity, shelf, cgroups, allowed=True, output_most_bytes=10**6)
    spec = ContainerSpec("host", ("sh", "-c", "echo ran; sleep 600"))
    order = Order("w", "container", "r1", 1, Desired.RUNNING, spec)
    record = Record(order, runtimes=("process",))

    async def remember(ref):
        record.process = ref
        if sys.argv[2] == "recorded":
            await shelf.save(record)
        os.kill(os.getpid(), signal.SIGKILL)

    await shelf.save(record)
    await runtime.start(order, remember)

asyncio.run(main(sys.argv[1]))
"""


async def crashes_before_the_start(folder: pathlib.Path, when: str) -> str:
    """Run an agent's start that is killed between spawn and go; return the agent's mark."""
    command = [sys.executable, "-c", CRASHES_BEFORE_THE_START, str(folder), when]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return str(msgspec.json.decode((folder / "agent.json").read_bytes())["agent_id"])


async def test_a_crash_between_spawn_and_record_leaves_no_process(tmp_path: pathlib.Path) -> None:
    """The launcher waits for the word to go, which never comes; whether or not its pid was recorded, nothing ran."""
    for when in ("unrecorded", "recorded"):
        folder = tmp_path / when / "data"
        agent_id = await crashes_before_the_start(folder, when)
        await eventually(lambda mark=agent_id: marked(mark, "w") == [])
        assert (folder / "output" / "w.log").read_text() == ""


async def test_after_such_a_crash_the_next_agent_runs_exactly_one_copy(tmp_path: pathlib.Path) -> None:
    """It reports that nothing runs, and starts it when it is told."""
    agent_id = await crashes_before_the_start(tmp_path / "data", "recorded")
    async with a_node(tmp_path) as node:
        assert node.agent_id == agent_id
        status = await node.front.reported("w", "Failed")
        assert status.revision_id == "r1"
        await node.run(order())
        assert len(node.pids()) == 1


def test_a_launcher_without_a_whole_instruction_runs_nothing(tmp_path: pathlib.Path) -> None:
    """The agent may die in the middle of writing it."""
    launch = spawn.begin({table.AGENT_MARK: "x"}, tmp_path / "out")
    os.write(launch.go, b'{"command": ["sh", "-c", "echo ran"], "env": {}')
    spawn.abandon(launch)
    _, status = os.waitpid(launch.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert (tmp_path / "out").read_text() == ""


async def test_sigterm_ends_the_agent_and_leaves_the_work(node: Node) -> None:
    """Promptly, with exit code 0; the next start adopts it."""
    pid = await node.run(order())
    assert await node.signal(signal.SIGTERM) == 0
    assert node.pids() == [pid]
    await node.start()
    assert (await node.front.reported("w", "Running")).metadata["pid"] == str(pid)


async def test_an_agent_that_is_told_so_stops_its_work_when_it_ends(tmp_path: pathlib.Path) -> None:
    """All of it; the next start reports it as stopped and starts nothing by itself."""
    async with a_node(tmp_path, "--stop-workloads-on-exit") as node:
        await node.run(order("a", restart="always"))
        await node.run(order("b", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"))
        assert await node.signal(signal.SIGINT) == 0
        assert node.pids("a") == node.pids("b") == []
        await node.start()
        await node.front.reported("a", "Stopped")
        assert node.pids("a") == []
        await node.run(order("a", restart="always", epoch=2))


async def test_an_agent_whose_folder_was_removed_leaves_no_copy_that_nobody_knows_of(node: Node) -> None:
    """Its records are gone, so the control plane has the work started anew: the old copies must not run beside it."""
    old = await node.run(order())
    await node.signal(signal.SIGKILL)
    await asyncio.to_thread(shutil.rmtree, node.data)
    await node.start()
    await eventually(lambda: (found := table.read(old)) is None or found.ended)
    await node.client.apply(order(epoch=2))
    await eventually(lambda: len(node.pids()) == 1)


async def test_a_second_agent_on_the_same_folder_refuses_to_start(node: Node) -> None:
    """It says what to do, and the first one is not disturbed."""
    second = AgentProcess(node.agent.folder, [node.front.address])
    done = await asyncio.to_thread(
        subprocess.run, second.command, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == 1
    assert "is in use by another agent; end that one or choose another --data" in done.stderr
    await node.run(order())


async def test_an_agent_whose_address_is_taken_refuses_to_start(node: Node, tmp_path: pathlib.Path) -> None:
    """One port has one agent."""
    second = AgentProcess(tmp_path / "other", [node.front.address])
    command = [part.replace(str(second.port), str(node.agent.port)) for part in second.command]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{node.agent.port}" in done.stderr


async def test_an_agent_serves_and_works_without_a_control_plane(tmp_path: pathlib.Path) -> None:
    """It keeps trying, and tells everything when one comes."""
    front = FakeFront()
    agent = AgentProcess(tmp_path, [front.address])
    await asyncio.to_thread(agent.start)
    try:
        async with front:
            await eventually(lambda: front.beats)
    finally:
        await asyncio.to_thread(agent.signal, signal.SIGTERM)


def test_an_agent_loads_neither_celery_nor_the_docker_sdk() -> None:
    """So it starts fast and stays small; of the control plane it loads nothing but the wire and TLS."""
    script = "import sys, agent.main, agent.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"celery", "kombu", "docker", "redis", "pydantic", "numpy"}
    shared = ("scheduler.pb", "scheduler.tls")
    assert {m for m in loaded if m.startswith("scheduler.") and not m.startswith(shared)} == set()
    assert "scheduler.tls.renewal" not in loaded, "certificates are followed by an agent, not issued"


async def test_scenario_R7_a_crash_and_restart_is_told_as_pending_and_running(node: Node) -> None:
    """Each change is reported, with the count of restarts, so that the control plane can count interruptions."""
    await node.run(order("w", "sh", "-c", "sleep 0.3; exit 5", restart="always"))
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        told = [s.state for b in node.front.beats for s in b.workload_statuses if s.workload_id == "w"]
        if "Pending" in told and "Running" in told[told.index("Pending") :]:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError(told)
    pending = next(s for b in node.front.beats for s in b.workload_statuses if s.state == "Pending")
    assert pending.metadata["exit_code"] == "5"
    assert pending.message.startswith("exited with code 5; restart ")
