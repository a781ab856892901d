"""Workloads as real processes of a real agent."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import sys

import pytest

from agent.process import table
from agent.process.cgroups import Cgroups, mounts
from scheduler.pb import agent_pb2 as pb
from tests.integration.agent.conftest import Node, a_node
from tests.support.agent_process import order
from tests.support.waiting import eventually

TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
subprocess.Popen(["setsid", "--fork", sys.executable, "-c", child])
time.sleep(600)
"""
"""A process with a child, a child in another session, and an orphan in another one; none heeds SIGTERM."""


async def test_a_command_runs_in_its_own_session_and_folder_with_its_environment(node: Node) -> None:
    """No shell, minimal environment and what the spec gives; output is kept."""
    script = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.getsid(0), os.getpid()]))"
    command = (sys.executable, "-c", f"{script}; input()")
    await node.client.apply(order("w", *command, env={"COLOR": "a b $HOME"}, epoch=3))
    status = await node.front.reported("w", "Failed")
    assert status.metadata["exit_code"] == "1"
    env, folder, session, pid = json.loads(next(x for x in node.output().splitlines() if x.startswith("[{")))
    assert env["COLOR"] == "a b $HOME"
    assert (env["FLEETBEAT_WORKLOAD_ID"], env["FLEETBEAT_WORKLOAD_EPOCH"]) == ("w", "3")
    assert {k for k in env if not k.startswith("FLEETBEAT_")} <= {"PATH", "HOME", "PWD", "LANG", "COLOR", "LC_CTYPE"}
    assert folder == str(node.data / "work" / "w")
    assert session == pid
    assert "EOFError" in node.output()


async def test_a_workload_inherits_nothing_of_the_agent(node: Node) -> None:
    """No socket, no lock, no pipe; no signal is blocked or ignored, even when the agent runs under nohup."""
    await node.signal(signal.SIGKILL)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        await node.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    await node.client.apply(order("w", "sh", "-c", "ls /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status"))
    await node.front.reported("w", "Stopped")
    lines = node.output().split()
    assert lines[:4] == ["0", "1", "2", "3"], "ls opens 3 itself"
    assert lines[4] == "SigBlk:"
    runtime_internal = 0x180000000  # 32 and 33 are the C library's own
    assert [int(lines[n], 16) & ~runtime_internal for n in (5, 7)] == [0, 0]


async def test_apply_is_answered_at_once_and_the_same_apply_is_skipped(node: Node) -> None:
    """Applied, then skipped; one process."""
    first = await node.client.apply(order())
    assert first.applied
    assert first.status.actual_state in (pb.ACTUAL_STATE_PENDING, pb.ACTUAL_STATE_RUNNING)
    assert first.status.message
    assert first.status.metadata["task_id"]
    await node.front.reported("w", "Running")
    again = await node.client.apply(order())
    assert (again.applied, again.skipped) == (True, True)
    assert len(node.pids()) == 1
    status = await node.client.status("w")
    assert status
    assert (status.revision_id, status.assignment_epoch) == ("r1", 1)


async def test_a_killed_agent_finds_its_work_again(node: Node) -> None:
    """Same process, reported as running by the first heartbeat; the restart policy goes on, its exit is noticed."""
    pid = await node.run(order("w", "sleep", "600", restart="always"))
    await node.signal(signal.SIGKILL)
    assert table.read(pid)
    await node.start()
    first = next(b for b in node.front.beats if b.instance_id == node.front.registrations[-1].instance_id)
    assert first.full
    assert [(s.workload_id, s.state) for s in first.workload_statuses] == [("w", "Running")]
    assert node.pids() == [pid]
    assert (await node.client.apply(order("w", "sleep", "600", restart="always"))).skipped
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: node.pids() not in ([], [pid]))
    await eventually(lambda: (last := node.front.last("w")) is not None and last.metadata["restarts"] == "1")


async def test_what_ended_while_the_agent_was_away_is_not_started_by_it(node: Node) -> None:
    """Whatever the restart policy: the control plane may have moved it elsewhere."""
    pid = await node.run(order("w", "sleep", "600", restart="always"))
    await node.signal(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: node.pids() == [])
    await node.start()
    status = await node.front.reported("w", "Failed")
    assert status.message == "process ended while the agent was away"
    assert node.pids() == []
    await node.run(order("w", "sleep", "600", restart="always", epoch=2))
    assert len(node.pids()) == 1


async def test_scenario_O2_a_process_without_a_record_does_not_survive_a_restart(node: Node) -> None:
    """Nor does what a dead workload left; another's processes are not touched."""
    await node.run(order("lost", "sleep", "600"))
    pid = await node.run(order("half", "sh", "-c", "sleep 600 & sleep 601"))
    await node.run(order("kept", "sleep", "600"))
    await node.signal(signal.SIGKILL)
    (node.data / "workloads" / "lost.json").unlink()
    os.kill(pid, signal.SIGKILL)
    await node.start()
    await eventually(lambda: node.pids("lost") == [] and node.pids("half") == [])
    assert len(node.pids("kept")) == 1
    assert await node.client.status("lost") is None


async def test_a_process_that_its_record_does_not_name_any_more_is_found_by_its_marks(node: Node) -> None:
    """Its descendants carry the same marks and are not taken for it; no second copy is started."""
    pid = await node.run(order("w", "sh", "-c", "setsid sleep 600 & exec sleep 600"))
    await eventually(lambda: len(node.pids()) == 2)
    await node.signal(signal.SIGKILL)
    path = node.data / "workloads" / "w.json"
    record = json.loads(path.read_text())
    record["process"] = None
    path.write_text(json.dumps(record))
    before = node.pids()
    await node.start()
    status = await node.front.reported("w", "Running")
    assert status.metadata["pid"] == str(pid)
    assert node.pids() == before
    await node.client.delete("w", 1)
    assert node.pids() == []


async def test_delete_ends_the_whole_tree_and_leaves_no_trace(node: Node) -> None:
    """Grandchildren in sessions of their own that heed no SIGTERM included; record, folder and output go."""
    await node.run(order("w", sys.executable, "-c", TREE))
    await eventually(lambda: len(node.pids()) == 4)
    answer = await node.client.delete("w", 1)
    assert answer.success
    await eventually(lambda: node.pids() == [])
    for _ in range(100):
        if await node.client.status("w") is None:
            break
        await asyncio.sleep(0.05)
    assert await node.client.status("w") is None
    left = [p for p in node.data.rglob("*") if p.name.startswith("w.") or p.name == "w"]
    assert left == [node.data / "deleted" / "w.json"]
    assert (await node.client.delete("w", 1)).success


async def test_what_is_left_of_a_tree_ends_with_its_first_process(node: Node) -> None:
    """So a restart never meets a remainder of the run before."""
    await node.client.apply(order("w", "sh", "-c", "setsid sleep 600 & sleep 601 & exit 3"))
    status = await node.front.reported("w", "Failed")
    assert status.message == "exited with code 3"
    assert node.pids() == []


async def test_a_stop_is_graceful_first(node: Node) -> None:
    """SIGTERM reaches the group; who ends in time is not killed."""
    await node.run(order("w", "sh", "-c", "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done"))
    await eventually(lambda: "ready" in node.output())
    await node.client.apply(order("w", "sh", "-c", "trap", desired="STOPPED"))
    status = await node.front.reported("w", "Stopped")
    assert status.message == "stopped"
    assert "bye" in node.output()
    assert node.pids() == []


async def test_who_heeds_no_sigterm_is_killed_after_the_grace(node: Node) -> None:
    """The whole tree."""
    await node.run(order("w", sys.executable, "-c", TREE))
    await eventually(lambda: len(node.pids()) == 4)
    await node.client.apply(order("w", sys.executable, "-c", TREE, desired="STOPPED"))
    await node.front.reported("w", "Stopped")
    assert node.pids() == []


async def test_a_new_revision_replaces_the_process(node: Node) -> None:
    """One after the other; the work folder stays."""
    old = await node.run(order("w", "sh", "-c", "echo 1 > kept; echo ready; sleep 600"))
    await eventually(lambda: node.output() == "ready\n")
    await node.client.apply(order("w", "sh", "-c", "cat kept; sleep 601", revision="r2"))
    await eventually(lambda: node.pids() and old not in node.pids())
    await eventually(lambda: node.output() == "ready\n1\n")


async def test_the_restart_policy_is_carried_out(node: Node) -> None:
    """on-failure: again after a failure, not after success."""
    script = "echo run >> runs; test $(wc -l < runs) -ge 3"
    await node.client.apply(order("w", "sh", "-c", script, restart="on-failure"))
    status = await node.front.reported("w", "Stopped")
    assert (status.message, status.metadata["restarts"]) == ("exited with code 0", "2")
    assert (node.data / "work" / "w" / "runs").read_text() == "run\n" * 3


async def test_without_a_restart_policy_the_exit_code_tells_the_state(node: Node) -> None:
    """0 is Stopped, all else Failed, with the code or the signal's name; no zombie stays."""
    await node.client.apply(order("good", "true"))
    await node.client.apply(order("bad", "sh", "-c", "exit 42"))
    await node.client.apply(order("shot", "sh", "-c", "kill -SEGV $$"))
    assert (await node.front.reported("good", "Stopped")).metadata["exit_code"] == "0"
    assert (await node.front.reported("bad", "Failed")).message == "exited with code 42"
    shot = await node.front.reported("shot", "Failed")
    assert (shot.message, shot.reason.code) == ("killed by SIGSEGV", "RUNTIME_ERROR")
    assert node.agent.process
    parent = node.agent.process.pid
    processes = [table.read(int(p.name)) for p in pathlib.Path("/proc").iterdir() if p.name.isdecimal()]
    assert [p for p in processes if p and p.parent == parent] == []


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (("/no/such/program",), "INVALID_CONFIGURATION", "cannot run '/no/such/program': "),
        (("/etc/passwd",), "INVALID_CONFIGURATION", "Permission denied"),
        (("no-such-program", "--secret=x"), "INVALID_CONFIGURATION", "cannot run 'no-such-program'"),
    ],
)
async def test_a_command_that_cannot_be_run_is_told(node: Node, command: tuple[str, ...], code: str, text: str) -> None:
    """With a code that ends retries."""
    await node.client.apply(order("w", *command))
    reported = await node.front.reported("w", "Failed")
    assert reported.reason.code == code
    status = await node.client.status("w")
    assert status
    assert status.actual_state == pb.ACTUAL_STATE_FAILED
    assert status.metadata["failure_reason"] == code
    assert text in status.message
    assert node.pids() == []


async def test_output_is_bounded(tmp_path: pathlib.Path) -> None:
    """A workload that writes without end does not fill the disk, and its last words stay."""
    async with a_node(tmp_path, "--output-max-bytes", "20000") as node:
        script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo done; sleep 600"
        await node.run(order("w", "sh", "-c", script))
        files = [node.data / "output" / name for name in ("w.log", "w.log.1")]
        await eventually(lambda: files[1].exists() and "done" in files[1].read_text() + files[0].read_text(), 20)
        await eventually(lambda: sum(f.stat().st_size for f in files) <= 30_000)


@pytest.mark.skipif("memory" not in Cgroups("probe", mounts()), reason="no memory control group can be written")
async def test_a_workload_beyond_its_memory_limit_is_killed_and_says_so(node: Node) -> None:
    """The node lives; the code is not one that ends retries."""
    script = "x = bytearray(200 * 2**20); import time; time.sleep(600)"
    await node.client.apply(order("w", sys.executable, "-c", script, memory_mb=50))
    status = await node.front.reported("w", "Failed")
    assert "more memory than its limit" in status.message
    assert status.reason.code == "INSUFFICIENT_RESOURCES"
    assert status.reason.retryable


async def test_secrets_stay_out_of_the_log_and_the_arguments(node: Node) -> None:
    """Environment values pass through a pipe and lie in a file that only the owner can read."""
    await node.run(order("w", "sleep", "600", env={"TOKEN": "hunter2-hunter2"}))
    await node.client.apply(order("x", "no-such-program", env={"TOKEN": "hunter2-hunter2"}))
    await node.front.reported("x", "Failed")
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                assert b"hunter2-hunter2" not in (entry / "cmdline").read_bytes()
            except OSError:
                continue
    assert "hunter2" not in node.agent.log


async def test_usage_of_a_running_workload_is_measured(tmp_path: pathlib.Path) -> None:
    """In heartbeats and in the status."""
    async with a_node(tmp_path) as node:
        node.front.interval_ms = 600
        node.front.send_full = True
        await node.run(order("w", sys.executable, "-c", "x = bytearray(30 * 2**20)\nwhile True: pass"))

        def is_measured() -> bool:
            samples = [s for b in node.front.beats for s in b.workload_usage if s.workload_id == "w"]
            return any(s.cpu_percent > 1 and s.memory_bytes > 30 * 2**20 and s.source == "process" for s in samples)

        await eventually(is_measured)
        status = await node.client.status("w")
        assert status
        assert status.usage.memory_bytes > 30 * 2**20
