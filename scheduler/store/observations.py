"""What nodes say about workloads, recorded: reports, absences, answers to orders, failures.

Every function compares the assignment it speaks about (node and epoch) with the stored one
inside the transaction, so news about an assignment that is over changes nothing but may leave
a tombstone for the copy. Nothing is written when nothing changed.

Two writers may hold news about the same copy: the front (a report) and a loop (the answer to
an order). A loop hands over the status that its order rested on; when a report came in
between, the report stays. If it was the older of the two, the next look orders again, which
agents take as already done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from scheduler.convergence.actions import needs_attention
from scheduler.convergence.backoff import (
    RETRY_GRACE_SECONDS,
    after_failure,
    after_run,
    after_start,
    after_stop,
    after_touch,
)
from scheduler.convergence.failures import RETRIES_EXHAUSTED
from scheduler.convergence.loss import loss_over
from scheduler.convergence.phase import phase_of
from scheduler.domain.record import utc
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, Reapply, Reason, Retry, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.store import volumes
from scheduler.store.keys import SPECS, STATUSES, TOMBSTONES
from scheduler.store.store import Store
from scheduler.store.tombstones import put_tombstone, tombstone_id
from scheduler.store.write import Guard, Ref, Versioned, View, Write

MAX_TEXT_BYTES = 1024
LAST_ACTION = "last_action"
"""Metadata of a status: what the reference system did last; ours keeps the one that ended all tries."""
FACTS = (
    "failure_reason",
    "retry_terminal",
    "retry_terminal_reason",
    "container.stderr",
    "container.runtime_error",
    "last_runtime_error",
    "vm.primary_ip",
)
"""The only metadata of a report that is kept: bounded by MAX_TEXT_BYTES each, and no key of the scheduler's own."""
MAX_INTERRUPTIONS = 1_000_000
_INTERRUPTED = frozenset({Actual.PENDING, Actual.FAILED, Actual.MISSING})
"""What a running copy turns into when something happens to it that nobody has ordered."""
_TALKATIVE = frozenset({Actual.FAILED, Actual.UNKNOWN})
"""States whose message is worth a write of its own; progress and uptime texts are not."""


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """What became of a report."""

    changed: bool = False
    """Something was written."""
    needs_action: bool = False
    """An early look at the workload is worth it."""


class Fit(Enum):
    """How news fits the stored assignment."""

    CURRENT = auto()
    STALE = auto()
    """Its own node, but a copy of an earlier assignment: the current one is not there."""
    ELSEWHERE = auto()
    """The workload is assigned to another node."""
    UNRELATED = auto()
    """No assignment to compare with, or one that this process has not heard of."""


class Counted(Enum):
    """What became of the news that an order did not get through."""

    KNOWN = auto()
    """It is recorded already, or speaks about an assignment that is over."""
    RECORDED = auto()
    EXHAUSTED = auto()
    """That was the last try."""


class Recorded(Enum):
    """What became of the answer to an order."""

    DONE = auto()
    SUPERSEDED = auto()
    """The assignment is over: the copy that was just ordered must go."""


def bounded(text: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Cut a text to so many bytes of UTF-8."""
    data = text.encode(errors="replace")
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


def facts_of(report: Report) -> dict[str, str]:
    """Return the metadata of a report that is kept."""
    facts = {key: bounded(report.metadata[key]) for key in FACTS if report.metadata.get(key)}
    return {**facts, "failure_reason": bounded(report.failure_code)} if report.failure_code else facts


# Reports


async def record_report(
    store: Store,
    node_id: str,
    report: Report,
    *,
    now: datetime,
    from_cache: bool = True,
    guards: Sequence[Guard] = (),
    seen_revision: int | None = None,
) -> ReportOutcome:
    """Record what a node reports about a workload, if it speaks about the current assignment.

    seen_revision: of the status when the node was asked; when that has changed since, the
        report is older than what is stored and is dropped.
    """
    refs = _refs(node_id, report.workload_id)

    def decide(view: View) -> Write[_Taken]:
        return _report(view, node_id, report, now, seen_revision)

    taken = await store.transact(refs, decide, from_cache=from_cache, guards=guards)
    if from_cache and not taken.fits:
        # The cache may not have heard of the assignment yet: a report is dropped only on the word of etcd.
        taken = await store.transact(refs, decide, guards=guards)
    return taken.outcome


async def record_missing(
    store: Store,
    node_id: str,
    workload_id: str,
    epoch: int,
    *,
    now: datetime,
    from_cache: bool = True,
    guards: Sequence[Guard] = (),
    seen_revision: int | None = None,
) -> ReportOutcome:
    """Record that a node does not have a workload it had been seen with in this assignment."""

    def decide(view: View) -> Write[ReportOutcome]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id)
        now_is = status.record
        if spec is None or now_is is None or _is_outdated(status, seen_revision):
            return Write(ReportOutcome())
        if (now_is.node_id, now_is.epoch) != (node_id, epoch) or not now_is.observed_revision:
            return Write(ReportOutcome())
        return _store(spec, now_is, _with_news(spec, now_is, Report(workload_id, Actual.MISSING), now))

    return await store.transact(_refs(node_id, workload_id), decide, from_cache=from_cache, guards=guards)


def is_news(spec: WorkloadSpec, status: WorkloadStatus, node_id: str, report: Report) -> bool:
    """Whether `record_report` would have anything to do with these records, without asking it."""
    if fit_of(status, node_id, report.epoch) is not Fit.CURRENT:
        return True
    return _with_news(spec, status, report, utc(0)) is not status


@dataclass(frozen=True, slots=True)
class _Taken:
    outcome: ReportOutcome
    fits: bool


def _refs(node_id: str, workload_id: str) -> list[Ref[Any]]:
    return [Ref(SPECS, workload_id), Ref(STATUSES, workload_id), Ref(TOMBSTONES, tombstone_id(node_id, workload_id))]


def fit_of(status: WorkloadStatus | None, node_id: str, epoch: int) -> Fit:
    """Say how a copy on a node fits the stored status. Epoch 0: the agent does not say."""
    if status is None or not status.node_id:
        return Fit.UNRELATED
    if status.node_id != node_id:
        return Fit.ELSEWHERE
    if epoch in (0, status.epoch):
        return Fit.CURRENT
    return Fit.STALE if epoch < status.epoch else Fit.UNRELATED


def _report(view: View, node_id: str, report: Report, now: datetime, seen_revision: int | None) -> Write[_Taken]:
    spec, status = view.get(SPECS, report.workload_id).record, view.get(STATUSES, report.workload_id)
    fit = fit_of(status.record, node_id, report.epoch)
    if spec is None or status.record is None or fit is Fit.UNRELATED:
        return Write(_Taken(ReportOutcome(), fits=False))
    if _is_outdated(status, seen_revision):
        return Write(_Taken(ReportOutcome(), fits=True))
    if fit is Fit.ELSEWHERE:
        write = Write(_Taken(ReportOutcome(), fits=False))
        owed = Tombstone(node_id=node_id, workload_id=report.workload_id, epoch=report.epoch, created_at=now)
        if put_tombstone(write, view, owed):
            write.result = _Taken(ReportOutcome(changed=True, needs_action=True), fits=True)
        return write
    if fit is Fit.STALE:
        after = _without_copy(spec, status.record, now)
    else:
        after = _with_news(spec, status.record, report, now)
    stored = _store(spec, status.record, after)
    if stored.puts:
        volumes.report(stored, view, spec, after, now)
    return Write(_Taken(stored.result, fits=True), stored.puts, stored.deletes)


def _is_outdated(status: Versioned[WorkloadStatus], seen_revision: int | None) -> bool:
    return seen_revision is not None and status.mod_revision != seen_revision


def _store(spec: WorkloadSpec, before: WorkloadStatus, after: WorkloadStatus) -> Write[ReportOutcome]:
    if after == before:
        return Write(ReportOutcome())
    write = Write(ReportOutcome(changed=True, needs_action=needs_attention(spec, after)))
    write.put(STATUSES, after.id, after)
    return write


def _without_copy(spec: WorkloadSpec, status: WorkloadStatus, now: datetime) -> WorkloadStatus:
    """Return the status when its node turns out to hold only a copy of an earlier assignment."""
    if not status.observed_revision:
        return status
    info = status.status_info.replace(actual_state=Actual.MISSING, last_updated=now)
    after = status.replace(observed_revision="", status_info=info)
    return after.replace(status=phase_of(spec, after))


def _with_news(spec: WorkloadSpec, status: WorkloadStatus, report: Report, now: datetime) -> WorkloadStatus:
    """Return the status after a report; the very same status when the report says nothing new."""
    revision = report.revision_id or status.observed_revision
    moved = (report.state, revision) != (status.actual, status.observed_revision)
    facts = facts_of(report)
    if not moved and not _tells_more(status, report, facts):
        return status
    after = _observed(status, report, revision, now, moved=moved)
    after = after.replace(metadata={**{k: v for k, v in after.metadata.items() if k not in FACTS}, **facts})
    if status.actual == Actual.RUNNING and report.state in _INTERRUPTED and spec.desired_state == Desired.RUNNING:
        after = after.replace(interruptions=min(status.interruptions + 1, MAX_INTERRUPTIONS))
    return after.replace(status=phase_of(spec, after))


def _tells_more(status: WorkloadStatus, report: Report, facts: dict[str, str]) -> bool:
    if report.state not in _TALKATIVE:
        address = "vm.primary_ip"
        return address in facts and facts[address] != status.metadata.get(address)
    reason = status.status_info.reason
    said = (reason.code, reason.message) if reason else ("", "")
    return said != (report.failure_code, bounded(report.message)) or any(
        status.metadata.get(key) != value for key, value in facts.items()
    )


def _observed(status: WorkloadStatus, report: Report, revision: str, now: datetime, *, moved: bool) -> WorkloadStatus:
    info = status.status_info.replace(
        actual_state=report.state,
        last_updated=now if moved else status.status_info.last_updated,
        failure_reason=bounded(report.message) if report.state == Actual.FAILED else "",
        reason=_reason(report, now),
    )
    reapply, retry = status.reapply, status.retry
    if status.actual == Actual.RUNNING and report.state != Actual.RUNNING:
        reapply = after_run(reapply, status.status_info.last_updated, now)
    terminal = status.terminal
    if report.state == Actual.RUNNING:
        retry, terminal = Retry(max_attempts=retry.max_attempts), ""
    elif terminal and info.reason:
        info = info.replace(reason=info.reason.replace(retryable=False))
    elif terminal:  # the copy is gone or ended by now: why it is not started again stays true
        info = info.replace(reason=status.status_info.reason, failure_reason=status.status_info.failure_reason)
    after = status.replace(
        status_info=info, observed_revision=revision, reapply=reapply, retry=retry, terminal=terminal
    )
    return loss_over(after)


def _reason(report: Report, now: datetime) -> Reason | None:
    if report.state in (Actual.RUNNING, Actual.STOPPED) and not report.failure_code:
        return None
    if not report.message and not report.failure_code:
        return None
    return Reason(
        code=bounded(report.failure_code),
        message=bounded(report.message),
        last_transition=now,
        retryable=report.retryable,
    )


# Orders


async def record_applied(
    store: Store,
    ordered: WorkloadSpec,
    seen: WorkloadStatus,
    report: Report,
    *,
    now: datetime,
    reapply_base_seconds: float,
    guards: Sequence[Guard] = (),
    told_stop_after_ms: int | None = None,
) -> Recorded:
    """Record that a node took an order.

    ordered: the spec that was sent; seen: the status that the order rested on; report: the agent's answer.
    told_stop_after_ms: what went with the order; 0: that the workload is not exclusive. None: not known.
    """
    workload_id = seen.id

    def decide(view: View) -> Write[Recorded]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or status is None or (status.node_id, status.epoch) != (seen.node_id, seen.epoch):
            return Write(Recorded.SUPERSEDED)
        after = status
        if _copy_of(status) == _copy_of(seen):
            revision = report.revision_id or ordered.revision_id
            after = _observed(status, report, revision, now, moved=_copy_of(seen) != (report.state, revision))
            after = after.replace(retry=Retry(max_attempts=status.retry.max_attempts))
        if status.reapply == seen.reapply:
            after = after.replace(reapply=_count(ordered, seen, now, reapply_base_seconds))
        after = after.replace(observed_generation=max(status.observed_generation, ordered.generation))
        after = after.replace(told_stop_after_ms=_longest(status.told_stop_after_ms, told_stop_after_ms))
        after = after.replace(status=phase_of(spec, after))
        write = Write(Recorded.DONE)
        write.put(STATUSES, workload_id, after)
        volumes.report(write, view, spec, after, now)
        return write

    return await store.transact([Ref(SPECS, workload_id), Ref(STATUSES, workload_id)], decide, guards=guards)


async def record_failure(
    store: Store,
    seen: WorkloadStatus,
    *,
    code: str,
    message: str,
    retryable: bool = True,
    counted: bool,
    now: datetime,
    grace_seconds: float = RETRY_GRACE_SECONDS,
    guards: Sequence[Guard] = (),
) -> Counted:
    """Record that an order did not get through.

    counted: the agent refused it, which delays the next try, and at last there is none; else it
        could not be reached, which is written once and uses up nothing.
    """
    workload_id = seen.id

    def decide(view: View) -> Write[Counted]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or status is None or (status.node_id, status.epoch) != (seen.node_id, seen.epoch):
            return Write(Counted.KNOWN)
        known = status.status_info.reason
        if not counted and known and known.code == code:
            return Write(Counted.KNOWN)
        retry = after_failure(status.retry, now, grace_seconds) if counted else status.retry
        after = _failed(status, code, message, now, retryable=retryable, retry=retry)
        write = Write(Counted.RECORDED)
        if counted and retry.is_used_up and spec.desired_state == Desired.RUNNING and not status.terminal:
            after = _halted(after, RETRIES_EXHAUSTED, message, now)
            write.result = Counted.EXHAUSTED
        write.put(STATUSES, workload_id, after.replace(status=phase_of(spec, after)))
        return write

    return await store.transact([Ref(SPECS, workload_id), Ref(STATUSES, workload_id)], decide, guards=guards)


def _longest(before: int | None, told: int | None) -> int | None:
    """Return what the node may act on: the longer one of what it was told; 0 after an order that was not exclusive."""
    if told is None or before is None or told == 0:
        return before if told is None else told
    return max(before, told)


def _copy_of(status: WorkloadStatus) -> tuple[str, str]:
    return status.actual, status.observed_revision


def _count(ordered: WorkloadSpec, seen: WorkloadStatus, now: datetime, base_seconds: float) -> Reapply:
    """Return the guard's count after an order: a start counts, a stop clears, asking again for news does neither."""
    if ordered.desired_state == Desired.STOPPED:
        return after_stop(ordered.revision_id, now)
    again = seen.observed_revision == ordered.revision_id and seen.observed_generation >= ordered.generation
    if again and seen.actual in (Actual.PENDING, Actual.UNKNOWN):
        return after_touch(seen.reapply, now)
    return after_start(seen.reapply, ordered.revision_id, now, base_seconds)


async def record_halt(
    store: Store, seen: WorkloadStatus, code: str, why: str, *, now: datetime, guards: Sequence[Guard] = ()
) -> bool:
    """Record that a workload is not started again, if it still is as it was seen; return whether that was news."""
    workload_id = seen.id

    def decide(view: View) -> Write[bool]:
        spec, status = view.get(SPECS, workload_id).record, view.get(STATUSES, workload_id).record
        if spec is None or status != seen or spec.desired_state != Desired.RUNNING:
            return Write(result=False)
        after = _halted(status, code, why, now)
        write = Write(result=True)
        write.put(STATUSES, workload_id, after.replace(status=phase_of(spec, after)))
        return write

    return await store.transact([Ref(SPECS, workload_id), Ref(STATUSES, workload_id)], decide, guards=guards)


def _halted(status: WorkloadStatus, code: str, why: str, now: datetime) -> WorkloadStatus:
    text = bounded(why)
    reason = Reason(code=bounded(code), message=text, last_transition=now, retryable=False)
    return status.replace(
        terminal=bounded(code),
        retry=status.retry.replace(next_retry_at=None),
        status_info=status.status_info.replace(reason=reason, failure_reason=text),
        metadata={**status.metadata, LAST_ACTION: "TerminalFailureNoReapply"},
    )


def _failed(
    status: WorkloadStatus, code: str, message: str, now: datetime, *, retryable: bool, retry: Retry
) -> WorkloadStatus:
    counted = retry is not status.retry
    text = bounded(message)
    reason = Reason(
        code=code, message=text, last_transition=now, next_retry_at=retry.next_retry_at, retryable=retryable
    )
    info = status.status_info.replace(reason=reason)
    return status.replace(retry=retry, status_info=info.replace(failure_reason=text) if counted else info)
