"""What containers use, from the engine's own statistics."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import docker.errors

from agent.engine.engine import Engine
from agent.engine.watch import View
from agent.runtimes import Sample


class ContainerMeter:
    """Measures containers; CPU is the share of one core since the measurement before."""

    def __init__(self, engine: Engine, source: str) -> None:
        """Begin with nothing measured."""
        self._engine = engine
        self._source = source
        self._before: dict[str, tuple[float, float]] = {}

    async def measure(self, workload_id: str, view: View) -> Sample | None:
        """Return what the running containers of a workload use; None when none runs."""
        figures = []
        for container in view:
            if container.state == "running":
                try:
                    figures.append(await self._engine.call(partial(_stats, container_id=container.id)))
                except docker.errors.APIError:  # ended meanwhile
                    continue
        if not figures:
            self._before.pop(workload_id, None)
            return None
        return self._sample(workload_id, figures)

    def _sample(self, workload_id: str, figures: list[dict[str, Any]]) -> Sample:
        now, cpu = time.monotonic(), sum(_dig(f, "cpu_stats", "cpu_usage", "total_usage") for f in figures) / 1e9
        then, before = self._before.get(workload_id, (now, cpu))
        self._before[workload_id] = (now, cpu)
        networks = [n for f in figures for n in (f.get("networks") or {}).values()]
        blocks = [
            (str(e.get("op", "")).lower(), int(e.get("value", 0)))
            for f in figures
            for e in (f.get("blkio_stats") or {}).get("io_service_bytes_recursive") or ()
        ]
        return Sample(
            workload_id,
            round(max(0.0, cpu - before) / (now - then) * 100 if now > then else 0.0, 1),
            int(sum(_dig(f, "memory_stats", "usage") for f in figures)),
            sum(value for op, value in blocks if op == "read"),
            sum(value for op, value in blocks if op == "write"),
            sum(int(n.get("rx_bytes", 0)) for n in networks),
            sum(int(n.get("tx_bytes", 0)) for n in networks),
            self._source,
        )


def _stats(client: Any, container_id: str) -> dict[str, Any]:
    found: dict[str, Any] = client.api.stats(container_id, stream=False, one_shot=True)
    return found


def _dig(figures: dict[str, Any], *path: str) -> float:
    value: Any = figures
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return float(value or 0)
