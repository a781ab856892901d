"""The main job, end to end: `fleetbeat up` and the command line, real work in real processes, and every part killed."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections import Counter

import psutil
import pytest
import yaml

from scheduler.devcluster.binaries import etcd_warning, find_etcd
from tests.support import beds
from tests.support.embedded import Embedded
from tests.support.work import Work

WORKLOADS = 20
CYCLES_TO_WATCH = 5
AGENT = "agent-2"


@pytest.mark.slow
def test_the_main_job(cluster: Embedded, tmp_path: pathlib.Path) -> None:
    """Twenty workloads on three agents outlive an agent, the beat, a worker, the front, Redis and etcd, each once."""
    etcd = find_etcd(os.environ.get("PATH", ""))
    beds.need("etcd", not etcd_warning(etcd.version), f"{etcd.shown} is not fit for crash tests")
    work = Work(tmp_path / "work")
    with cluster.explaining():
        cluster.start()
        apply_all(cluster, work)
        lose_an_agent(cluster, work)
        for name in ("beat", "shard-0-a", "front-1", "redis", "etcd"):
            lose_a_part(cluster, work, name)
        delete_all(cluster, work)
        end(cluster)


def apply_all(cluster: Embedded, work: Work) -> None:
    """Apply twenty workloads from one file and see them run on three agents as real processes."""
    manifest = cluster.root / "work.yaml"
    manifest.write_text(yaml.safe_dump_all([document(work, f"job-{n}") for n in range(WORKLOADS)]))
    cluster.cli("apply", "-f", str(manifest))
    shown = cluster.workloads()
    assert len(shown) == WORKLOADS
    assert {w["status"] for w in shown.values()} == {"Running"}
    assert {w["assigned_node_id"] for w in shown.values()} == {"agent-1", "agent-2", "agent-3"}
    assert work.copies() == Counter(dict.fromkeys(shown, 1))
    cluster.wait(lambda: all(work.file(w).exists() and work.starts(w) == 1 for w in shown), "each wrote its file once")


def document(work: Work, workload_id: str) -> dict[str, object]:
    """The manifest of one workload."""
    return {
        "id": workload_id,
        "type": "container",
        "desired_state": "Running",
        "resources": {"cpu_millicores": 50, "memory_mb": 16, "disk_gb": 0},
        "container": {"image": "host", "command": work.command(workload_id)},
    }


def lose_an_agent(cluster: Embedded, work: Work) -> None:
    """Kill an agent and its workloads; see them run elsewhere, each once; let it return, and see no second copy."""
    theirs = set(cluster.workloads("--node", AGENT))
    assert theirs
    with cluster.held(AGENT):
        cluster.kill_child(AGENT)
        kill_workloads(work, theirs)

        def moved() -> bool:
            shown = cluster.workloads()
            return work.copies().keys() >= theirs and all(
                shown[w]["status"] == "Running" and shown[w]["assigned_node_id"] != AGENT for w in theirs
            )

        cluster.wait(moved, f"the workloads of {AGENT} run elsewhere")
        assert cluster.nodes()[AGENT]["status"] == "NotReady"
        runs_each_once(cluster, work)
    cluster.wait(lambda: cluster.nodes()[AGENT]["status"] == "Ready", f"{AGENT} is back")
    watch_cycles(cluster, work)
    runs_each_once(cluster, work)
    for workload_id in cluster.workloads():
        assert work.starts(workload_id) == (2 if workload_id in theirs else 1), workload_id


def kill_workloads(work: Work, ids: set[str]) -> None:
    """SIGKILL the processes of some workloads, children included."""
    for workload_id, found in work.processes().items():
        for process in found if workload_id in ids else []:
            for one in (*process.children(recursive=True), process):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


def watch_cycles(cluster: Embedded, work: Work) -> None:
    """Look on for some reconcile cycles of every shard; no workload may have two copies at any time."""
    begin = cluster.cycles("reconcile")

    def watched() -> bool:
        work.copies()
        now = cluster.cycles("reconcile")
        return all(last >= first + CYCLES_TO_WATCH for first, last in zip(begin, now, strict=True))

    cluster.wait(watched, f"{CYCLES_TO_WATCH} more cycles of each shard")


def runs_each_once(cluster: Embedded, work: Work) -> None:
    """Every workload is shown as running and is exactly one process."""
    shown = cluster.workloads()
    assert {w["status"] for w in shown.values()} == {"Running"}, shown
    assert work.copies() == Counter(dict.fromkeys(shown, 1))


def lose_a_part(cluster: Embedded, work: Work, name: str) -> None:
    """Kill a part of the control plane; when it is back, one more workload gets to run, and the others still do."""
    before = {workload_id: found[0].pid for workload_id, found in work.processes().items()}
    cluster.kill_child_and_wait(name)
    workload_id = f"after-{name}"
    cluster.cli("apply", "--image", "host", "--id", workload_id, "--", *work.command(workload_id))
    cluster.wait(lambda: workload_id in work.copies(), f"{workload_id} is a process")
    runs_each_once(cluster, work)
    after = {workload_id: found[0].pid for workload_id, found in work.processes().items()}
    assert {w: after[w] for w in before} == before, "a workload was restarted"


def delete_all(cluster: Embedded, work: Work) -> None:
    """Delete everything and see no process left."""
    cluster.cli("workload", "delete", *cluster.workloads())
    cluster.wait(lambda: not cluster.workloads(), "no workload is shown")
    assert work.processes() == {}


def end(cluster: Embedded) -> None:
    """SIGTERM the cluster and see no process left at all."""
    assert cluster.terminate() == 0, cluster.said()
    assert cluster.processes() == []
    assert cluster.data.read_cluster() == {}


def test_flower_shows_workers_queues_and_cycles_by_name_and_shard(shared_cluster: Embedded) -> None:
    """Flower's HTTP API: each shard's worker, its queue, and the cycles with the shard they were for."""
    flower = shared_cluster.data.read_cluster()["flower"]
    with shared_cluster.explaining():
        workers: dict[str, object] = {}

        def all_online() -> bool:
            _, shown = shared_cluster.get(f"{flower}/api/workers?refresh=1")
            workers.update(shown or {})
            return {name.partition("@")[0] for name in workers} >= {"shard-0-a", "shard-1-a"}

        shared_cluster.wait(all_online, "both workers are shown")

        def queues() -> set[str]:
            _, shown = shared_cluster.get(f"{flower}/api/queues/length")
            return {queue["name"] for queue in (shown or {}).get("active_queues", [])}

        shared_cluster.wait(lambda: queues() >= {"shard-0", "shard-1"}, "both queues are shown")

        def cycles() -> set[tuple[str, str]]:
            _, shown = shared_cluster.get(f"{flower}/api/tasks?limit=500")
            return {(task["name"], task["routing_key"]) for task in (shown or {}).values()}

        wanted = {(f"tasks.{loop}", f"shard-{k}") for loop in ("reconcile", "monitor_nodes") for k in (0, 1)}
        shared_cluster.wait(lambda: cycles() >= wanted, f"the cycles {sorted(wanted)} are shown")
        _, tasks = shared_cluster.get(f"{flower}/api/tasks?limit=10&taskname=tasks.reconcile")
        assert tasks
        assert all("shard" in task["kwargs"] for task in tasks.values()), tasks


def test_flower_of_an_embedded_cluster_changes_nothing(shared_cluster: Embedded) -> None:
    """Its API needs no login on the loopback; so it must not be able to shut a worker down."""
    flower = shared_cluster.data.read_cluster()["flower"]
    with shared_cluster.explaining():
        _, workers = shared_cluster.get(f"{flower}/api/workers")
        for worker in workers or ["any"]:
            code, _ = shared_cluster.get(f"{flower}/api/worker/shutdown/{worker}", method="POST")
            assert code == 403
