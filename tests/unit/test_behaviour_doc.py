"""The table of behaviour and the tests name the same rows."""

from __future__ import annotations

import pathlib
import re

_TESTS = pathlib.Path(__file__).parents[1]
_PAGE = _TESTS.parent / "docs" / "reference" / "behaviour.md"
_RANGE = re.compile(r"F(\d+)(?:\N{EN DASH}F(\d+))?")
_NAME = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)


def documented() -> set[str]:
    """Return the rows of the table; a range such as "F52" to "F56" is five."""
    found = set()
    for line in _PAGE.read_text().splitlines():
        for first, last in _RANGE.findall(line.split("|")[1]) if line.startswith("| F") else ():
            found |= {f"F{number}" for number in range(int(first), int(last or first) + 1)}
    return found


def test_every_row_is_proved_by_a_test_that_carries_its_name() -> None:
    """So `pytest -k F8_` finds what a reader of the table looks for."""
    names = [name for path in _TESTS.rglob("test_*.py") for name in _NAME.findall(path.read_text())]
    proved = {row for name in names if "components" not in name for row in re.findall(r"(?<=_)F\d+(?=_)", name)}
    rows = documented()
    assert {"F1", "F54"} <= rows
    assert rows - proved == set()
