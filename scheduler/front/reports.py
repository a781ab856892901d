"""What heartbeats say about workloads: compared with what is known, and what is new handed to the pump.

Reading a status costs a few microseconds and no I/O. What is stored about a copy is in the
cache; a status that says the same is skipped. What says something else goes to the pump, and
if it turns out there that nothing had to be written, that is remembered (`settled`) until the
stored status, a tombstone or the report itself changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scheduler.convergence.drift import ORPHAN_ACTIONS, UNKNOWN, Finding
from scheduler.domain.drift import DriftRecord, DriftType, OrphanPolicy, drift_id
from scheduler.domain.errors import InvalidInput, StoreUnavailable
from scheduler.domain.ids import check_id
from scheduler.domain.node import Health, Node
from scheduler.domain.report import Report, has_vanished, is_terminal
from scheduler.domain.workload import Actual
from scheduler.front.index import FleetIndex
from scheduler.front.pump import Key, Pump
from scheduler.pb import control_pb2 as pb
from scheduler.store import nodes, workloads
from scheduler.store.cache import Cache
from scheduler.store.drifts import absent, see
from scheduler.store.gone import Gone
from scheduler.store.keys import DRIFTS, LEGACY, NODES, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.observations import bounded
from scheduler.store.store import Store
from scheduler.store.tombstones import tombstone_id

IN_FLIGHT = 32
CAPACITY = 50_000
"""Changes that wait for etcd. A whole fleet's first heartbeats fit in; what does not is asked for again."""
MAX_SETTLED = 10_000
"""Remembered reports of one node."""

_STATES = {one.lower(): str(one) for one in Actual if one}
_STATES |= {f"actual_state_{name}": state for name, state in _STATES.items()}
_TALKATIVE = frozenset({Actual.FAILED, Actual.UNKNOWN})
"""States whose message is news (as scheduler.store.observations sees it)."""

Fingerprint = tuple[object, ...]


@dataclass(slots=True)
class Copies:
    """What this front remembers of one node's workloads between two heartbeats."""

    settled: dict[str, Fingerprint] = field(default_factory=dict)
    roster_incomplete: bool = False
    """Something was dropped or could not be judged: the node must send its whole roster again."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A node reports this of a workload."""

    report: Report
    fingerprint: Fingerprint
    copies: Copies


@dataclass(frozen=True, slots=True)
class Absent:
    """A node's whole roster lacks this workload, although it has had it."""

    epoch: int
    seen_revision: int


@dataclass(frozen=True, slots=True)
class Alive:
    """A node that counts as NotReady was heard."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A node's whole roster has a copy that no record speaks of."""

    workload_id: str
    state: str
    epoch: int


Change = Reported | Absent | Alive | Stranger


class Reports:
    """Judges reports and writes what is new."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        index: FleetIndex,
        *,
        now: Callable[[], datetime],
        wake: Callable[[str, str], None],
        is_heard: Callable[[str], bool],
        may_write: Callable[[], bool] = lambda: True,
        on_ready: Callable[[str], None] = lambda _node_id: None,
        on_stranger: Callable[[DriftRecord], None] = lambda _found: None,
        orphan_policy: OrphanPolicy = OrphanPolicy.KEEP,
        on_result: Callable[[str], None] = lambda _result: None,
    ) -> None:
        """Take what to compare with and to write to; is_heard says whether a node was heard within its lease."""
        self._store = store
        self._cache = cache
        self._index = index
        self._gone = Gone(cache)
        self._now = now
        self._wake = wake
        self._is_heard = is_heard
        self._may_write = may_write
        self._on_ready = on_ready
        self._on_stranger = on_stranger
        self._orphan_policy = orphan_policy
        self.pump: Pump[Change] = Pump(self._write, in_flight=IN_FLIGHT, capacity=CAPACITY, on_result=on_result)

    @property
    def has_room(self) -> bool:
        """Whether it makes sense to ask agents for more: they answer at once."""
        return len(self.pump) < CAPACITY // 2

    def take_alive(self, node: Node) -> None:
        """Have a node that is heard again made Ready."""
        self.pump.offer((node.node_id, ""), Alive())

    def take(self, node_id: str, wire: pb.WorkloadStatus, copies: Copies) -> None:
        """Judge one status of a heartbeat."""
        workload_id = wire.workload_id
        stored = self._cache.get(STATUSES, workload_id)
        known = stored.record
        state = _STATES.get(wire.state) or _state_of(wire.state)
        if (
            known is not None
            and known.node_id == node_id
            and known.status_info.actual_state == state
            and wire.revision_id in ("", known.observed_revision)
            and wire.assignment_epoch in (0, known.epoch)
            and state not in _TALKATIVE
            and not wire.metadata
            and not self._is_waiting(node_id, workload_id)
        ):
            return
        report = _report_of(wire, state)
        owed = self._cache.get(TOMBSTONES, tombstone_id(node_id, workload_id)).mod_revision
        fingerprint = _fingerprint(report, stored.mod_revision, owed)
        if not _is_id(workload_id) or (
            copies.settled.get(workload_id) == fingerprint and not self._is_waiting(node_id, workload_id)
        ):
            return
        if not self.pump.offer((node_id, workload_id), Reported(report, fingerprint, copies)):
            copies.roster_incomplete = True

    def _is_waiting(self, node_id: str, workload_id: str) -> bool:
        """Tell whether older news of this copy is on its way to etcd: what comes now must overtake or follow it."""
        return bool(self.pump) and (node_id, workload_id) in self.pump

    def take_roster(
        self, node_id: str, request: pb.HeartbeatRequest, copies: Copies, answered_revision: int | None
    ) -> None:
        """Find what a whole roster lacks.

        A roster that was made up before a workload was started lacks it rightly. So only what
        was stored by the time we answered this agent's heartbeat before may count as missing;
        the rest is judged by the next roster, which is asked for.
        """
        reported = {wire.workload_id for wire in request.workload_statuses}
        copies.settled = {w: f for w, f in copies.settled.items() if w in reported}
        for wire in request.workload_statuses:
            self._take_stranger(node_id, wire, copies, answered_revision or 0)
        for workload_id in self._index.on_node(node_id) - reported:
            stored = self._cache.get(STATUSES, workload_id)
            if stored.record is None or not stored.record.observed_revision or stored.record.actual == Actual.MISSING:
                continue
            if (
                answered_revision is None
                or stored.mod_revision > answered_revision
                or not self.pump.offer((node_id, workload_id), Absent(stored.record.epoch, stored.mod_revision))
            ):
                copies.roster_incomplete = True

    def _take_stranger(self, node_id: str, wire: pb.WorkloadStatus, copies: Copies, answered_revision: int) -> None:
        """Open a finding for a copy that nobody knows; drift detection takes it from there.

        One whose records have gone since the heartbeat before was answered may be of a roster that is older
        than its removal: the next roster tells.
        """
        workload_id = wire.workload_id
        tables: tuple[Table[Any], ...] = (SPECS, STATUSES, LEGACY)
        if any(self._cache.get(table, workload_id).record for table in tables):
            return
        owed = self._cache.get(TOMBSTONES, tombstone_id(node_id, workload_id)).record
        identifier = drift_id(node_id, workload_id, DriftType.ORPHAN)
        if owed is None and self._cache.get(DRIFTS, identifier).record is None and _is_id(workload_id):
            if self._gone.since(workload_id, answered_revision):
                copies.roster_incomplete = True
                return
            state = _STATES.get(wire.state) or _state_of(wire.state)
            # Under a key of its own: the report of the same copy must not take its place.
            stranger = Stranger(workload_id, state, max(0, wire.assignment_epoch))
            if not self.pump.offer((node_id, f"~{workload_id}"), stranger):
                copies.roster_incomplete = True

    async def _write_stranger(self, node_id: str, change: Stranger) -> None:
        workload_id = change.workload_id
        action = ORPHAN_ACTIONS[self._orphan_policy]
        found = Finding(workload_id, DriftType.ORPHAN, action, UNKNOWN, change.state, change.epoch)
        basis = absent(node_id, workload_id)
        sighting = await see(self._store, node_id, found, basis=basis, now=self._now(), counts_to=1)
        if sighting and sighting.is_news:
            self._on_stranger(sighting.record)

    async def _write(self, key: Key, change: Change) -> None:
        if not self._may_write():
            raise StoreUnavailable("the control plane takes no writes now")
        node_id, workload_id = key
        if isinstance(change, Alive):
            await self._write_alive(node_id)
            return
        if isinstance(change, Stranger):
            await self._write_stranger(node_id, change)
            return
        if isinstance(change, Absent):
            outcome = await workloads.record_missing(
                self._store, node_id, workload_id, change.epoch, now=self._now(), seen_revision=change.seen_revision
            )
        else:
            outcome = await workloads.record_report(self._store, node_id, change.report, now=self._now())
            if not outcome.changed:
                _settle(change, workload_id)
        if outcome.needs_action:
            self._wake(workload_id, node_id)
        if outcome.changed and isinstance(change, Reported) and change.report.state == Actual.RUNNING:
            for old_node in self._index.owed_for(workload_id):  # the stop of a copy there may have waited for this one
                self._wake(workload_id, old_node)

    async def _write_alive(self, node_id: str) -> None:
        # It may have fallen silent again while this waited for etcd.
        node = self._cache.get(NODES, node_id).record
        if not self._is_heard(node_id) or (node and node.is_ready):
            return
        reason = f"heard again at {self._now().isoformat(timespec='seconds')}"
        became_ready = await nodes.set_health(
            self._store, node_id, Health.READY, reason, "heartbeat", now=self._now(), expect_status=Health.NOT_READY
        )
        if became_ready:
            self._on_ready(node_id)


def _settle(change: Reported, workload_id: str) -> None:
    if len(change.copies.settled) >= MAX_SETTLED:
        change.copies.settled.clear()
    change.copies.settled[workload_id] = change.fingerprint


def _state_of(text: str) -> str:
    return _STATES.get(text.strip().lower(), str(Actual.UNKNOWN))


def _is_id(workload_id: str) -> bool:
    """Tell whether there can be such a workload at all: what is not an id is no key of ours."""
    try:
        check_id("workload_id", workload_id)
    except InvalidInput:
        return False
    return True


def _report_of(wire: pb.WorkloadStatus, state: str) -> Report:
    metadata = dict(wire.metadata)
    code = wire.reason.code or metadata.get("failure_reason", "")
    if not code and wire.failure_reason:
        code = pb.FailureReason.Name(wire.failure_reason) if wire.failure_reason in pb.FailureReason.values() else ""
    if state == Actual.UNKNOWN and has_vanished(wire.message):
        state = str(Actual.MISSING)
    return Report(
        workload_id=wire.workload_id,
        state=state,
        message=bounded(wire.message or wire.reason.message),
        revision_id=wire.revision_id[:128],
        epoch=max(0, wire.assignment_epoch),
        failure_code=code[:128],
        retryable=wire.reason.retryable if wire.reason.code else not is_terminal(metadata),
        metadata=metadata,
    )


def _fingerprint(report: Report, status_revision: int, tombstone_revision: int) -> Fingerprint:
    talks = report.state in _TALKATIVE
    return (
        report.state,
        report.revision_id,
        report.epoch,
        report.failure_code,
        report.message if talks else "",
        tuple(sorted(report.metadata.items())) if report.metadata else (),
        status_revision,
        tombstone_revision,
    )
