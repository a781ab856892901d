"""Metadata of a workload: what clients may set, and what is the system's own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scheduler.domain import policy
from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id
from scheduler.front import fields
from scheduler.placement.request import NODE_KEY, TOLERATIONS_KEY, parse_tolerations

SELECTOR_KEY = "fleetbeat.node_selector"
"""Metadata of a spec: "key=value,key=value"; a node must carry all of these labels."""
EMBEDDED_VM_KEY = "persys.vm_spec_b64"

MAX_ENTRIES = 128
MAX_VALUE = 4_096
MAX_EMBEDDED = 262_144

_OWN_PREFIX = "fleetbeat."
_TRUTHS = frozenset({policy.EXCLUSIVE_KEY, policy.REPLACE_KEY})
_DURATIONS = frozenset({policy.STOP_AFTER_KEY, policy.LOST_AFTER_KEY, policy.REPLACE_DELAY_KEY})
_OF_COPIES = frozenset({policy.REPLICAS_KEY, policy.ANTI_AFFINITY_KEY, policy.MAX_UNAVAILABLE_KEY})
_POLICIES = _TRUTHS | _DURATIONS | _OF_COPIES | {policy.ON_RETURN_KEY}
_OURS = frozenset({NODE_KEY, TOLERATIONS_KEY, SELECTOR_KEY}) | _POLICIES
_INTERNAL = frozenset(
    {
        "created_at",
        "last_action",
        "assignment_reason",
        "previous_node",
        "last_error",
        "scheduler_last_error",
        "last_runtime_error",
        "container.stderr",
        "container.runtime_error",
        "failure_reason",
        "reason_code",
        "reason_message",
        "reason_last_transition",
        "reason_next_retry_at",
        "reason_retryable",
        "retry_terminal",
        "retry_terminal_reason",
        "terminal_failure_reason",
        "failureObservedAt",
        "failureGraceUntil",
        "lastApplyRequestAt",
        "lastApplyRevision",
        "lastLaunchTime",
        "reapplyAttempts",
        "reapplyNextAt",
        "lastReconciliation",
        "lastReconciliationAction",
        "lastReconciliationSuccess",
        "reconciliationRetryCount",
        "usage_cpu_percent",
        "usage_memory_bytes",
        "usage_disk_read_bytes",
        "usage_disk_write_bytes",
        "usage_net_rx_bytes",
        "usage_net_tx_bytes",
        "usage_collected_at",
        "usage_source",
        "managed_storage_state",
        "drift_reason",
        "drift_reconciled_at",
        "vm.primary_ip",
        "persys.scheduling.pinned_reason",
        "persys.workload.type",
    }
)
_TAINT = re.compile(r"\*|[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def checked_metadata(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata if its keys are a client's to set and its size is bounded."""
    embedded = values.get(EMBEDDED_VM_KEY)
    fields.labels(field, {k: v for k, v in values.items() if k != EMBEDDED_VM_KEY}, MAX_ENTRIES, MAX_VALUE)
    if embedded is not None:
        fields.text(f"{field}.{EMBEDDED_VM_KEY}", embedded, MAX_EMBEDDED)
    for key in values:
        if key in _INTERNAL:
            raise InvalidInput(f"{field}.{key}", "is kept by the system and cannot be set")
        if key.startswith(_OWN_PREFIX) and key not in _OURS:
            raise InvalidInput(f"{field}.{key}", f"is not known; known are {', '.join(sorted(_OURS))}")
    _check_placement(field, values)
    _check_policies(field, values)
    return dict(values)


def _check_placement(field: str, values: Mapping[str, str]) -> None:
    if values.get(NODE_KEY):
        check_id(f"{field}.{NODE_KEY}", values[NODE_KEY])
    for one in parse_tolerations(values.get(TOLERATIONS_KEY, "")):
        if not _TAINT.fullmatch(one.key) or one.effect not in _EFFECTS:
            raise InvalidInput(
                f"{field}.{TOLERATIONS_KEY}", 'must be "key", "key=value" or "key=value:NoSchedule", comma-separated'
            )


def _check_policies(field: str, values: Mapping[str, str]) -> None:
    """Refuse a policy that cannot be read; a blank value means the default."""
    for key, value in values.items():
        here = f"{field}.{key}"
        if not value.strip():
            continue
        if key in _TRUTHS and policy.parse_truth(value) is None:
            raise InvalidInput(here, f"{fields.shown(value)} is not allowed; it must be true or false")
        if key in _DURATIONS:
            _check_duration(here, key, value)
        if key == policy.ON_RETURN_KEY:
            fields.choice(here, value, {str(one): str(one) for one in policy.OnReturn})
        if key == policy.PERSISTENCE_KEY:
            fields.choice(here, value, {str(one): str(one) for one in policy.Persistence})
        if key in _OF_COPIES:
            _check_of_copies(here, key, value)


def _check_of_copies(here: str, key: str, value: str) -> None:
    if key == policy.ANTI_AFFINITY_KEY:
        check_id(here, value.strip())
    elif key == policy.REPLICAS_KEY and policy.parse_replicas(value) is None:
        raise InvalidInput(here, f"{fields.shown(value)} is not allowed; it must be 1 to {policy.MAX_REPLICAS}")
    elif key == policy.MAX_UNAVAILABLE_KEY and policy.parse_max_unavailable(value, policy.MAX_REPLICAS) is None:
        allowed = f"1 to {policy.MAX_REPLICAS}, or 1% to 100%"
        raise InvalidInput(here, f"{fields.shown(value)} is not allowed; it must be {allowed}")


def _check_duration(here: str, key: str, value: str) -> None:
    seconds = policy.parse_duration(value)
    if seconds is None:
        raise InvalidInput(here, f"{fields.shown(value)} must be a duration such as 90s, 5m or 1h30m, at most 365d")
    if key == policy.STOP_AFTER_KEY and seconds < policy.LEAST_STOP_AFTER_SECONDS:
        raise InvalidInput(here, f"{fields.shown(value)} is too short; at least 1s")


def node_selector(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that a node must carry."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in values.get(SELECTOR_KEY, "").split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise InvalidInput(
                f"{field}.{SELECTOR_KEY}", f'{fields.shown(item)} must be "key=value", several comma-separated'
            )
        found[key.strip()] = value.strip()
    return found
