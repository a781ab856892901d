"""docs/reference/metrics.md as data: what each metric is, and whether every front tells the same of it."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

_PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
_ROW = re.compile(r"\| `(persys_scheduler_\w+)` \| (\w+) \| ([^|]+) \| [^|]+ \|")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


@dataclass(frozen=True)
class Row:
    """One metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    section: str

    @property
    def is_alike(self) -> bool:
        """Whether all fronts tell the same."""
        return self.section != "Of one front"

    @property
    def series(self) -> list[str]:
        """The names that Prometheus stores."""
        return [self.name + suffix for suffix in _SUFFIXES[self.kind]]


def rows() -> list[Row]:
    """Return the rows of the page."""
    found, section = [], ""
    for line in _PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        if row := _ROW.fullmatch(line):
            found.append(Row(row[1], row[2], tuple(re.findall(r"`(\w+)`", row[3])), section))
    return found
