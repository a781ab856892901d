"""`fleetbeat backup`, `restore` and `cluster accept` on a real etcd."""

from __future__ import annotations

import pathlib
import stat
import subprocess
import sys

import pytest

from scheduler.domain.node import Node
from scheduler.front.parts import utc_now
from scheduler.store.cluster import ensure_shard_map, join_cluster
from scheduler.store.etcd import Etcd
from scheduler.store.nodes import register
from scheduler.store.store import Store
from tests.support.servers import Server


def fleetbeat(server: Server, prefix: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command against this etcd."""
    environment = {"PATH": "/usr/bin:/bin", "ETCD_ENDPOINTS": server.address, "FLEETBEAT_ETCD_PREFIX": prefix}
    command = [sys.executable, "-m", "scheduler.cli", *words]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


async def test_a_backup_is_private_and_whole_and_comes_back_under_another_prefix(
    etcd_server: Server, etcd_prefix: str, tmp_path: pathlib.Path
) -> None:
    """Mode 0600, no unfinished file; the same over the standard output; restored once, refused the second time."""
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    store = Store(etcd)
    cluster = await join_cluster(store)
    await ensure_shard_map(store, 1, "jump")
    await register(store, Node(node_id="n-1"), now=utc_now())
    await etcd.close()
    file = tmp_path / "fleet.gz"
    done = fleetbeat(etcd_server, etcd_prefix, "backup", str(file))
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    piped = fleetbeat(etcd_server, etcd_prefix, "backup", "-", "--quiet")
    assert piped.returncode == 0
    assert piped.stdout[:2] == b"\x1f\x8b"
    there = etcd_prefix + "-new"
    assert b"can be restored" in fleetbeat(etcd_server, there, "restore", str(file), "--validate-only").stdout
    restored = fleetbeat(etcd_server, there, "restore", str(file))
    assert restored.returncode == 0, restored.stderr
    assert cluster.cluster_id.encode() in restored.stdout
    again = fleetbeat(etcd_server, there, "restore", str(file))
    assert again.returncode == 1
    assert f"--replace {cluster.cluster_id}".encode() in again.stderr


@pytest.mark.parametrize("words", [("backup", "x/y/z.gz"), ("restore", "/etc/hostname")])
def test_what_cannot_be_done_is_told_in_a_line(etcd_server: Server, etcd_prefix: str, words: tuple[str, ...]) -> None:
    """No cluster to back up, no backup to restore: exit code 1, no traceback."""
    done = fleetbeat(etcd_server, etcd_prefix, *words)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"Error: ")
