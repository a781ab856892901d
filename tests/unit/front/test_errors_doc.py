"""The errors reference lists exactly the reasons there are."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from scheduler.domain.errors import FleetbeatError
from scheduler.front.errors import CODES, code_of

_PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
_ROW = re.compile(r"\| `([A-Z_]+)` \| `([A-Z_]+)` \| [^|]+ \| [^|]+ \|")


def errors(base: type[FleetbeatError]) -> Iterator[type[FleetbeatError]]:
    """Go through the errors of the control plane."""
    if base.__module__.startswith("scheduler."):
        yield base
    for one in base.__subclasses__():
        yield from errors(one)


def test_the_page_lists_every_reason_with_each_of_its_codes_once() -> None:
    """And nothing else."""
    found = [(row[1], row[2]) for row in map(_ROW.fullmatch, _PAGE.read_text().splitlines()) if row]
    kinds = {*errors(FleetbeatError), *CODES}
    expected = {(kind.reason, code_of(kind.__new__(kind)).name) for kind in kinds}
    assert sorted(found) == sorted(expected)
