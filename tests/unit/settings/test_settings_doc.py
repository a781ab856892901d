"""The settings reference is generated."""

from __future__ import annotations

import pathlib

from scheduler.cli.settings_doc import document
from scheduler.settings import Settings
from scheduler.settings_values import variable_of

_PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "settings.md"


def test_the_page_is_fresh() -> None:
    """Run `python -m scheduler.cli.settings_doc > docs/reference/settings.md` after a change of settings."""
    assert _PAGE.read_text() == document()


def test_the_page_has_every_setting_once() -> None:
    """Each variable has one row."""
    lines = document().splitlines()
    for field in Settings.model_fields.values():
        assert sum(line.startswith(f"| `{variable_of(field)}` |") for line in lines) == 1


def test_the_page_says_where_a_default_differs_from_the_reference_system() -> None:
    """Whoever brings an environment file sees what will be otherwise."""
    grace = next(line for line in document().splitlines() if "SCHEDULER_NODE_UNAVAILABLE_GRACE" in line)
    assert "`1m`" in grace
    assert "there: 3m" in grace
