"""What the loops work with: the parts of one worker, and what they need of the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Protocol

from scheduler.agents.client import Agents
from scheduler.convergence.actions import Policy
from scheduler.convergence.liveness import PulseLog
from scheduler.leadership.policy import policy_of
from scheduler.loops.foreign import ForeignIndex
from scheduler.loops.index import FleetIndex
from scheduler.loops.told import Told
from scheduler.placement.capacity import Overcommit
from scheduler.settings import Settings
from scheduler.store.cache import Cache, Change
from scheduler.store.gone import Gone
from scheduler.store.keys import NODES
from scheduler.store.placements import Placer
from scheduler.store.replica_index import ReplicaIndex
from scheduler.store.store import Store
from scheduler.store.write import Guard

_MISSED_CYCLES = 3
"""A finding of drift that is not there for so many cycles is another one when it is there again."""

Guards = Callable[[], Awaitable[Sequence[Guard]]]
"""Returns what each write must compare; raises Fenced when nothing may be written any more."""


class Fence(Protocol):
    """Makes the writes of a cycle fail once a newer one has begun to write."""

    async def guards(self) -> Sequence[Guard]:
        """Return what each write must compare; takes the fence on first use. Raises Fenced."""
        ...


class PulseReader(Protocol):
    """Knows when nodes were heard."""

    async def read(self, node_ids: Sequence[str] | None = None) -> PulseLog:
        """Return what was heard of these nodes, and who listened; raises TelemetryUnavailable."""
        ...


class Emit(Protocol):
    """Tells people what happened."""

    def __call__(
        self,
        kind: str,
        *,
        workload_id: str = "",
        node_id: str = "",
        reason: str = "",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Send an event some time soon; never waits, never fails."""
        ...


def _tell_nobody(
    kind: str,
    *,
    workload_id: str = "",
    node_id: str = "",
    reason: str = "",
    details: Mapping[str, str] | None = None,
) -> None:
    """Emit nothing."""


class RecordOutcome(Protocol):
    """Keeps what steps did, for people."""

    def __call__(self, workload_id: str, action: str, *, success: bool, reason: str = "", anew: bool = False) -> None:
        """Have an outcome kept if it is news, or if it is `anew`; never waits, never fails."""
        ...


def _keep_nothing(workload_id: str, action: str, *, success: bool, reason: str = "", anew: bool = False) -> None:
    """Keep nothing."""


@dataclass
class LoopContext:
    """One worker's parts."""

    settings: Settings
    cache: Cache
    """Mirrors nodes, ledgers, specs, statuses, legacy records, assignments, tombstones and the shard map."""
    store: Store
    placer: Placer
    agents: Agents
    pulses: PulseReader
    wake: Callable[[str, str], None]
    """wake(workload id, node id or blank): have the shard of the node look at the workload now."""
    now: Callable[[], datetime]
    emit: Emit = _tell_nobody
    on_result: Callable[[str, bool], None] = lambda _action, _success: None
    """Told of each step on a workload, by the reference system's name, and whether it succeeded."""
    record: RecordOutcome = _keep_nothing
    """Told of each step that did something or tried to; it keeps what is news."""
    on_cycle: Callable[[str, bool, float], None] = lambda _loop, _success, _seconds: None
    """Told of the end of each cycle: its loop, whether all chunks went well, seconds since its slot began."""
    index: FleetIndex = field(init=False)
    replicas: ReplicaIndex = field(init=False)
    gone: Gone = field(init=False)
    told: Told = field(init=False)
    foreign: ForeignIndex = field(init=False)

    def __post_init__(self) -> None:
        """Index the cache, and let go of the channels of nodes that are gone."""
        self.index = FleetIndex(self.cache)
        self.replicas = ReplicaIndex(self.cache)
        self.gone = Gone(self.cache)
        self.told = Told(_MISSED_CYCLES * self.settings.drift_interval_seconds)
        self.foreign = ForeignIndex(self.cache)
        self.cache.subscribe(self._drop_gone)

    def _drop_gone(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.table is NODES and change.after.record is None:
                self.agents.drop(change.id)

    @cached_property
    def policy(self) -> Policy:
        """The settings that decisions depend on."""
        return policy_of(self.settings)

    @cached_property
    def overcommit(self) -> Overcommit:
        """How much may be committed on a node."""
        s = self.settings
        return Overcommit(s.overcommit_cpu, s.overcommit_memory, s.overcommit_disk)
