"""A node is emptied under load: `fleetbeat node drain` on a running cluster, real work in real processes."""

from __future__ import annotations

import pathlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import yaml

from tests.support.embedded import Embedded
from tests.support.work import Work

NODE = "agent-1"
PLAIN = [f"drain-{n}" for n in range(9)]
ALONE = "drain-alone"
SAMPLE_SECONDS = 0.05


def document(work: Work, workload_id: str) -> dict[str, object]:
    """The manifest of one workload."""
    return {
        "id": workload_id,
        "type": "container",
        "resources": {"cpu_millicores": 50, "memory_mb": 16},
        "metadata": {"fleetbeat.exclusive": "true"} if workload_id == ALONE else {},
        "container": {"image": "host", "command": work.command(workload_id)},
    }


def shells(found: list[psutil.Process]) -> int:
    """Count copies: a shell that has just forked, and is not `sleep` yet, looks like two."""
    pids = {process.pid for process in found}
    count = 0
    for process in found:
        with suppress(psutil.Error):
            count += process.ppid() not in pids
    return count


@contextmanager
def counted(work: Work) -> Iterator[dict[str, set[int]]]:
    """Collect how many copies of each workload live, over and over, for a block."""
    seen: dict[str, set[int]] = {name: set() for name in [*PLAIN, ALONE]}
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_SECONDS):
            now = Counter({name: shells(found) for name, found in work.processes().items()})
            for name, counts in seen.items():
                counts.add(now[name])

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield seen
    finally:
        over.set()
        sampler.join()


def test_F64_a_node_is_emptied_under_load_and_everything_keeps_running(
    shared_cluster: Embedded, tmp_path: pathlib.Path
) -> None:
    """Each workload has a copy all the time; the exclusive one never two; the node ends Drained, then Ready again."""
    cluster, work = shared_cluster, Work(tmp_path / "work")
    manifest = tmp_path / "work.yaml"
    manifest.write_text(yaml.safe_dump_all([document(work, name) for name in [*PLAIN, ALONE]]))
    with cluster.explaining():
        try:
            for other in ("agent-2", "agent-3"):
                cluster.cli("node", "cordon", other)
            cluster.cli("apply", "-f", str(manifest))
            for other in ("agent-2", "agent-3"):
                cluster.cli("node", "uncordon", other)
            assert {w["assigned_node_id"] for w in cluster.workloads().values() if w["workload_id"] in PLAIN} == {NODE}
            with counted(work) as seen:
                drained = cluster.ask("node", "drain", NODE, "--max-parallel", "4")
            assert (drained["state"], drained["moved"], drained["left"]) == ("Drained", 10, 0)
            assert cluster.nodes()[NODE]["status"] == "Drained"
            assert not {n: c for n, c in seen.items() if n != ALONE and not c <= {1, 2}}
            assert seen[ALONE] <= {0, 1}, seen
            shown = cluster.workloads()
            assert NODE not in {shown[name]["assigned_node_id"] for name in [*PLAIN, ALONE]}
            cluster.wait(lambda: work.copies() == Counter(dict.fromkeys([*PLAIN, ALONE], 1)), "one copy of each")
        finally:
            cluster.cli("node", "undrain", NODE)
            cluster.cli("workload", "delete", *PLAIN, ALONE)
    assert cluster.nodes()[NODE]["status"] == "Ready"
