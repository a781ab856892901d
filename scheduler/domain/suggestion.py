"""Suggestions of automation: the decision on each, kept so that the same one is carried out once."""

from __future__ import annotations

import hashlib
from datetime import datetime

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id
from scheduler.domain.record import Record


class Decision(Record):
    """`/suggestions/{id}`: what was decided on a suggestion, and whether its action was carried out."""

    suggestion_id: str = ""
    workload_id: str = ""
    accepted: bool = False
    reason: str = ""
    applied_action: str = ""
    """Blank when it was rejected."""
    decided_at: datetime


def suggestion_key(suggestion_id: str) -> str:
    """Return the id of a decision in its table: the suggestion's own, or a digest of one that cannot be part of a key.

    Blank for a suggestion without an id: such a one cannot be told from another.
    """
    if not suggestion_id:
        return ""
    try:
        return check_id("suggestion_id", suggestion_id)
    except InvalidInput:
        return "sha256-" + hashlib.sha256(suggestion_id.encode()).hexdigest()
