"""Why nothing may move away from a node now, although it has been NotReady for the whole grace."""

from __future__ import annotations

import asyncio

import structlog

from scheduler.convergence.liveness import Brake, PulseLog
from scheduler.convergence.loss import hold_reason
from scheduler.domain.node import Node
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.leadership.brakes import brake_of, shard_nodes
from scheduler.loops.context import LoopContext
from scheduler.loops.drain_turns import Turns
from scheduler.telemetry.redis import TelemetryUnavailable

log = structlog.get_logger(__name__)


class Holds:
    """Judges the nodes of one shard, for the length of one look. Reads pulses at most once, and only when asked."""

    def __init__(self, ctx: LoopContext) -> None:
        """Take the parts."""
        self._ctx = ctx
        self._brakes: dict[str, Brake] = {}
        self._pulses: PulseLog | None = None
        self._asked_for: list[str] | None = None
        self._reading = asyncio.Lock()
        self.turns = Turns(ctx)
        """Who may leave a node that is being drained."""

    async def reason(self, spec: WorkloadSpec, status: WorkloadStatus, node: Node) -> str:
        """Say why this workload must stay on its lost node; blank when it may move."""
        held = self._brake(node)
        pulses = None
        if not node.is_fenced and node.node_id not in held.held:
            pulses = await self._read(node)
        return hold_reason(spec, status, node, self._ctx.policy, brake=held, pulses=pulses)

    def _brake(self, node: Node) -> Brake:
        if node.node_id not in self._brakes:
            self._brakes[node.node_id] = brake_of(self._ctx.cache, self._ctx.settings, node, self._ctx.now())
        return self._brakes[node.node_id]

    async def _read(self, node: Node) -> PulseLog | None:
        """Return what was heard of all lost nodes of the shard; None when this one is not among them."""
        async with self._reading:
            if self._asked_for is None:
                lost = [n.node_id for n in shard_nodes(self._ctx.cache, node.node_id) if not n.is_ready]
                try:
                    self._pulses = await self._ctx.pulses.read(lost)
                except TelemetryUnavailable as error:
                    log.warning("moves are held: pulses cannot be read", error=str(error))
                self._asked_for = lost
        return self._pulses if node.node_id in (self._asked_for or ()) else None
