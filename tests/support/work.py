"""Workloads that can be counted: each writes its pid into a file of its own and sleeps."""

from __future__ import annotations

import contextlib
import pathlib
from collections import Counter

import psutil

# Writes its pid into a file and sleeps. The shell stays, so that its command line names the file.
COMMAND = ["sh", "-c", 'echo "$$" >> "$0"; sleep 86400 & wait']


class Work:
    """The workloads' side of the story: the files they write and the processes they are."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Keep the files in a folder of their own."""
        self.folder = folder
        folder.mkdir()

    def file(self, workload_id: str) -> pathlib.Path:
        """The file that a workload writes."""
        return self.folder / f"{workload_id}.pids"

    def command(self, workload_id: str) -> list[str]:
        """The command of a workload."""
        return [*COMMAND, str(self.file(workload_id))]

    def processes(self) -> dict[str, list[psutil.Process]]:
        """The live processes by workload: the shells whose command line names a file of ours."""
        found: dict[str, list[psutil.Process]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if words[:1] == ["sh"] and words[-1].startswith(f"{self.folder}/"):
                    found.setdefault(pathlib.Path(words[-1]).stem, []).append(process)
        return {workload_id: _leaders(processes) for workload_id, processes in found.items()}

    def copies(self) -> Counter[str]:
        """How many copies of each workload live now; never two."""
        copies = Counter({workload_id: len(found) for workload_id, found in self.processes().items()})
        doubled = {workload_id: count for workload_id, count in copies.items() if count > 1}
        assert not doubled, f"more than one copy: {doubled}"
        return copies

    def starts(self, workload_id: str) -> int:
        """How often a workload was started."""
        return len(self.file(workload_id).read_text().split())


def _leaders(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Leave out the shells that another one of them has just forked and that are about to become its `sleep`."""
    if len(processes) == 1:
        return processes
    pids = {process.pid for process in processes}
    return [process for process in processes if _parent(process) not in pids]


def _parent(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.ppid()
    return 0
