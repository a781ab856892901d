"""What the node and its workloads use, measured when asked but not too often."""

from __future__ import annotations

import asyncio
import pathlib
import time
from collections.abc import Sequence

import structlog

from agent.host import Used, used
from agent.runtimes import Runtime, Runtimes, Sample, Trouble

log = structlog.get_logger(__name__)

_LEAST_SECONDS = 0.5
"""Measurements closer together than this say nothing new."""


class Telemetry:
    """The latest measurements."""

    def __init__(self, runtimes: Runtimes, folder: pathlib.Path) -> None:
        """Measure these runtimes and the disk of this folder."""
        self.latest: dict[str, Sample] = {}
        self._runtimes = runtimes
        self._folder = folder
        self._used = used(folder)
        self._used_at = time.monotonic()
        self._measuring = asyncio.Lock()
        self._measured_at = 0.0

    async def node(self) -> Used:
        """Return what is used of the node."""
        if time.monotonic() - self._used_at >= _LEAST_SECONDS:
            self._used_at = time.monotonic()
            self._used = await asyncio.to_thread(used, self._folder)
        return self._used

    async def workloads(self) -> list[Sample]:
        """Measure the running workloads; a runtime that is away has no samples."""
        async with self._measuring:
            if time.monotonic() - self._measured_at >= _LEAST_SECONDS:
                self.latest = {s.workload_id: s for runtime in self._runtimes for s in await _samples(runtime)}
                self._measured_at = time.monotonic()
        return list(self.latest.values())


async def _samples(runtime: Runtime) -> Sequence[Sample]:
    try:
        return await runtime.samples()
    except Trouble as error:
        log.debug("no_samples", runtime=runtime.name, reason=str(error))
        return []
