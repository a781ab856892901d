"""Identifiers: one pattern for nodes, workloads and whatever else becomes part of a key."""

from __future__ import annotations

import hashlib
import re

from scheduler.domain.errors import InvalidInput

ID_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?"
MAX_ID_LENGTH = 128
_ID = re.compile(ID_PATTERN)


def check_id(field: str, value: str) -> str:
    """Return the value, or raise InvalidInput that names the field and the allowed form."""
    if not value.strip():
        raise InvalidInput(field, "must not be blank")
    if len(value) > MAX_ID_LENGTH:
        raise InvalidInput(field, f"has {len(value)} characters, at most {MAX_ID_LENGTH} are allowed")
    if not _ID.fullmatch(value):
        raise InvalidInput(
            field,
            f"{value!r} must consist of A-Z a-z 0-9 . _ - and begin and end with a letter or digit",
        )
    return value


def project_name(workload_id: str) -> str:
    """Name a compose project so that different ids have different names: compose allows only [a-z0-9_-]."""
    plain = re.sub(r"[^a-z0-9_-]", "-", workload_id.lower())
    if plain == workload_id:
        return plain
    return f"{plain}-{hashlib.sha256(workload_id.encode()).hexdigest()[:8]}"
