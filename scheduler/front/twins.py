"""Two agents with one node id: which of them has it, and when the other may take it over.

Both would run copies, and take the node from each other. An agent that starts again at the same
endpoint, or with the same data folder, has replaced the one before and has its copies. Any other
one waits until the old self has been silent for the lease; and while exclusive work of the node
may still run beside the old one, until that provably does not.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.convergence.liveness import silence_seconds, slack_of
from scheduler.convergence.loss import exclusive_silence_seconds
from scheduler.domain.node import Node
from scheduler.domain.policy import is_exclusive
from scheduler.front.heartbeats import Heartbeats
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.leadership.policy import policy_of
from scheduler.telemetry.pulses import PulseView
from scheduler.telemetry.redis import TelemetryUnavailable


@dataclass(frozen=True, slots=True)
class Twin:
    """Why an agent does not get the id."""

    reason: str


class Twins:
    """Judges agents that register."""

    def __init__(self, parts: FrontParts, reader: Reader, heartbeats: Heartbeats) -> None:
        """Take the front's parts, who knows where workloads are, and what this front hears itself."""
        self._parts = parts
        self._reader = reader
        self._heartbeats = heartbeats
        self._policy = policy_of(parts.settings)

    async def of(self, known: Node, offered: Node) -> Twin | None:
        """Say which other agent, elsewhere, this id belongs to; None: the agent that registers may have it."""
        if not known.instance_id or known.instance_id == offered.instance_id:
            return None
        if known.agent_endpoint == offered.agent_endpoint:
            return None
        view = await self._read(known.node_id)
        if self._silent_for(known, view) < self._parts.settings.node_lease_seconds:
            return _twin(known, "that is alive")
        # The other one may talk to another front, of which nothing is heard while Redis is away. As
        # long as nobody can tell that it is silent, it counts as alive, here as in the node monitor.
        if view is None and known.is_ready and self._parts.redis is not None:
            return _twin(known, "that may be alive: Redis, which would tell, does not answer")
        if known.is_fenced or (known.agent_id and known.agent_id == offered.agent_id):
            return None
        return self._exclusive_work(known, view)

    async def _read(self, node_id: str) -> PulseView | None:
        try:
            return await self._parts.pulses.read([node_id])
        except TelemetryUnavailable:
            return None

    def _silent_for(self, known: Node, view: PulseView | None) -> float:
        """Return the age of the last sign of life, each on the clock of whoever heard it."""
        pulse = view.pulses.get(known.node_id) if view else None
        told = view.now - pulse.at if view and pulse else float("inf")
        return min(told, self._heartbeats.heard_seconds_ago(known.node_id))

    def _exclusive_work(self, known: Node, view: PulseView | None) -> Twin | None:
        """Refuse while exclusive work may still run beside the agent that had the id before."""
        index, needed = self._reader.index, 0.0
        for workload_id in sorted(index.on_node(known.node_id)):
            spec, status = index.spec(workload_id), index.status(workload_id)
            if spec is None or status is None or not is_exclusive(spec):
                continue
            proof = exclusive_silence_seconds(spec, status, self._policy) if known.enforces_stop_after else None
            if proof is None:
                return _twin(known, f'that may still run "{workload_id}", which is exclusive; {_confirm(known)}')
            needed = max(needed, proof)
        if not needed:
            return None
        silent = silence_seconds(known, view, slack_of(self._policy.lease_seconds)) if view else 0.0
        if silent >= needed:
            return None
        how_long = f"silence confirmed for {silent:.0f} s of {needed:g} s"
        return _twin(known, f"that may still run exclusive work ({how_long}); {_confirm(known)}")


def _confirm(known: Node) -> str:
    return f"once it is off, confirm that with `fleetbeat node fence {known.node_id}`"


def _twin(known: Node, state: str) -> Twin:
    return Twin(
        f'node_id: "{known.node_id}" belongs to an agent at {known.agent_endpoint} {state}; '
        "stop that one, or choose another id for this one"
    )
