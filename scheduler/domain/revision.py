"""Deterministic revisions: the same content has the same revision at any time."""

from __future__ import annotations

import hashlib
import json

from scheduler.domain.workload import WorkloadSpec

_NOT_CONTENT = {
    *("revision_id", "generation", "created_at", "desired_state"),
    *("replicas", "replica_of", "replica_revision"),
    "past_stop_after_ms",
}


_POLICY_PREFIXES = ("fleetbeat.", "persys.scheduling.")
_POLICIES = frozenset({"allow_move", "persys.storage.shared", "persys.storage.local"})


def revision_of(spec: WorkloadSpec) -> str:
    """Return the first 12 bytes of SHA-256 over the sorted JSON of the content, as 24 hex characters.

    Where a workload may run, and what becomes of it when its node is lost, is not its content: to
    change such a policy in the metadata restarts nothing.
    """
    content = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_CONTENT, exclude_none=True)
    content["metadata"] = {key: value for key, value in spec.metadata.items() if not is_policy(key)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def is_policy(key: str) -> bool:
    """Whether this key of the metadata is a policy, which is not part of the content."""
    return key.startswith(_POLICY_PREFIXES) or key in _POLICIES
