"""Back-offs: how long a crash loop and a failing control-plane step have to wait.

Two separate counts, so that neither spends the other's budget: `Reapply` counts how often a
copy of one revision was started on its node, `Retry` how often its agent refused what we
asked. An agent that cannot be reached counts in neither.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.domain.workload import Reapply, Retry

GUARD_FLOOR_SECONDS = 15.0
GUARD_CAP_SECONDS = 900.0
GUARDED_FROM_ATTEMPT = 3
"""The first three starts of a revision come as soon as they are needed."""
RETRY_FREE_ATTEMPTS = 2
RETRY_BASE_SECONDS = 5.0
RETRY_CAP_SECONDS = 120.0
RETRY_GRACE_SECONDS = 120.0
_MAX_DOUBLINGS = 32
"""Far beyond both caps; keeps the power finite for any count."""


def reapply_wait(attempts: int, base_seconds: float) -> float:
    """Return the seconds to wait after this many starts: base * 2^max(0, attempts - 3), at most 15 min.

    The base counts as at least 15 s.
    """
    base = max(base_seconds, GUARD_FLOOR_SECONDS)
    doublings = min(max(0, attempts - GUARDED_FROM_ATTEMPT), _MAX_DOUBLINGS)
    return min(base * 2.0**doublings, GUARD_CAP_SECONDS)


def retry_delay(attempt: int) -> float:
    """Return the seconds before the next try after this many failures: 0, 0, 5, 10, 20, 40, 80, then 120."""
    if attempt <= RETRY_FREE_ATTEMPTS:
        return 0.0
    doublings = min(attempt - RETRY_FREE_ATTEMPTS - 1, _MAX_DOUBLINGS)
    return min(RETRY_BASE_SECONDS * 2.0**doublings, RETRY_CAP_SECONDS)


def guarded_until(reapply: Reapply, revision: str) -> datetime | None:
    """Return until when a further start of this revision has to wait; None: it need not. A new revision never waits."""
    if reapply.revision_id != revision or reapply.attempts < GUARDED_FROM_ATTEMPT:
        return None
    return reapply.next_at


def after_start(reapply: Reapply, revision: str, now: datetime, base_seconds: float) -> Reapply:
    """Return the count after one more start of this revision."""
    attempts = reapply.attempts + 1 if reapply.revision_id == revision else 1
    next_at = now + timedelta(seconds=reapply_wait(attempts, base_seconds))
    return Reapply(attempts=attempts, next_at=next_at, revision_id=revision, last_at=now)


def after_stop(revision: str, now: datetime) -> Reapply:
    """Return the count after a stop was sent: cleared, no guard armed."""
    return Reapply(revision_id=revision, last_at=now)


def after_touch(reapply: Reapply, now: datetime) -> Reapply:
    """Return the count after an apply that started nothing: the agent was only asked again for news."""
    return reapply.replace(last_at=now)


def after_run(reapply: Reapply, running_since: datetime | None, now: datetime) -> Reapply:
    """Return the count when a copy stops running: cleared if it ran longer than the last wait."""
    if not reapply.attempts or running_since is None or reapply.next_at is None or reapply.last_at is None:
        return reapply
    last_wait = reapply.next_at - reapply.last_at
    return Reapply() if now - running_since > last_wait else reapply


def after_failure(retry: Retry, now: datetime, grace_seconds: float = RETRY_GRACE_SECONDS) -> Retry:
    """Return the count after the agent refused once more.

    Within the grace, which begins with the first failure, the last try is never used up; the waits
    grow all the same.
    """
    first = retry.first_failure_at or now
    failures = max(retry.failures, retry.attempts) + 1
    in_grace = now - first < timedelta(seconds=grace_seconds)
    most = max(1, retry.max_attempts - 1) if in_grace else retry.max_attempts
    return retry.replace(
        attempts=min(failures, most),
        failures=failures,
        next_retry_at=now + timedelta(seconds=retry_delay(failures)),
        first_failure_at=first,
    )
