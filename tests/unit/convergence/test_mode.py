"""The decision about the mode (F73): tables and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.convergence.mode import CALM_ANSWERS, Mode, Sight, next_mode

PATIENCE = 5.0
FINE = Sight(0.0, answers=10, known_id="c", cluster_id="c")
N, D, R = Mode.NORMAL, Mode.DEGRADED, Mode.RECOVERY


@pytest.mark.parametrize(
    ("before", "sight", "after"),
    [
        (N, FINE, N),
        (N, Sight(4.9, answers=0, known_id="c", cluster_id="c"), N),
        (N, Sight(5.0, answers=0, known_id="c", cluster_id="c"), D),
        (D, Sight(0.0, answers=1, known_id="c", cluster_id="c"), D),
        (D, Sight(0.0, answers=CALM_ANSWERS, known_id="c", cluster_id="c"), N),
        (D, Sight(0.0, answers=CALM_ANSWERS, known_id="c", cluster_id=None), R),
        (N, Sight(0.0, answers=1, known_id="c", cluster_id=None), R),
        (N, Sight(0.0, answers=1, known_id="c", cluster_id="other"), R),
        (N, Sight(0.0, answers=1, known_id="c", cluster_id="c", restoring="half"), R),
        (N, Sight(0.0, answers=1, known_id="c", cluster_id="c", vanished="all gone"), R),
        (R, Sight(9.0, answers=0, known_id="c", cluster_id=None), D),
        (R, FINE, N),
    ],
)
def test_F73_the_mode_follows_from_connectivity_and_from_whose_etcd_it_is(
    before: Mode, sight: Sight, after: Mode
) -> None:
    """Each row: the mode before, what is seen, the mode after."""
    assert next_mode(before, sight, patience_seconds=PATIENCE).mode is after


@pytest.mark.parametrize("before", list(Mode))
def test_scenario_9_18_a_fresh_cluster_that_never_held_anything_is_normal(before: Mode) -> None:
    """Without a record that this process has ever seen there is nothing to recover, also after a hiccup of etcd."""
    assert (
        next_mode(before, Sight(0.0, CALM_ANSWERS, known_id="", cluster_id=None), patience_seconds=PATIENCE).mode is N
    )


SIGHTS = st.builds(
    Sight,
    unanswered_seconds=st.floats(0, 20),
    answers=st.integers(0, 5),
    known_id=st.sampled_from(["", "c"]),
    cluster_id=st.sampled_from(["", "c", "d", None]),
    restoring=st.sampled_from(["", "half"]),
    vanished=st.sampled_from(["", "gone"]),
)


@given(before=st.sampled_from(list(Mode)), sight=SIGHTS)
def test_F73_there_is_no_dead_end_and_every_refusal_has_a_reason(before: Mode, sight: Sight) -> None:
    """From any mode, an etcd that answers and holds our cluster leads to normal; not normal always says why."""
    standing = next_mode(before, sight, patience_seconds=PATIENCE)
    assert bool(standing.reason) == (standing.mode is not N)
    assert next_mode(standing.mode, FINE, patience_seconds=PATIENCE).mode is N


@given(before=st.sampled_from(list(Mode)), sight=SIGHTS)
def test_F73_the_same_sight_gives_the_same_mode_again(before: Mode, sight: Sight) -> None:
    """Nothing flaps while nothing changes."""
    once = next_mode(before, sight, patience_seconds=PATIENCE)
    assert next_mode(once.mode, sight, patience_seconds=PATIENCE) == once
