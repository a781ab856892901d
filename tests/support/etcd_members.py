"""Three etcd members on this machine."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator

from tests.support.servers import Server, etcd_binary, free_port, wait_for_port


@contextlib.contextmanager
def three_members(folder: pathlib.Path) -> Iterator[list[Server]]:
    """Run a cluster of three for a block; each can be killed, paused and started again."""
    ports = [(free_port(), free_port()) for _ in range(3)]
    cluster = ",".join(f"m{i}=http://127.0.0.1:{peer}" for i, (_, peer) in enumerate(ports))
    members = [_member(folder / f"m{i}", i, *ports[i], cluster) for i in range(3)]
    try:
        _start_together(members)
        yield members
    finally:
        for member in members:
            member.kill()


def _member(folder: pathlib.Path, index: int, port: int, peer: int, cluster: str) -> Server:
    command = [
        etcd_binary(), "--data-dir", str(folder / "data"), "--name", f"m{index}", "--log-level", "error",
        "--listen-client-urls", f"http://127.0.0.1:{port}", "--advertise-client-urls", f"http://127.0.0.1:{port}",
        "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
        "--initial-cluster", cluster, "--heartbeat-interval", "30", "--election-timeout", "300",
    ]  # fmt: skip
    return Server(command, port, folder)


def _start_together(members: list[Server]) -> None:
    # A member listens for clients only once the cluster has a leader: start all, then wait.
    for member in members:
        member.folder.mkdir(parents=True, exist_ok=True)
        with (member.folder / "log").open("ab") as out:
            member.process = subprocess.Popen(
                member.command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=member.folder
            )
    for member in members:
        assert member.process
        wait_for_port(member.port, member.process, member.folder / "log")
