"""Why nothing may move away from a node now, although it has been NotReady for the whole grace."""

from __future__ import annotations

import asyncio

import structlog

from scheduler.convergence.liveness import Brake, PulseLog, brake, silence_seconds, slack_of
from scheduler.domain.node import Node
from scheduler.domain.shard import shard_of
from scheduler.leadership.shards import current_map, members_of
from scheduler.loops.context import LoopContext
from scheduler.store.keys import NODES
from scheduler.telemetry.redis import TelemetryUnavailable

log = structlog.get_logger(__name__)


class Holds:
    """Judges the nodes of one shard, for the length of one look. Reads pulses at most once, and only when asked."""

    def __init__(self, ctx: LoopContext) -> None:
        """Take the parts."""
        self._ctx = ctx
        self._brake: Brake | None = None
        self._pulses: PulseLog | None = None
        self._asked_for: list[str] | None = None
        self._reading = asyncio.Lock()

    async def reason(self, node: Node) -> str:
        """Say why the node's work must stay; blank when it may move.

        The brake must be off, and the node must have been silent for lease and grace while
        somebody listened all the time: what was recorded before an outage of ours proves nothing.
        """
        if self._brake is None:
            self._brake = shard_brake(self._ctx, node.node_id)
        if node.node_id in self._brake.held:
            return self._brake.reason
        pulses = await self._read(node)
        if pulses is None or node.node_id not in (self._asked_for or ()):
            return "the node's silence could not be looked up"
        settings = self._ctx.settings
        needed = settings.node_lease_seconds + settings.node_grace_seconds
        silent = silence_seconds(node, pulses, slack_of(settings.node_lease_seconds))
        return "" if silent >= needed else f"silence confirmed for {silent:.0f} s of {needed:g} s"

    async def _read(self, node: Node) -> PulseLog | None:
        async with self._reading:
            if self._asked_for is None:
                lost = [n.node_id for n in shard_nodes(self._ctx, node.node_id) if not n.is_ready]
                try:
                    self._pulses = await self._ctx.pulses.read(lost)
                except TelemetryUnavailable as error:
                    log.warning("moves are held: pulses cannot be read", error=str(error))
                self._asked_for = lost
        return self._pulses


def shard_brake(ctx: LoopContext, node_id: str) -> Brake:
    """Return the brake of the shard that drives this node."""
    settings = ctx.settings
    return brake(
        shard_nodes(ctx, node_id),
        share=settings.brake_share,
        min_nodes=settings.brake_min_nodes,
        window_seconds=settings.node_lease_seconds + settings.node_grace_seconds,
    )


def shard_nodes(ctx: LoopContext, node_id: str) -> list[Node]:
    """Return all nodes of the shard that drives this node."""
    nodes = ctx.cache.all(NODES)
    shards = current_map(ctx.cache)
    if shards is None:
        return []
    members = members_of(shard_of(node_id, shards), nodes, shards)
    return [record for member in members if (record := nodes[member].record)]
