"""Who is who in the process table."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from agent.process import table
from agent.process.table import Process
from tests.support.waiting import eventually


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A child in a session of its own, with marks; it runs already, for before that its environment is not there."""
    env = {table.AGENT_MARK: f"test-{os.getpid()}", table.WORKLOAD_MARK: "w", "SECRET": "x"}
    code = "import time; print('runs', flush=True); time.sleep(600)"
    command = [sys.executable, "-I", "-S", "-c", code]
    with subprocess.Popen(command, env=env, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"runs\n"
        yield process
        process.kill()


def test_a_process_is_known_by_pid_and_start(child: subprocess.Popen[bytes]) -> None:
    """The same pid with another start is another process; one that has ended but was not reaped, has ended."""
    found = table.read(child.pid)
    assert found
    assert (found.parent, found.session, found.group) == (os.getpid(), child.pid, child.pid)
    assert table.is_alive(child.pid, found.start_ticks)
    assert not table.is_alive(child.pid, found.start_ticks + 1)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not table.is_alive(child.pid, found.start_ticks)
    assert child.pid not in [p.pid for p in table.read_all()]
    child.wait()
    assert table.read(child.pid) is None


def test_marks_are_read_and_nothing_else_of_the_environment(child: subprocess.Popen[bytes]) -> None:
    """Only what begins with FLEETBEAT_."""
    assert table.marked(f"test-{os.getpid()}") == {
        child.pid: {table.AGENT_MARK: f"test-{os.getpid()}", table.WORKLOAD_MARK: "w"}
    }
    assert table.marked("another") == {}


def test_a_session_belongs_to_its_leader_while_the_number_is_its_own() -> None:
    """Members outlive the leader; when the pid is another's by now, nobody is left."""

    def process(pid: int, session: int, start: int = 5) -> Process:
        return Process(pid, 1, session, session, start, ended=False)

    assert table.in_session([process(10, 10), process(11, 10), process(12, 12)], 10, 5) == {10, 11}
    assert table.in_session([process(11, 10)], 10, 5) == {11}
    assert table.in_session([process(10, 10, start=99), process(11, 10)], 10, 5) == set()


async def test_the_end_of_a_process_is_noticed(child: subprocess.Popen[bytes]) -> None:
    """Of one that lives, of one that has ended, and of one that never was."""
    found = table.read(child.pid)
    assert found
    waiting = asyncio.create_task(table.wait_ended(child.pid, found.start_ticks))
    await asyncio.sleep(0)
    assert not waiting.done()
    table.send(child.pid, found.start_ticks + 1, signal.SIGKILL)
    assert child.poll() is None, "another process with the same pid is not signalled"
    table.send(child.pid, found.start_ticks, signal.SIGKILL)
    await asyncio.wait_for(waiting, 10)
    await table.wait_ended(child.pid, found.start_ticks)
    child.wait()
    await table.wait_ended(child.pid, found.start_ticks)
    table.send(child.pid, found.start_ticks, signal.SIGKILL)
    await eventually(lambda: table.read(child.pid) is None)
