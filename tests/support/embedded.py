"""A real embedded cluster, started and used as a person would: `fleetbeat up` and the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from scheduler.devcluster.folder import Folder

FLEETBEAT = str(pathlib.Path(sys.executable).parent / "fleetbeat")
UP_SECONDS = 210.0
DOWN_SECONDS = 90.0
WAIT_SECONDS = 60.0
_MARK = "FLEETBEAT_TEST_CLUSTER"
_TAIL_LINES = 40


class Embedded:
    """One cluster with a data folder of its own."""

    def __init__(self, folder: pathlib.Path, *options: str) -> None:
        """Describe the cluster; `start` starts it. The options are those of `fleetbeat up`."""
        self.root = folder
        self.data = Folder(folder / "data")
        self.output = folder / "up.out"
        self.options = options
        self.environment = {**os.environ, _MARK: str(folder)}
        for name in ("FLEETBEAT_SERVER", "FLEETBEAT_DATA"):
            self.environment.pop(name, None)
        self.up: subprocess.Popen[bytes] | None = None

    # The cluster

    def start(self) -> None:
        """Type `fleetbeat up` and wait until it says that it is ready."""
        with self.output.open("ab") as output:
            self.up = subprocess.Popen(
                [FLEETBEAT, "up", "--data", str(self.data.root), *self.options],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.root, env=self.environment,
            )  # fmt: skip
        up = self.up
        self.wait(lambda: up.poll() is not None or self.data.read_cluster().get("pid") == up.pid, "up", UP_SECONDS)
        assert up.poll() is None, self.said()

    def terminate(self) -> int:
        """SIGTERM `up` and return its exit code."""
        assert self.up
        self.up.terminate()
        return self.up.wait(DOWN_SECONDS)

    def end_everything(self) -> None:
        """Stop it politely, then kill whatever a failed test has left."""
        if self.up and self.up.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.terminate()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if self.up:
            self.up.wait(DOWN_SECONDS)

    def said(self) -> str:
        """Everything that `up` has printed."""
        return self.output.read_text()

    def kill_child(self, name: str) -> None:
        """SIGKILL a process of the cluster."""
        os.kill(self.data.read_children()[name].pid, signal.SIGKILL)

    def kill_child_and_wait(self, name: str) -> None:
        """SIGKILL a process of the cluster and wait until `up` says that it works again."""
        told = f"{name} works again"
        before = self.said().count(told)
        self.kill_child(name)
        self.wait(lambda: self.said().count(told) > before, told)

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Let `up` leave a dead child dead for a block."""
        hold = self.data.path("hold", name)
        hold.touch()
        try:
            yield
        finally:
            hold.unlink()

    def processes(self) -> list[psutil.Process]:
        """Every live process of the cluster, found by a mark in its environment or its folder in its command line."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            if process.environ().get(_MARK) == str(self.root):
                return True
            return any(str(self.root) in word for word in process.cmdline())
        return False

    # The command line

    def cli(self, *words: str, expect: int = 0) -> str:
        """Type a command; return what it printed, fail when its exit code is another."""
        done = subprocess.run(
            [FLEETBEAT, "--data", str(self.data.root), *words],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
            cwd=self.root, env=self.environment,
        )  # fmt: skip
        assert done.returncode == expect, (
            f"fleetbeat {' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def ask(self, *words: str) -> Any:
        """Type a command that reads, and parse its answer."""
        return json.loads(self.cli(*words, "-o", "json"))

    def workloads(self, *words: str) -> dict[str, dict[str, Any]]:
        """What `workload ls` shows, by id."""
        return {w["workload_id"]: w for w in self.ask("workload", "ls", *words)["workloads"]}

    def nodes(self) -> dict[str, dict[str, Any]]:
        """What `node ls` shows, by id."""
        return {n["node_id"]: n for n in self.ask("node", "ls")["nodes"]}

    def cycles(self, loop: str) -> list[int]:
        """The slot of the last finished cycle of a loop, by shard."""
        shards = self.ask("status")["shards"]
        return [int(cycle["slot"]) for shard in shards for cycle in shard["loops"] if cycle["loop"] == loop]

    def get(self, url: str, method: str = "GET") -> tuple[int, Any]:
        """Fetch JSON from a place that cluster.json names."""
        request = urllib.request.Request(url, method=method)  # noqa: S310 - a loopback address of the cluster
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, None

    # Waiting and failing

    def wait(self, condition: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait for a condition; fail with what was waited for."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
            time.sleep(0.1)

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Add to a failure what the cluster said: `up`'s output and the end of each child's log."""
        try:
            yield
        except Exception as failure:
            failure.add_note(f"--- fleetbeat up said:\n{self.said()}")
            for log in sorted(self.data.path("logs").glob("*.log")):
                lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
                failure.add_note("\n".join([f"--- {log.name}:", *lines]))
            raise
