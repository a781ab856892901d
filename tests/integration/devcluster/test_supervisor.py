"""The supervisor over real processes: start, restart, hold, stop, and every way of being killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from scheduler.devcluster.folder import Folder

ROOT = pathlib.Path(__file__).parents[3]
SECONDS = 20.0
MARK = "STANDIN_TEST"


class Up:
    """A running stand-in cluster, and everything that it has started, found by a mark in the environment."""

    def __init__(self, data: pathlib.Path, worker: str, *wrapper: str) -> None:
        """Start it, by way of another command where one is given."""
        self.wrapper = wrapper
        self.data = data
        self.folder = Folder(data)
        self.output = data.parent / "output"
        self.environment = {**os.environ, MARK: str(data), "STANDIN_WORKER": worker, "PYTHONPATH": str(ROOT)}
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Start (again) on the same data."""
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*self.wrapper, sys.executable, "-m", "tests.support.standin_cluster", str(self.data)],
                env=self.environment,
                stdout=output,
                stderr=output,
                cwd=ROOT,
            )
        return self.process

    def said(self) -> str:
        """Everything that it has printed."""
        return self.output.read_text()

    def ready(self) -> None:
        """Wait until it is up."""
        self.wait(lambda: self.folder.read_cluster().get("pid") == self.process.pid)

    def wait(self, condition: Callable[[], object]) -> None:
        """Wait for a condition; fail with what was printed."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def pid(self, name: str) -> int:
        """The pid of a child; 0 when it does not run."""
        child = self.folder.read_children().get(name)
        return child.pid if child and child.runs() else 0

    def processes(self) -> list[psutil.Process]:
        """Every process that descends from it, whoever is its parent now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                marked = process.environ().get(MARK) == str(self.data)
                if marked and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workloads(self) -> list[psutil.Process]:
        """The agent's workloads."""
        return [p for p in self.processes() if "598" in p.cmdline()]

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.terminate()
        return self.process.wait(SECONDS)

    def end_everything(self) -> None:
        """Kill what a failed test has left."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(SECONDS)


@pytest.fixture
def worker() -> str:
    """The role of the cluster's worker; tests override it."""
    return "server"


@pytest.fixture
def up(tmp_path: pathlib.Path, worker: str) -> Iterator[Up]:
    """A stand-in cluster that was started."""
    cluster = Up(tmp_path / "data", worker)
    try:
        yield cluster
    finally:
        cluster.end_everything()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything_in_reverse_order_and_leaves_no_process(up: Up, how: signal.Signals) -> None:
    """Agents first, so that they can stop their workloads while the control plane still hears them."""
    up.ready()
    assert up.folder.read_cluster()["cluster_id"] == "stand-in"
    up.process.send_signal(how)
    assert up.process.wait(SECONDS) == 0, up.said()
    assert up.processes() == []
    assert up.folder.read_cluster() == {}
    assert up.said().rstrip().endswith("stopped")
    assert "killed" not in up.said()


def test_nohup_keeps_its_promise(tmp_path: pathlib.Path) -> None:
    """Started by nohup, a closed terminal does not end it."""
    cluster = Up(tmp_path / "data", "server", "nohup")
    try:
        cluster.ready()
        cluster.process.send_signal(signal.SIGHUP)
        os.kill(cluster.pid("worker"), signal.SIGKILL)
        cluster.wait(lambda: "worker works again" in cluster.said())
        assert cluster.stop() == 0
    finally:
        cluster.end_everything()


def test_a_dead_child_is_started_again_and_that_is_said(up: Up) -> None:
    """Restart with back-off, told in words; its pid on record is the new one."""
    up.ready()
    old = up.pid("worker")
    os.kill(old, signal.SIGKILL)
    up.wait(lambda: up.pid("worker") not in {0, old})
    up.wait(lambda: "worker works again" in up.said())
    assert "worker was killed by SIGKILL; starting it again in 0.5 s" in up.said()
    assert up.stop() == 0


def test_a_killed_agents_workload_lives_on_and_is_ended_with_the_cluster(up: Up) -> None:
    """The next agent may adopt it; the supervisor never loses sight of it."""
    up.ready()
    (workload,) = up.workloads()
    os.kill(up.pid("agent-1"), signal.SIGKILL)
    up.wait(lambda: "agent-1 works again" in up.said())
    assert workload.is_running()
    assert workload.ppid() == up.process.pid
    assert up.stop() == 0
    assert up.processes() == []
    assert "killed 1 processes that were left" in up.said()


def test_a_held_child_stays_down_until_the_hold_is_removed(up: Up) -> None:
    """The file hold/NAME keeps a dead child dead."""
    up.ready()
    hold = up.folder.path("hold", "agent-1")
    hold.touch()
    os.kill(up.pid("agent-1"), signal.SIGKILL)
    up.wait(lambda: "agent-1 is held down until" in up.said())
    assert up.pid("agent-1") == 0
    hold.unlink()
    up.wait(lambda: "agent-1 works again" in up.said())
    assert up.stop() == 0


def test_an_orphan_of_the_cluster_does_not_stay_as_a_zombie(up: Up) -> None:
    """An agent that adopted a workload cannot reap it; the supervisor, its parent by now, does."""
    up.ready()
    (workload,) = up.workloads()
    os.kill(up.pid("agent-1"), signal.SIGKILL)
    up.wait(lambda: "agent-1 works again" in up.said())
    workload.kill()
    up.wait(lambda: not psutil.pid_exists(workload.pid))
    assert up.stop() == 0


@pytest.mark.parametrize("worker", ["parent"])
def test_what_a_dead_child_leaves_in_its_group_is_ended_before_it_starts_again(up: Up) -> None:
    """A worker's pool must not go on beside the new worker's."""
    up.ready()
    pools = [p for p in up.processes() if "599" in p.cmdline()]
    assert len(pools) == 1
    os.kill(up.pid("worker"), signal.SIGKILL)
    up.wait(lambda: "worker works again" in up.said())
    up.wait(lambda: len([p for p in up.processes() if "599" in p.cmdline()]) == 1)
    assert not pools[0].is_running()
    assert up.stop() == 0


@pytest.mark.parametrize("worker", ["deaf"])
def test_a_child_that_does_not_end_is_killed_after_its_grace(up: Up) -> None:
    """A deaf child delays the end by its grace, no more."""
    up.ready()
    assert up.stop() == 0
    assert "worker does not end; killing it" in up.said()
    assert up.processes() == []


@pytest.mark.parametrize("worker", ["deaf"])
def test_a_second_signal_ends_everything_at_once(up: Up) -> None:
    """Impatience is allowed, and still leaves no process."""
    up.ready()
    up.process.terminate()
    up.wait(lambda: "stopping" in up.said())
    up.process.terminate()
    assert up.process.wait(SECONDS) == 0
    assert up.processes() == []


def test_a_signal_during_the_start_leaves_no_process_either(up: Up) -> None:
    """Stopped half-way up."""
    up.wait(lambda: up.pid("etcd"))
    assert up.stop() == 0
    assert up.processes() == []


@pytest.mark.parametrize("worker", ["mortal"])
def test_a_child_that_never_comes_up_ends_the_start_with_its_log(up: Up) -> None:
    """Three deaths before it ever worked: told with the end of its log, nothing left."""
    assert up.process.wait(SECONDS) == 1
    assert "worker does not stay up" in up.said()
    assert "no licence found" in up.said()
    assert up.processes() == []


def test_after_a_killed_up_the_next_one_ends_the_leftovers_first(up: Up) -> None:
    """The children of the killed one are found by pid and start time; the agent's workload lives on."""
    up.ready()
    left = up.folder.read_children()
    (workload,) = up.workloads()
    up.process.kill()
    up.process.wait(SECONDS)
    assert [name for name, child in left.items() if child.runs()] == ["etcd", "front-1", "worker", "agent-1"]
    up.start()
    up.ready()
    assert "ending 4 processes that an earlier run left behind" in up.said()
    assert not any(child.runs() for child in left.values())
    assert workload.is_running()
    assert up.stop() == 0


def down(up: Up) -> str:
    """Run `fleetbeat down`; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "scheduler.cli", "down", "--data", str(up.data)],
        capture_output=True, text=True, check=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    return done.stdout


def test_down_stops_a_running_cluster_and_says_when_there_is_none(up: Up) -> None:
    """Exit code 0 both times."""
    up.ready()
    assert "stopped the cluster in" in down(up)
    assert up.process.wait(SECONDS) == 0
    assert up.processes() == []
    assert "nothing runs in" in down(up)


def test_down_ends_what_a_killed_up_has_left_workloads_included(up: Up) -> None:
    """Agents get SIGTERM, so that they stop their workloads."""
    up.ready()
    up.process.kill()
    up.process.wait(SECONDS)
    assert "stopped what was left" in down(up)
    up.wait(lambda: up.processes() == [])


def test_an_interrupt_just_before_the_start_leaves_no_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives before the supervisor listens to signals, and takes effect when children have been started."""
    monkeypatch.setenv("STANDIN_INTERRUPTED", "1")
    cluster = Up(tmp_path / "data", "server")
    try:
        assert cluster.process.wait(SECONDS) == 0, cluster.said()
        assert cluster.processes() == []
    finally:
        cluster.end_everything()
