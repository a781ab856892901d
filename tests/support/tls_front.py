"""Fronts, workers and agents that speak TLS, as real processes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import grpc
from grpc import aio

from scheduler.pb.control_pb2_grpc import AgentControlStub
from scheduler.pb.fleetbeat_pb2_grpc import FleetStub
from scheduler.tls.files import TlsFiles
from tests.support.certificates import credentials
from tests.support.servers import Server, free_port, wait_for_port

ROOT = pathlib.Path(__file__).parents[2]
_CHANNEL = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
CALL_SECONDS = 20.0


def settings_of(files: TlsFiles) -> dict[str, str]:
    """Return the variables that name these files."""
    return {"PERSYS_TLS_CA": files.ca, "PERSYS_TLS_CERT": files.cert, "PERSYS_TLS_KEY": files.key}


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what a client with these files connects by, without gRPC."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.set_alpn_protocols(["h2"])
    return context


class TlsFront:
    """A front as a process, and how to reach it."""

    def __init__(self, folder: pathlib.Path, etcd: Server, prefix: str, redis: Server, more: Mapping[str, str]) -> None:
        """Describe it."""
        self.folder = folder
        self.port, self.metrics_port = free_port(), free_port()
        self.environment = {
            "PERSYS_GRPC_ADDR": "127.0.0.1",
            "GRPC_PORT": str(self.port),
            "METRICS_PORT": str(self.metrics_port),
            "ETCD_ENDPOINTS": etcd.address,
            "FLEETBEAT_ETCD_PREFIX": prefix,
            "REDIS_ADDR": redis.address,
            "FLEETBEAT_HEARTBEAT_INTERVAL": "1s",
            **more,
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "front.log").read_text()

    def run(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a process with the front's environment, and a log of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def start(self) -> TlsFront:
        """Start it and wait until it listens."""
        self.process = self.run("front", "scheduler.cli", "front")
        wait_for_port(self.port, self.process, self.folder / "front.log")
        return self

    @contextlib.asynccontextmanager
    async def channel(self, given: TlsFiles | grpc.ChannelCredentials | None) -> AsyncIterator[aio.Channel]:
        """Open a connection of its own; None: plaintext."""
        if given is None:
            opened = aio.insecure_channel(self.address, options=_CHANNEL)
        else:
            made = credentials(given) if isinstance(given, TlsFiles) else given
            opened = aio.secure_channel(self.address, made, options=_CHANNEL)
        async with opened:
            yield opened

    def names_shown(self, files: TlsFiles) -> str:
        """Return the common name in the certificate that a new connection is shown."""
        context = client_context(files)
        with (
            socket.create_connection(("127.0.0.1", self.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as shown,
        ):
            found: Any = shown.getpeercert()
        return next(value for part in found["subject"] for name, value in part if name == "commonName")

    def metrics(self) -> str:
        """Return /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=10) as page:
            text: str = page.read().decode()
        return text


def control(channel: aio.Channel) -> Any:
    """Return a client of persys.control.v1.AgentControl."""
    return AgentControlStub(channel)


def fleet(channel: aio.Channel) -> Any:
    """Return a client of fleetbeat.v1.Fleet."""
    return FleetStub(channel)


@contextlib.contextmanager
def ending(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """End these processes after the block."""
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(12)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
