"""What suggestions of automation ask for, and which are fresh."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler.convergence.suggestions import Freshness, check_fresh, replicas_asked, state_asked
from scheduler.domain.errors import InvalidInput, Refused
from scheduler.domain.suggestion import suggestion_key

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULE = Freshness(max_age_seconds=300, tolerance_seconds=30, undated=True)


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("", "Running"),
        ("  ", "Running"),
        ("Running", "Running"),
        ("stop", "Stopped"),
        ("STOPPED", "Stopped"),
        ("delete", "Deleted"),
        (" Deleted ", "Deleted"),
    ],
)
def test_F87_states_are_read_as_the_reference_system_reads_them(text: str, state: str) -> None:
    """Case and blanks do not matter."""
    assert state_asked(text) == state


@pytest.mark.parametrize("text", ["paused", "restart", "Runing", "x" * 500])
def test_9_24_an_unknown_state_is_an_error_and_does_not_mean_running(text: str) -> None:
    """The reference system starts the workload then."""
    with pytest.raises(InvalidInput, match="Running, Stopped or Deleted"):
        state_asked(text)


@pytest.mark.parametrize("seconds", [-30, 0, 1, 300])
def test_F87_what_is_fresh(seconds: float) -> None:
    """Up to the age and the tolerance."""
    check_fresh(NOW - timedelta(seconds=seconds), NOW, RULE)


@pytest.mark.parametrize(("seconds", "words"), [(301, "301 s ago"), (-31, "31 s in the future")])
def test_9_24_what_is_not_fresh_is_refused(seconds: float, words: str) -> None:
    """It may rest on how things were long ago."""
    with pytest.raises(Refused, match=words):
        check_fresh(NOW - timedelta(seconds=seconds), NOW, RULE)


def test_F87_a_suggestion_without_a_time_is_fresh_where_that_is_allowed() -> None:
    """The setting says."""
    check_fresh(None, NOW, RULE)
    with pytest.raises(Refused, match="suggested_at is missing"):
        check_fresh(None, NOW, Freshness(300, 30, undated=False))


@pytest.mark.parametrize(
    ("desired", "delta", "present", "wanted"), [(5, 0, 1, 5), (0, 2, 3, 5), (0, -2, 3, 1), (5, 2, 3, 5), (1, 0, 9, 1)]
)
def test_F87_numbers_of_copies(desired: int, delta: int, present: int, wanted: int) -> None:
    """So many, or so many more or fewer; both when they agree."""
    assert replicas_asked(desired, delta, present) == wanted


@pytest.mark.parametrize(
    ("desired", "delta", "present", "words"),
    [
        (0, 0, 3, "must be given"),
        (0, -3, 3, "1 to 1000"),
        (0, 1, 1000, "1 to 1000"),
        (1001, 0, 3, "1 to 1000"),
        (-1, 0, 3, "1 to 1000"),
        (5, 1, 3, "give one of them"),
        (0, 2**31 - 1, 3, "1 to 1000"),
    ],
)
def test_F87_numbers_of_copies_that_are_refused(desired: int, delta: int, present: int, words: str) -> None:
    """Never clamped: a suggestion that makes no sense changes nothing."""
    with pytest.raises(InvalidInput, match=words):
        replicas_asked(desired, delta, present)


def test_F87_any_id_of_a_suggestion_has_a_key() -> None:
    """Different ones have different keys; a blank one has none."""
    assert suggestion_key("") == ""
    assert suggestion_key("p-1.2") == "p-1.2"
    keys = {suggestion_key(one) for one in ("a/b", "a b", "ü" * 512, "x" * 129)}
    assert len(keys) == 4
    assert all("/" not in key and len(key) < 100 for key in keys)
