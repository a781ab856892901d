"""One Docker engine, called in threads of its own; and what its errors mean."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import docker
import docker.errors
import requests
import structlog

from agent.records import Code, Failure
from agent.runtimes import RuntimeAway

log = structlog.get_logger(__name__)

T = TypeVar("T")
AGENT_LABEL = "fleetbeat.agent"
WORKLOAD_LABEL = "fleetbeat.workload"
REVISION_LABEL = "fleetbeat.revision"
EPOCH_LABEL = "fleetbeat.epoch"
_TIMEOUT_SECONDS = 60
"""For one answer of the engine, or the next part of a stream; stopping a container takes its grace."""
_PROBE_SECONDS = 3.0
_THREADS = 8

_MEANINGS: tuple[tuple[str, Code], ...] = (
    (r"port is already allocated|address already in use|failed to bind host port", Code.PORT_BIND_CONFLICT),
    (r"no space left|disk quota exceeded", Code.STORAGE_FULL),
    (r"cannot allocate memory|insufficient|minimum memory limit|more than .*cpus", Code.INSUFFICIENT_RESOURCES),
    (r"invalid reference format|invalid repository name", Code.INVALID_IMAGE),
    (r"unauthorized|authentication required|denied:|access denied|forbidden|no basic auth",
     Code.IMAGE_PULL_AUTH_FAILED),
    (r"no such host|server misbehaving|temporary failure in name resolution", Code.DNS_RESOLUTION_FAILED),
    (r"network is unreachable|no route to host|connection refused|connection reset", Code.NETWORK_UNREACHABLE),
    (r"manifest unknown|manifest for .* not found|no such image|not found: manifest|no matching manifest",
     Code.INVALID_IMAGE),
    (r"timeout|timed out|deadline exceeded", Code.NETWORK_TIMEOUT),
    (r"executable file not found|exec format error|permission denied: unknown|no such file or directory: unknown",
     Code.INVALID_CONFIGURATION),
    (r"invalid mount|bind source path|mount path must be|is not absolute", Code.INVALID_CONFIGURATION),
)  # fmt: skip


def meaning_of(text: str, *, pulling: bool = False) -> Code:
    """Return the failure code for an error text of the engine, a registry or docker compose."""
    for pattern, code in _MEANINGS:
        if re.search(pattern, text, re.IGNORECASE):
            return Code.IMAGE_PULL_TIMEOUT if pulling and code is Code.NETWORK_TIMEOUT else code
    return Code.RUNTIME_ERROR


def failure_of(error: Exception, what: str, *, pulling: bool = False) -> Failure:
    """Return what an error of the engine means."""
    text = getattr(error, "explanation", None) or str(error)
    return Failure(meaning_of(str(text), pulling=pulling), f"{what}: {text}"[:2000])


class Engine:
    """The engine that DOCKER_HOST names, else the local one."""

    def __init__(self) -> None:
        """Connect to nothing yet."""
        self._client: docker.DockerClient | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="docker")
        self.version = ""

    async def probe(self) -> bool:
        """Say whether an engine answers."""
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                version = await self.call(lambda client: client.version())
        except (RuntimeAway, TimeoutError, docker.errors.DockerException):
            return False
        self.version = str(version.get("Version", ""))
        return True

    async def call(self, ask: Callable[[Any], T]) -> T:
        """Call the engine in a thread; raises RuntimeAway when it does not answer, APIError when it refuses."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, ask)

    def _call(self, ask: Callable[[Any], T]) -> T:
        try:
            if self._client is None:
                self._client = docker.from_env(timeout=_TIMEOUT_SECONDS, max_pool_size=_THREADS)
            return ask(self._client)
        except docker.errors.APIError:
            raise
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise RuntimeAway(f"the Docker engine does not answer: {error}") from None

    def close(self) -> None:
        """Let go of the engine."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client:
            self._client.close()
