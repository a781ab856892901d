"""Back-offs: the exact schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from scheduler.convergence.backoff import (
    after_failure,
    after_run,
    after_start,
    after_stop,
    guarded_until,
    reapply_wait,
    retry_delay,
)
from scheduler.domain.workload import Reapply, Retry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def starts(count: int, revision: str = "r1", base: float = 45.0) -> Reapply:
    """Start a revision so many times, each as soon as the guard lets it."""
    reapply, now = Reapply(), NOW
    for _ in range(count):
        now = max(now, guarded_until(reapply, revision) or now)
        reapply = after_start(reapply, revision, now, base)
    return reapply


def test_F22_reapply_waits_grow_and_cap() -> None:
    """The waits after starts 1 to 9 are the reference system's."""
    assert [reapply_wait(n, 45.0) for n in range(1, 10)] == [45, 45, 45, 90, 180, 360, 720, 900, 900]
    assert reapply_wait(10_000, 45.0) == 900


def test_F22_the_guard_is_enforced_from_the_third_start() -> None:
    """After one or two starts the next needs no wait; after three it does."""
    assert guarded_until(starts(1), "r1") is None
    assert guarded_until(starts(2), "r1") is None
    assert guarded_until(starts(3), "r1") == NOW + timedelta(seconds=45)
    assert guarded_until(starts(4), "r1") == NOW + timedelta(seconds=45 + 90)


def test_F22_a_new_revision_bypasses_the_guard() -> None:
    """A guard armed for one revision does not hold another, whose count begins at one."""
    reapply = starts(6)
    assert guarded_until(reapply, "r2") is None
    assert after_start(reapply, "r2", NOW, 45.0).attempts == 1


def test_F22_a_stable_run_resets_the_guard() -> None:
    """A copy that ran longer than the last wait starts from nothing when it dies; one that did not keeps its count."""
    reapply = starts(4)
    assert reapply.last_at is not None
    since = reapply.last_at
    assert after_run(reapply, since, since + timedelta(seconds=90)) == reapply
    assert after_run(reapply, since, since + timedelta(seconds=91)) == Reapply()
    assert after_run(reapply, None, since + timedelta(days=1)) == reapply
    assert after_run(Reapply(), since, since + timedelta(days=1)) == Reapply()


def test_F23_the_base_is_never_below_15_seconds() -> None:
    """A setting of one second counts as fifteen."""
    assert [reapply_wait(n, 1.0) for n in (1, 3, 4)] == [15, 15, 30]


def test_F24_retry_delays_grow_and_cap() -> None:
    """The delays after failures 1 to 8 are the reference system's."""
    assert [retry_delay(n) for n in range(1, 9)] == [0, 0, 5, 10, 20, 40, 80, 120]
    assert retry_delay(10_000) == 120


def test_F24_a_failure_counts_and_sets_the_next_try() -> None:
    """The third failure delays the next try by five seconds and leaves the limit alone."""
    retry = Retry(max_attempts=7)
    for _ in range(3):
        retry = after_failure(retry, NOW)
    assert (retry.attempts, retry.failures, retry.max_attempts) == (3, 3, 7)
    assert (retry.next_retry_at, retry.first_failure_at) == (NOW + timedelta(seconds=5), NOW)


def test_F19_a_stop_arms_no_guard() -> None:
    """After a stop nothing has to wait."""
    reapply = after_stop("r1", NOW)
    assert reapply.attempts == 0
    assert guarded_until(reapply, "r1") is None
