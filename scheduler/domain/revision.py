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


def revision_of(spec: WorkloadSpec) -> str:
    """Return the first 12 bytes of SHA-256 over the sorted JSON of the content, as 24 hex characters."""
    content = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_CONTENT, exclude_none=True)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
