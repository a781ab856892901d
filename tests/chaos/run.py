"""A run: `python -m tests.chaos.run --minutes 10 --seed 1 --history FILE`, or `make chaos`."""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import sys
import tempfile
import time

from scheduler.store.etcd import Etcd
from tests.chaos.check import Checker, check
from tests.chaos.faults import Faults
from tests.chaos.history import History
from tests.chaos.recorder import Recorder
from tests.chaos.users import Users
from tests.support.embedded import Embedded
from tests.support.work import Work

CONVERGE_SECONDS = 120.0
"""From the last fault on: two leases and graces, the longest stop, and the worst of the reapply guard's first waits."""


def run(folder: pathlib.Path, *, seconds: float, workloads: int, seed: int) -> Checker:
    """Do what the module says in a folder; return what was found. The history is history.jsonl in the folder."""
    work = Work(folder / "work")
    root = folder / "cluster"  # everything that names this folder is ended with the cluster: not who runs this
    root.mkdir()
    cluster = Embedded(root, "--fronts", "2")
    history = History(folder / "history.jsonl")
    try:
        with cluster.explaining():
            cluster.start()
            _play(cluster, history, work, seconds=seconds, workloads=workloads, seed=seed)
    finally:
        cluster.end_everything()
        history.close()
    return check(history.path)


def _play(cluster: Embedded, history: History, work: Work, *, seconds: float, workloads: int, seed: int) -> None:
    addresses = cluster.data.read_cluster()
    recorder = Recorder(history, addresses["etcd"], work)
    users = Users(addresses["server"].split(","), history, work, workloads, seed)
    recorder.start()
    try:
        users.settle()
        users.start()
        faults = Faults(cluster, history, seed)
        faults.run(seconds)
        users.stop()
        history.add("calm", what=f"after {faults.counts}")
        users.settle()
        _wait_converged(work, workloads, cluster)
        recorder.sample()
        _wait_recorded(recorder, addresses["etcd"])
        history.add("end")
    finally:
        users.close()
        recorder.close()


def _wait_converged(work: Work, workloads: int, cluster: Embedded) -> None:
    """Wait until all run, each once; the checker tells what does not."""
    deadline = time.monotonic() + CONVERGE_SECONDS
    while time.monotonic() < deadline:
        shown = cluster.workloads()
        running = {name for name, view in shown.items() if view["status"] == "Running"}
        copies = {name: len(found) for name, found in work.processes().items()}
        if len(running) == workloads and copies == dict.fromkeys(running, 1):
            return
        time.sleep(0.5)


def _wait_recorded(recorder: Recorder, etcd_address: str) -> None:
    """Wait until the history holds everything that etcd has now."""
    newest = asyncio.run(_revision(etcd_address))
    deadline = time.monotonic() + CONVERGE_SECONDS
    while recorder.revision < newest:
        assert time.monotonic() < deadline, f"the history ends at revision {recorder.revision}, etcd is at {newest}"
        time.sleep(0.1)


async def _revision(etcd_address: str) -> int:
    etcd = Etcd([etcd_address])
    try:
        return (await etcd.get("/"))[1]
    finally:
        await etcd.close()


def main() -> int:
    """Run as the command line says; the exit code says whether all is well."""
    parser = argparse.ArgumentParser(description="Random kill -9 and SIGSTOP of agents, workers and fronts.")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults go on (default 10)")
    parser.add_argument("--workloads", type=int, default=60, help="how many workloads (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the dice; the same seed makes the same choices")
    parser.add_argument("--folder", type=pathlib.Path, help="where to keep history and data (default: a new one)")
    options = parser.parse_args()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="fleetbeat-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"history: {folder / 'history.jsonl'}", flush=True)
    found = run(folder, seconds=options.minutes * 60, workloads=options.workloads, seed=options.seed)
    for violation in found.violations:
        print(violation)
    print(f"{len(found.violations)} violations;", *(f"{k} {v}" for k, v in sorted(found.counts.items())))
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
