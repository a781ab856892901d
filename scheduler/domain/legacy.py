"""Workloads as the reference scheduler has stored them, and what they are in our form. Pure.

Its older releases wrote one whole record, the later ones a spec and a status by separate puts. In
both, what the user said in the metadata stands among the scheduler's own notes in the status, node
and state are told without an epoch, and logs, usage and the token for git lie beside them. What has
no place here is dropped; what a copy runs by, its revision above all, is kept as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import ConfigDict, ValidationError

from scheduler.domain import volume
from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id, project_name
from scheduler.domain.kind import TYPES, workload_type
from scheduler.domain.record import Record, without_nulls
from scheduler.domain.replicas import check_replicas
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import (
    Actual,
    Desired,
    ManagedVolume,
    Phase,
    Reason,
    Retry,
    StatusInfo,
    VmSpec,
    WorkloadSpec,
    WorkloadStatus,
)

MAX_METADATA = 128
"""Entries of the metadata that are taken over."""
MAX_METADATA_BYTES = 65_536
"""Of one value; cloud-init documents are the largest."""
MAX_TEXT = 1_024
"""Characters of a reason that is taken over."""
MAX_ATTEMPTS = 1_000
EXHAUSTED = "RETRIES_EXHAUSTED"

_NOTES = frozenset({
    *("created_at", "last_action", "assignment_reason", "previous_node", "last_error", "scheduler_last_error"),
    *("last_runtime_error", "failure_reason", "retry_terminal", "retry_terminal_reason", "terminal_failure_reason"),
    *("failureObservedAt", "failureGraceUntil", "lastApplyRequestAt", "lastApplyRevision", "lastLaunchTime"),
    *("reapplyAttempts", "reapplyNextAt", "lastReconciliation", "lastReconciliationAction"),
    *("lastReconciliationSuccess", "reconciliationRetryCount", "managed_storage_state", "drift_reason"),
    *("drift_reconciled_at", "vm.primary_ip", "persys.scheduling.pinned_reason", "persys.workload.type"),
})  # fmt: skip
"""What the reference scheduler noted in the metadata for itself."""
_NOTE_PREFIXES = ("usage_", "reason_", "container.")
_FACTS = ("vm.primary_ip",)
_EMBEDDED_VM = "persys.vm_spec_b64"
_VM_VOLUMES = "managedVolumes"
_SHORT_MODES = {"rwo": volume.READ_WRITE_ONCE, "rox": volume.READ_ONLY_MANY, "rwx": volume.READ_WRITE_MANY}
_ACCESS_MODES = {mode.lower(): mode for mode in volume.ACCESS_MODES} | _SHORT_MODES
_STATES = {str(state).lower(): state for state in Actual if state}
_PHASES = {str(phase).lower(): phase for phase in Phase}
_DESIRED = {str(state).lower(): state for state in Desired}


class LegacyWorkload(Record):
    """`/workloads/{id}`: a whole record in our form; or why it cannot be read. Parsing it raises nothing."""

    model_config = ConfigDict(extra="ignore")

    flaw: str = ""
    """Which field is wrong, and how; blank: none."""
    spec: WorkloadSpec | None = None
    status: WorkloadStatus | None = None

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse stored JSON."""
        try:
            spec, status = _whole(json.loads(data))
        except ValidationError as error:
            return cls(flaw=_flaw(error))
        except InvalidInput as error:
            return cls(flaw=str(error))
        except (ValueError, RecursionError):
            return cls(flaw="the value: is not JSON")
        return cls(spec=spec, status=status)


def _whole(told: Any) -> tuple[WorkloadSpec, WorkloadStatus]:
    if not isinstance(told, dict):
        raise InvalidInput("the value", "is not a JSON object")
    fields = without_nulls(told)
    spec = WorkloadSpec.model_validate({k: v for k, v in fields.items() if k != "metadata"})
    return in_our_form(spec, WorkloadStatus.model_validate(fields))


def _flaw(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'the value'}: {first['msg']}"


def legacy_pair(workload_id: str, found: LegacyWorkload) -> tuple[WorkloadSpec, WorkloadStatus]:
    """Return spec and status of a whole record that lies under this id. Raises InvalidInput naming the field."""
    check_id("the key", workload_id)
    if found.spec is None or found.status is None:
        raise InvalidInput("the record", f"cannot be read: {found.flaw}")
    if found.spec.id != workload_id:
        raise InvalidInput("id", f"{found.spec.id!r} is not the id of the key")
    return found.spec, found.status


def legacy_flaw(workload_id: str, found: LegacyWorkload) -> str:
    """Say why a whole record that lies under this id cannot be taken over; blank: it can."""
    try:
        legacy_pair(workload_id, found)
    except InvalidInput as error:
        return str(error)
    return ""


def is_foreign(spec: WorkloadSpec) -> bool:
    """Whether the reference scheduler has written a spec: ours always tell their generation."""
    return "generation" not in spec.model_fields_set


def in_our_form(spec: WorkloadSpec, status: WorkloadStatus | None) -> tuple[WorkloadSpec, WorkloadStatus]:
    """Return a workload of the reference scheduler's as ours; its epoch is for whoever commits it to say.

    Raises InvalidInput naming the stored field.
    """
    status = status or WorkloadStatus(id=spec.id)
    spec = _spec(spec, status)
    status = _status(spec, status)
    _check_text(spec, status)
    return spec, status


def _check_text(*records: Record) -> None:
    try:
        for record in records:
            record.to_json()
    except ValueError:  # JSON can escape halves of characters, which no text that is stored can have
        raise InvalidInput("the value", "has text that is not Unicode") from None


def _spec(found: WorkloadSpec, status: WorkloadStatus) -> WorkloadSpec:
    fields = {name: getattr(found, name) for name in WorkloadSpec.model_fields}
    kind = workload_type(found.type)
    if kind not in TYPES:
        raise InvalidInput("type", f"{found.type!r} is not one of {', '.join(sorted(TYPES))}")
    yaml = found.compose_yaml or found.compose
    fields |= {
        "id": check_id("id", found.id),
        "name": found.id,
        "type": kind,
        "generation": max(1, found.generation),
        "desired_state": _desired(found, status),
        "command": " ".join(found.command_list) or found.command,
        "ports": tuple(port if "/" in port else f"{port}/tcp" for port in found.ports),
        "managed_volumes": _volumes(found),
        "vm": _machine(found.vm),
        "compose": "",
        "compose_yaml": yaml,
        "project_name": found.project_name or (project_name(found.id) if kind == "compose" else ""),
        "metadata": {**_said(status.metadata, embedded=found.vm is None), **found.metadata},
        "created_at": _time(found.created_at),
        "replicas": max(1, found.replicas),
        # It stands for itself: as a copy of another workload it would be removed with that.
        "replica_of": "",
        "replica_revision": "",
    }
    spec = WorkloadSpec(**fields)
    check_replicas(spec)
    return spec if spec.revision_id else spec.replace(revision_id=revision_of(spec))


def _volumes(found: WorkloadSpec) -> tuple[ManagedVolume, ...]:
    """Return the volumes of a workload and of the machine in it, each once, with access modes and policies as ours."""
    inner = (found.vm.model_extra or {}).get(_VM_VOLUMES, ()) if found.vm else ()
    if not isinstance(inner, list | tuple):
        raise InvalidInput(f"vm.{_VM_VOLUMES}", "is not a list")
    try:
        named = [*found.managed_volumes, *(ManagedVolume.model_validate(one) for one in inner)]
    except ValidationError as error:
        raise InvalidInput(f"vm.{_VM_VOLUMES}", _flaw(error)) from None
    found_by_name: dict[str, ManagedVolume] = {}
    for one in named:
        found_by_name.setdefault(one.name, _volume(one))
    return tuple(found_by_name.values())


def _volume(found: ManagedVolume) -> ManagedVolume:
    check_id("managedVolumes.name", found.name)
    said = found.access_mode.strip().lower()
    retain = found.retain_policy.strip().lower() == volume.RETAIN.lower()
    return found.replace(
        driver=volume.driver_name(found.driver),
        access_mode=_ACCESS_MODES.get(said, found.access_mode),
        retain_policy=volume.RETAIN if retain else volume.DELETE,
    )


def _machine(found: VmSpec | None) -> VmSpec | None:
    """Return a machine without its volumes, which are the workload's."""
    extra = (found.model_extra or {}) if found else {}
    if found is None or _VM_VOLUMES not in extra:
        return found
    told = {name: getattr(found, name) for name in VmSpec.model_fields}
    return VmSpec(**told, **{k: v for k, v in extra.items() if k != _VM_VOLUMES})


def _desired(found: WorkloadSpec, status: WorkloadStatus) -> Desired:
    said = found.desired_state.strip().lower() or Desired.RUNNING.lower()
    if said not in _DESIRED:
        raise InvalidInput("desiredState", f"{found.desired_state!r} is not one of {', '.join(Desired)}")
    is_going = status.status.lower() in (Phase.DELETING.lower(), Phase.DELETED.lower())
    return Desired.DELETED if is_going else _DESIRED[said]


def _said(metadata: Mapping[str, Any], *, embedded: bool) -> dict[str, str]:
    """Return what a user has said in the metadata: all but the scheduler's own notes."""
    said: dict[str, str] = {}
    for key, value in sorted(metadata.items()):
        if key in _NOTES or key.startswith(_NOTE_PREFIXES) or (key == _EMBEDDED_VM and not embedded):
            continue
        text = str(value).lower() if isinstance(value, bool) else value
        if isinstance(text, str) and len(text) <= MAX_METADATA_BYTES and len(said) < MAX_METADATA:
            said[key] = text
    return said


def _status(spec: WorkloadSpec, found: WorkloadStatus) -> WorkloadStatus:
    node_id = found.assigned_node or found.node_id
    if node_id:
        check_id("assignedNode", node_id)
    actual = _STATES.get(found.actual.lower()) or _STATES.get(found.status.lower(), Actual.NONE)
    phase = _PHASES.get(found.status.strip().lower(), Phase.UNKNOWN)
    seen = found.observed_revision
    if not seen and node_id and str(phase) == str(actual) and actual in (Actual.RUNNING, Actual.STOPPED, Actual.FAILED):
        seen = spec.revision_id
    terminal = _terminal(spec, found, actual)
    return WorkloadStatus(
        id=spec.id,
        status=Phase.DELETING if spec.desired_state == Desired.DELETED else phase,
        node_id=node_id,
        assigned_node=node_id,
        epoch=found.epoch,
        # What does not agree is ordered once more: nobody knows whether its agent was told.
        observed_generation=spec.generation if str(actual) == str(spec.desired_state) or terminal else 0,
        observed_revision=seen,
        status_info=_info(found.status_info, actual),
        retry=_retry(found.retry),
        pending_reason=found.pending_reason,
        terminal=terminal,
        attached=found.attached,
        metadata={k: v[:MAX_TEXT] for k in _FACTS if isinstance(v := found.metadata.get(k), str)},
    )


def _terminal(spec: WorkloadSpec, found: WorkloadStatus, actual: str) -> str:
    """Return the code of the failure after which the reference scheduler did not start it again; blank: none."""
    if spec.desired_state != Desired.RUNNING or actual == Actual.RUNNING:
        return ""
    told = found.metadata
    marked = str(told.get("retry_terminal", "")).lower() == "true" or bool(told.get("terminal_failure_reason"))
    if not marked and not (found.status == Phase.FAILED and found.retry.is_used_up):
        return ""
    reason = found.status_info.reason
    code = told.get("terminal_failure_reason") or told.get("reason_code") or (reason.code if reason else "")
    return code[:MAX_TEXT] if isinstance(code, str) and code else EXHAUSTED


def _info(found: StatusInfo, actual: str) -> StatusInfo:
    reason = found.reason
    kept = reason and Reason(
        code=reason.code[:MAX_TEXT],
        message=reason.message[:MAX_TEXT],
        last_transition=_time(reason.last_transition),
        next_retry_at=_time(reason.next_retry_at),
        retryable=reason.retryable,
    )
    return StatusInfo(
        actual_state=actual,
        last_updated=_time(found.last_updated),
        failure_reason=found.failure_reason[:MAX_TEXT] if actual == Actual.FAILED else "",
        reason=kept if actual != Actual.RUNNING else None,
    )


def _retry(found: Retry) -> Retry:
    attempts = min(max(0, found.attempts), MAX_ATTEMPTS)
    most = found.max_attempts if 0 < found.max_attempts <= MAX_ATTEMPTS else Retry().max_attempts
    due = _time(found.next_retry_at) if attempts else None
    return Retry(attempts=attempts, max_attempts=most, next_retry_at=due, failures=attempts)


def _time(found: datetime | None) -> datetime | None:
    """Return a time; Go's zero time is none, nor is one that has no year in UTC."""
    if not found or found.year <= 1 or not found.tzinfo:
        return None
    try:
        found.astimezone(UTC)
    except OverflowError:
        return None
    return found
