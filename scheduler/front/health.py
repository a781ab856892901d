"""Whether this front is of use: for gRPC health checks, for /healthz and /readyz, and for its own pulse.

*Ready* means that it serves and has read etcd: calls may be sent to it. *Listening* means the
same, and is what its pulse tells: silence of a node counts only while agents could reach a
front. So whatever takes calls away from this front also stops the clock of every node.
A front whose etcd went away stays ready: it hears agents and answers reads, marked as stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from scheduler.front.parts import FrontParts

_LOOK_SECONDS = 0.2


class Health:
    """The health of one front."""

    def __init__(self, parts: FrontParts, services: Iterable[str]) -> None:
        """Take the front's parts and the names of its services."""
        self._cache = parts.cache
        self._now = parts.now
        self._services = ("", *services)
        self._servicer = health.aio.HealthServicer()
        self._serving = False
        self._told: bool | None = None
        self._modes = parts.modes
        self._served_at: datetime = parts.now()
        self._task: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        """Whether calls may be sent here."""
        return self._serving and self._cache.freshness().synced

    def report(self) -> dict[str, str]:
        """Return what /healthz and /readyz say; the names are the reference system's, `ready` is ours."""
        mode, reason, since = self._shown()
        return {
            "status": "ok",
            "mode": mode,
            "reason": reason,
            "modeChangedAt": since.isoformat(),
            "ready": str(self.ready).lower(),
        }

    def _shown(self) -> tuple[str, str, datetime]:
        if not self._serving:
            return "stopping" if self._told is not None else "starting", "", self._served_at
        return str(self._modes.mode), self._modes.reason, max(self._modes.changed_at, self._served_at)

    async def start(self, server: aio.Server) -> None:
        """Serve gRPC health checks; everything is NOT_SERVING until `serve` is called."""
        await self._tell(ready=False)
        self._told = None
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def serve(self) -> None:
        """From now on calls may be sent here as long as etcd has been read."""
        self._serving = True
        self._served_at = self._now()
        await self._look()
        self._task = asyncio.create_task(self._watch(), name="health")

    async def stop(self) -> None:
        """Send calls away, for good."""
        self._serving = False
        self._served_at = self._now()
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._tell(ready=False)
        await self._servicer.enter_graceful_shutdown()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        if self.ready != self._told:
            await self._tell(ready=self.ready)

    async def _tell(self, *, ready: bool) -> None:
        self._told = ready
        serving: Any = health_pb2.HealthCheckResponse
        for service in self._services:
            await self._servicer.set(service, serving.SERVING if ready else serving.NOT_SERVING)
