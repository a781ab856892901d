"""The command line against a real front over a real etcd and Redis: the two agree on the wire."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support import servers

FLEETBEAT = (sys.executable, "-m", "scheduler.cli")
_ROOT = pathlib.Path(__file__).parents[3]
_START_SECONDS = 30.0


@pytest.fixture(scope="module")
def environment(
    etcd_server: servers.Server, redis_server: servers.Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Run `fleetbeat front` with a prefix of its own and return what its clients need."""
    grpc_port, http_port = servers.free_port(), servers.free_port()
    base = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("FLEETBEAT_", "SCHEDULER_"))},
        "PYTHONPATH": str(_ROOT),
        "PERSYS_GRPC_ADDR": "127.0.0.1",
        "GRPC_PORT": str(grpc_port),
        "METRICS_PORT": str(http_port),
        "ETCD_ENDPOINTS": etcd_server.address,
        "FLEETBEAT_ETCD_PREFIX": f"/t/cli-{grpc_port}",
        "REDIS_ADDR": redis_server.address,
        "SCHEDULER_SHARD_COUNT": "2",
        "FLEETBEAT_FLOWER_URL": "http://flower.example:5555",
    }
    log = tmp_path_factory.mktemp("front") / "log"
    with log.open("wb") as out, subprocess.Popen([*FLEETBEAT, "front"], env=base, stdout=out, stderr=out) as front:
        try:
            _wait_until_ready(f"http://127.0.0.1:{http_port}/readyz", front, log)
            yield {**base, "FLEETBEAT_SERVER": f"127.0.0.1:{grpc_port}"}
        finally:
            front.terminate()
            front.wait(30)


def _wait_until_ready(url: str, front: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and front.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"the front is not ready:\n{log.read_text()[-3000:]}")


def run(environment: dict[str, str], *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [*FLEETBEAT, *arguments], env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_F11_without_a_node_a_workload_is_stored_and_the_exit_code_is_2(environment: dict[str, str]) -> None:
    """F11: apply, show, explain, list and delete speak of the same workload."""
    done = run(environment, "apply", "--image", "x", "--id", "web", "--cpu", "100m", "--timeout", "500ms")
    assert done.returncode == 2, done.stderr
    shown = json.loads(run(environment, "workload", "show", "web", "-o", "json").stdout)["workload"]
    assert (shown["workload_id"], shown["status"], shown["type"]) == ("web", "Pending", "container")
    assert shown["pending_reason"]
    assert run(environment, "workload", "explain", "web").stdout.startswith("web: Pending")
    assert [w["workload_id"] for w in _workloads(environment)] == ["web"]
    assert run(environment, "workload", "delete", "web", "--no-wait").returncode == 0


def _workloads(environment: dict[str, str]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run(environment, "workload", "ls", "-o", "json").stdout)["workloads"]
    return found


def test_what_is_not_there_is_not_found(environment: dict[str, str]) -> None:
    """Exit code 1 and the front's words."""
    for command in (("workload", "show"), ("workload", "explain"), ("workload", "logs"), ("node", "show")):
        done = run(environment, *command, "none")
        assert done.returncode == 1
        assert "none" in done.stderr
        assert "NOT_FOUND" in done.stderr


def test_status_and_summary_of_an_empty_cluster(environment: dict[str, str]) -> None:
    """Nobody leads, no node, two shards."""
    status = json.loads(run(environment, "status", "-o", "json").stdout)
    assert status["shard_count"] == 2
    assert status["flower_url"] == "http://flower.example:5555"
    assert status["summary"]["total_nodes"] == 0
    assert "nobody leads" in run(environment, "status").stdout
    assert run(environment, "summary").stdout.startswith("nodes      0")
    assert run(environment, "node", "ls").returncode == 0


def test_retry_of_an_unknown_workload_tells_why_not(environment: dict[str, str]) -> None:
    """Exit code 1."""
    done = run(environment, "workload", "retry", "none")
    assert done.returncode == 1
    assert "Error: none: " in done.stderr


def test_F82_disks_are_made_listed_shown_and_deleted(environment: dict[str, str]) -> None:
    """And one that a workload names is not deleted without force."""
    made = run(environment, "disk", "create", "data", "--driver", "nfs", "--size-gb", "20")
    disk_id = made.stdout.strip()
    assert (made.returncode, disk_id.startswith("disk-")) == (0, True), made.stderr
    listed = json.loads(run(environment, "disk", "list", "-o", "json").stdout)["disks"]
    assert [(d["id"], d["size_gb"], d["phase"]) for d in listed if d["id"] == disk_id] == [(disk_id, 20, "Available")]
    manifest = f"id: db\nmetadata: {{persys.disk.ids: {disk_id}}}\ncontainer: {{image: 'postgres:17'}}\n"
    run(environment, "apply", "-f", "-", "--detach", stdin=manifest)
    assert "db" in run(environment, "disk", "show", disk_id).stdout
    refused = run(environment, "disk", "delete", disk_id)
    assert (refused.returncode, '"db"' in refused.stderr) == (1, True)
    assert run(environment, "disk", "delete", disk_id, "--force").returncode == 0
    assert run(environment, "disk", "show", disk_id).returncode == 1
