"""The front as processes: `--workers N` on one port, a graceful stop on signals (F92), dead workers and parents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from grpc import aio

from scheduler.pb import control_pb2 as pb
from scheduler.pb.control_pb2_grpc import AgentControlStub
from tests.support import servers
from tests.support.fronts import eventually
from tests.support.servers import Server, free_port

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[3]


class Process:
    """A front that runs by itself."""

    def __init__(self, server: Server, prefix: str, workers: int, folder: pathlib.Path, redis: Server) -> None:
        """Start it."""
        self.port, self.metrics = free_port(), free_port()
        settings = {
            "PERSYS_GRPC_ADDR": "127.0.0.1",
            "GRPC_PORT": str(self.port),
            "METRICS_PORT": str(self.metrics),
            "ETCD_ENDPOINTS": server.address,
            "FLEETBEAT_ETCD_PREFIX": prefix,
            "FLEETBEAT_FRONT_ID": "front",
            "REDIS_ADDR": redis.address,
        }
        self.log = folder / "front.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scheduler.cli", "front", "--workers", str(workers)],
                cwd=ROOT,
                env=os.environ | settings,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def workers(self) -> list[psutil.Process]:
        """Return the processes that serve: those that listen on the gRPC port."""
        found = []
        for one in [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                if any(
                    c.status == psutil.CONN_LISTEN and c.laddr.port == self.port for c in one.net_connections("tcp")
                ):
                    found.append(one)
        return found

    async def serves(self) -> bool:
        """Tell whether a call on a new connection is answered."""
        with contextlib.suppress(aio.AioRpcError):
            async with aio.insecure_channel(
                f"127.0.0.1:{self.port}", options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                stub: Any = AgentControlStub(channel)
                await stub.ListNodes(pb.ListNodesRequest(), timeout=2)
                return True
        return False

    async def ready(self, workers: int) -> None:
        """Wait until so many serve."""

        async def all_serve() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return len(self.workers) == workers and await self.serves()

        await eventually(all_serve, 40)

    async def ended(self, seconds: float = 12.0) -> int:
        """Wait for the end; return the exit code."""
        await eventually(lambda: self.process.poll() is not None, seconds)
        return self.process.wait()

    def kill(self) -> None:
        """End whatever of it is left."""
        family = [self.process.pid]
        with contextlib.suppress(psutil.Error):
            family += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.asynccontextmanager
async def front(
    server: Server, prefix: str, workers: int, folder: pathlib.Path, redis: Server
) -> AsyncIterator[Process]:
    """Run a front for a block."""
    process = Process(server, prefix, workers, folder, redis)
    try:
        await process.ready(workers)
        yield process
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_F92_a_front_ends_within_ten_seconds_of_a_signal(
    etcd_server: Server, etcd_prefix: str, redis_server: Server, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    """Exit code 0, no process left, no traceback in the log."""
    async with front(etcd_server, etcd_prefix, 1, tmp_path, redis_server) as process:
        begun = time.monotonic()
        process.process.send_signal(number)
        assert await process.ended() == 0
        assert time.monotonic() - begun < 10
        log = process.log.read_text()
        assert "front stops" in log
        assert "Traceback" not in log


async def test_workers_share_one_port_a_dead_one_is_replaced_and_all_end_with_the_parent(
    etcd_server: Server, etcd_prefix: str, redis_server: Server, tmp_path: pathlib.Path
) -> None:
    """Two serve; one is killed and another takes its place; SIGTERM ends them all with exit code 0."""
    async with front(etcd_server, etcd_prefix, 2, tmp_path, redis_server) as process:
        victim = process.workers[0]
        os.kill(victim.pid, signal.SIGKILL)
        await eventually(lambda: victim.pid not in [w.pid for w in process.workers], 10)
        await eventually(process.serves, 10)
        await process.ready(2)
        for port in (process.metrics, process.metrics + 100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
            assert b" 200 " in await reader.readline()
            writer.close()
        pids = [worker.pid for worker in process.workers]
        process.process.send_signal(signal.SIGTERM)
        assert await process.ended(15) == 0
        assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_workers_do_not_outlive_a_parent_that_was_killed(
    etcd_server: Server, etcd_prefix: str, redis_server: Server, tmp_path: pathlib.Path
) -> None:
    """SIGKILL on the parent: the workers stop by themselves."""
    async with front(etcd_server, etcd_prefix, 2, tmp_path, redis_server) as process:
        pids = [worker.pid for worker in process.workers]
        os.kill(process.process.pid, signal.SIGKILL)
        process.process.wait()
        await eventually(lambda: not any(map(_runs, pids)), 15)


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def test_workers_refuse_a_taken_port_and_say_so(
    etcd_server: Server, etcd_prefix: str, redis_server: Server, tmp_path: pathlib.Path
) -> None:
    """Neither one nor several may share a port with a front they do not belong to."""
    async with front(etcd_server, etcd_prefix, 2, tmp_path, redis_server) as process:
        settings = {
            "GRPC_PORT": str(process.port),
            "METRICS_PORT": str(free_port()),
            "ETCD_ENDPOINTS": etcd_server.address,
            "PERSYS_GRPC_ADDR": "127.0.0.1",
            "REDIS_ADDR": redis_server.address,
        }
        for workers in (1, 2):
            second = subprocess.run(
                [sys.executable, "-m", "scheduler.cli", "front", "--workers", str(workers)],
                cwd=ROOT,
                env=os.environ | settings,
                capture_output=True,
                timeout=30,
                check=False,
            )
            assert second.returncode == 1, second.stderr
            assert str(process.port) in second.stderr.decode()


async def test_a_front_waits_for_etcd(redis_server: Server, tmp_path: pathlib.Path) -> None:
    """Started first, it serves as soon as etcd is there; stopped before that, it ends with exit code 0."""
    server = servers.etcd(tmp_path / "etcd")
    impatient = Process(server, "", 1, tmp_path, redis_server)
    try:
        await eventually(lambda: "waits for etcd" in impatient.log.read_text(), 30)
        impatient.process.terminate()
        assert await impatient.ended() == 0
    finally:
        impatient.kill()
    patient = Process(server, "", 1, tmp_path, redis_server)
    try:
        await eventually(lambda: impatient.log.read_text().count("waits for etcd") >= 2, 30)
        with servers.running(server):
            await patient.ready(1)
    finally:
        patient.kill()
