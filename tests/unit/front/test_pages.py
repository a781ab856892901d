"""Page tokens: opaque, complete, and good for nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain.errors import InvalidInput
from scheduler.front.pages import page_size, resume, token

IDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=128)


@given(IDS, st.lists(st.text(max_size=20), max_size=3))
def test_a_token_leads_back_to_its_place(after: str, filters: list[str]) -> None:
    """Whatever id the page ended with."""
    assert resume("nodes", filters, token("nodes", filters, after)) == after


@given(st.text(max_size=100))
def test_nonsense_is_refused_by_name(text: str) -> None:
    """Never another exception; blank means the beginning."""
    try:
        assert resume("nodes", [], text) == "" or text
    except InvalidInput as error:
        assert error.field == "page_token"  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(("what", "filters"), [("workloads", ["a"]), ("nodes", ["b"]), ("nodes", [])])
def test_a_token_of_another_list_is_refused(what: str, filters: list[str]) -> None:
    """Another kind, other filters."""
    with pytest.raises(InvalidInput, match="page_token"):
        resume(what, filters, token("nodes", ["a"], "n1"))


def test_page_sizes() -> None:
    """0 means 100, too much means 1000, below 0 is refused."""
    assert [page_size(n) for n in (0, 1, 1000, 5000)] == [100, 1, 1000, 1000]
    with pytest.raises(InvalidInput, match="page_size"):
        page_size(-1)
