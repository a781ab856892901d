"""Heartbeats: parse, compare with what is known, mark what is new, answer. No I/O on the way.

What is new is written by pumps in the background: that a node was heard, and what its
workloads use, to Redis; what changed, to etcd. A change is acknowledged when it is received.
If this front dies before it is written, the agent's next whole roster brings it again: a front
that has not heard an agent's heartbeat before this one asks for one.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from scheduler.convergence.mode import Mode
from scheduler.domain.drift import DriftRecord, event_details
from scheduler.domain.errors import NotFound
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.node import Node
from scheduler.front.index import FleetIndex
from scheduler.front.parts import FrontParts
from scheduler.front.pulse_pump import PulsePump
from scheduler.front.reports import Copies, Reports
from scheduler.front.spare_pulses import SparePulses
from scheduler.front.validate import check_heartbeat
from scheduler.front.vitals import Vital
from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import NODES, STATUSES
from scheduler.store.pulses import PulseWriter
from scheduler.telemetry.meter import Meter
from scheduler.telemetry.pulses import Usage, Use
from scheduler.telemetry.spare_pulses import WRITES_PER_LEASE

LOOK_UPS = 64
"""Nodes that the cache does not know, looked up in etcd at a time."""
DRAIN_SECONDS = 0.8

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Seen:
    """What this front knows of a node from its heartbeats."""

    at: float = 0.0
    """Unix seconds of the last one."""
    monotonic: float = float("-inf")
    use: Use | None = None
    instance_id: str = ""
    sequence: int = 0
    answered_revision: int | None = None
    """The cache's revision when the last heartbeat of this instance was answered; None: there was none."""
    copies: Copies = field(default_factory=Copies)


class Heartbeats:
    """The heartbeats of one front."""

    def __init__(self, parts: FrontParts, index: FleetIndex, *, listening: Callable[[], bool]) -> None:
        """Take the front's parts, and what says whether agents can reach it right now."""
        self._parts = parts
        self._cache = parts.cache
        self._modes = parts.modes
        self._interval_ms = round(parts.settings.heartbeat_interval_seconds * 1000)
        self._lease = timedelta(seconds=parts.settings.node_lease_seconds)
        self._seen: dict[str, Seen] = {}
        self._looking_up = asyncio.Semaphore(LOOK_UPS)
        dropped = parts.metrics.dropped
        settings = parts.settings
        self._meter = Meter(parts.redis, stream=settings.meter_stream, max_entries=settings.meter_max_entries)
        self.pulses = PulsePump(
            parts.pulses,
            parts.front_id,
            listening=listening,
            on_drop=lambda what: dropped.labels(what).inc(),
            meter=self._metered,
        )
        lease_seconds = settings.node_lease_seconds
        self._spare = SparePulses(
            PulseWriter(parts.store, parts.front_id, lease_seconds=lease_seconds),
            lease_seconds=lease_seconds,
            ages=self.pulses.ages_seconds,
            is_needed=lambda: self.pulses.unflushed_seconds > lease_seconds / WRITES_PER_LEASE,
            listening=listening,
            on_written=self.pulses.recorded,
        )
        self.reports = Reports(
            parts.store,
            parts.cache,
            index,
            now=parts.now,
            wake=parts.wake,
            is_heard=self._is_heard,
            may_write=lambda: parts.modes.mode is not Mode.RECOVERY,
            on_ready=lambda node_id: parts.events.emit(EventType.NODE_READY, node_id=node_id, reason="heard again"),
            on_stranger=self._tell_of_stranger,
            orphan_policy=parts.settings.drift_orphan_policy,
            on_result=lambda result: parts.metrics.heartbeat_changes.labels(result).inc(),
        )

    def _tell_of_stranger(self, found: DriftRecord) -> None:
        details = event_details(found, resolved=False)
        _log.warning("a node has an unknown copy", node=found.node_id, workload=found.workload_id, **details)
        self._parts.events.emit(
            EventType.DRIFT_DETECTED, workload_id=found.workload_id, node_id=found.node_id, details=details
        )

    async def _metered(self, samples: Sequence[Usage]) -> None:
        if not self._parts.settings.meter_enabled:
            return
        known = ((sample.workload_id, self._cache.get(STATUSES, sample.workload_id).record) for sample in samples)
        await self._meter.write(samples, {w: status.observed_revision for w, status in known if status})

    @property
    def interval_seconds(self) -> int:
        """The interval in the whole seconds that older agents read, rounded up."""
        return max(1, math.ceil(self._interval_ms / 1000))

    @property
    def interval_ms(self) -> int:
        """The exact interval."""
        return self._interval_ms

    def start(self) -> None:
        """Begin to write pulses."""
        self.pulses.start()
        self._spare.start()

    async def close(self) -> int:
        """Write what is left, for a moment at most; return how many changes were not written."""
        left = await self.reports.pump.close(DRAIN_SECONDS)
        await self._spare.close()
        await self.pulses.close()
        return left

    def heard_ids(self) -> Iterable[str]:
        """Return the nodes that were heard here."""
        return self._seen

    def heard(self, node_id: str) -> Vital | None:
        """Return what this front itself heard of a node last."""
        seen = self._seen.get(node_id)
        return Vital(seen.at, seen.use or Use()) if seen else None

    def heard_seconds_ago(self, node_id: str) -> float:
        """Return how long ago this front itself heard a node; infinite: never."""
        seen = self._seen.get(node_id)
        return time.monotonic() - seen.monotonic if seen else float("inf")

    def registered(self, node: Node) -> None:
        """Take a registration for a sign of life; what was known of the agent's instance before is void."""
        before = self._seen.pop(node.node_id, None)
        self._mark(node.node_id, Seen(use=before.use if before else None, instance_id=node.instance_id), None)

    async def take(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Answer a heartbeat. Raises InvalidInput; NotFound when etcd says that there is no such node or agent."""
        check_heartbeat(request)
        node = self._cache.get(NODES, request.node_id).record
        if not self._modes.writable and (node is None or self._modes.mode is Mode.RECOVERY):
            return self._calm(request)
        if node is None or _is_other(node, request):
            node = await self._look_up(request.node_id)
            if _is_other(node, request):
                raise NotFound(
                    f'node "{node.node_id}" was registered by another agent, at {node.agent_endpoint}; '
                    "register again, or give one of the two another id"
                )
        return self._answer(node, request)

    def _calm(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Answer while nobody can tell what this node should run: it goes on, and tells everything again later."""
        check_id("node_id", request.node_id)
        seen = self._seen.get(request.node_id) or Seen(instance_id=request.instance_id)
        seen.answered_revision = None
        self._mark(request.node_id, seen, _use_of(request))
        return self._response(send_full=False)

    async def _look_up(self, node_id: str) -> Node:
        """Ask etcd for a node that the cache does not know: it may have registered at another front just now."""
        check_id("node_id", node_id)
        async with self._looking_up:
            node = (await self._parts.store.get(NODES, node_id)).record
        if node is None:
            self._seen.pop(node_id, None)
            raise NotFound(f'node "{node_id}" is not registered')
        return node

    def _answer(self, node: Node, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        seen = self._seen.get(node.node_id)
        if seen is None or seen.instance_id != request.instance_id:
            seen = Seen(use=seen.use if seen else None, instance_id=request.instance_id)
        missed = seen.answered_revision is None or request.sequence > seen.sequence + 1
        self._mark(node.node_id, seen, _use_of(request))
        if not node.is_ready:
            self.reports.take_alive(node)
        if request.sequence >= seen.sequence:  # one that was overtaken on its way tells nothing new
            self._take_workloads(node.node_id, seen, request)
            seen.sequence = request.sequence
        send_full = (seen.copies.roster_incomplete or (missed and not request.full)) and self.reports.has_room
        seen.answered_revision = self._cache.revision
        return self._response(send_full=send_full)

    def _take_workloads(self, node_id: str, seen: Seen, request: pb.HeartbeatRequest) -> None:
        copies = seen.copies
        if request.full:
            copies.roster_incomplete = False
            self.reports.take_roster(node_id, request, copies, seen.answered_revision)
        for status in request.workload_statuses:
            if status.workload_id:
                self.reports.take(node_id, status, copies)
        for sample in request.workload_usage or (s.usage for s in request.workload_statuses if s.HasField("usage")):
            known = self._cache.get(STATUSES, sample.workload_id).record
            if known is not None and known.node_id == node_id:
                self.pulses.used(node_id, sample)

    def _mark(self, node_id: str, seen: Seen, use: Use | None) -> None:
        seen.at, seen.monotonic = time.time(), time.monotonic()
        seen.use = use or seen.use
        self._seen[node_id] = seen
        self.pulses.heard(node_id, use)

    def _is_heard(self, node_id: str) -> bool:
        seen = self._seen.get(node_id)
        return seen is not None and time.monotonic() - seen.monotonic < self._lease.total_seconds()

    def _is_cut_off(self) -> bool:
        """Whether nobody can learn from this front that a node is heard: then the node must not rely on it.

        Half a lease of that is still within what the proof for exclusive workloads allows for.
        """
        limit = self._lease.total_seconds() / 2
        return self.pulses.unrecorded_seconds > limit and self._cache.freshness().age_seconds > limit

    def _response(self, *, send_full: bool) -> pb.HeartbeatResponse:
        response = pb.HeartbeatResponse(
            acknowledged=True,
            send_full=send_full,
            unrecorded=self._is_cut_off(),
            heartbeat_interval_seconds=self.interval_seconds,
            heartbeat_interval_ms=self._interval_ms,
        )
        response.lease_expires_at.FromDatetime(self._parts.now() + self._lease)
        return response


def _is_other(node: Node, request: pb.HeartbeatRequest) -> bool:
    """Tell whether an agent speaks for a node that another one has registered since: nobody can call it any more."""
    return bool(node.instance_id and request.instance_id) and node.instance_id != request.instance_id


def _use_of(request: pb.HeartbeatRequest) -> Use | None:
    if not request.HasField("usage"):
        return None
    usage = request.usage
    return Use(usage.cpu_used_millicores, usage.memory_used_mb, usage.disk_used_gb)
