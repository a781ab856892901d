"""Copies of workloads at the front: written at once after a change, counted for views, scaled on request."""

from __future__ import annotations

from typing import Any

import structlog

from scheduler.domain.errors import Conflict, StoreUnavailable
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.front import fields
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.replicas import EVENTS, preview, scale, write_copies

MAX_AT_ONCE = 60
"""Copies that a call writes itself, in a few transactions; the reconcile loop writes the rest."""

_log = structlog.get_logger("scheduler.front.replicas")


class Copies:
    """Writes the copies of a workload right after the workload itself."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts, and who knows the copies."""
        self._parts = parts
        self._index = reader.replicas

    async def follow(self, spec: WorkloadSpec) -> None:
        """Bring the copies in line with what was just stored, some of them at least; never fails the call.

        Whoever drives a copy is woken, and gives it a node.
        """
        due = self._index.due(spec.id, spec)[:MAX_AT_ONCE]
        if not due:
            return
        try:
            done = await write_copies(self._parts.store, spec.id, [change.id for change in due], now=self._parts.now())
        except (StoreUnavailable, Conflict) as error:
            _log.warning("copies are left to the next cycle", workload=spec.id, error=str(error))
            return
        for one in done:
            self._parts.wake(one.change.id, one.node_id)
            if kind := EVENTS.get(one.change.what):
                self._parts.events.emit(
                    kind, workload_id=one.change.id, node_id=one.node_id, reason=f"copy of {spec.id}"
                )

    async def scaled(self, spec: WorkloadSpec, status: WorkloadStatus, before: int, reason: str) -> None:
        """After the number of copies of a workload was changed: tell it, write them, wake whoever drives it."""
        details = {"replicas": str(spec.replicas), "previous_replicas": str(before)}
        self._parts.events.emit(
            EventType.WORKLOAD_UPDATED, workload_id=spec.id, node_id=status.node_id, reason=reason, details=details
        )
        await self.follow(spec)
        self._parts.wake(spec.id, status.node_id)


class Scaling:
    """The part of `fleetbeat.v1.Fleet` that sets how many copies there are. Methods are named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader, copies: Copies) -> None:
        """Take the front's parts, who reads, and who writes the copies."""
        self._parts = parts
        self._reader = reader
        self._copies = copies

    async def ScaleWorkload(self, request: pb.ScaleWorkloadRequest, _context: Any) -> pb.ScaleWorkloadResponse:  # noqa: N802 - the wire's name
        """Set how many copies of a workload there are to be."""
        workload_id = check_id("workload_id", request.workload_id)
        generation = fields.number("expected_generation", request.expected_generation, 0, 2**62)
        change = preview if request.validate_only else scale
        applied = await change(
            self._parts.store, workload_id, request.replicas, now=self._parts.now(), generation=generation
        )
        if applied.changed and not request.validate_only:
            await self._copies.scaled(applied.spec, applied.status, applied.replicas_before, "scaled")
            await self._reader.see_own_writes()
        return pb.ScaleWorkloadResponse(
            workload_id=workload_id,
            replicas=request.replicas,
            previous_replicas=applied.replicas_before,
            generation=applied.spec.generation,
        )
