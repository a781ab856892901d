"""Writes docs/reference/settings.md: `python -m scheduler.cli.settings_doc > docs/reference/settings.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from scheduler.settings import Settings
from scheduler.settings_unread import NOT_READ
from scheduler.settings_values import allowed_values, note_of, shown, variable_of

_HEAD = """# Settings

<!-- Written by `python -m scheduler.cli.settings_doc`; a test proves that it is fresh. -->

Every process of the control plane reads its settings from environment variables when it starts.
`fleetbeat config` shows the effective ones and where each is from, secrets masked.

- A wrong value is an error: the process does not start and names every wrong variable, its value and what is
  allowed. So does a `FLEETBEAT_` variable that does not exist, with the nearest name that does.
- Blanks around a value are dropped; a blank value counts as not set.
- Durations: `15s`, `2m`, `1m30s`, `250ms`, or a bare number of seconds: `15` is `15s`.
- Booleans: `true`, `1`, `yes`, `false`, `0`, `no`, in any case.

Names and defaults are those of the reference system, so that its environment files work; where a default or a
meaning is another, the last column says so. There, a wrong value silently became the default.
"""

_ELSEWHERE = (
    ("FLEETBEAT_SERVER", "The front, host:port, that the command line talks to; several, comma-separated."),
    ("FLEETBEAT_DATA", "Data folder of the embedded cluster; `.fleetbeat` when not set."),
    ("FLEETBEAT_AGENT_*", "Read by the agent; `fleetbeat agent --help` lists them."),
    ("FLEETBEAT_WORKLOAD_*, FLEETBEAT_NODE_ID", "Set by the agent in a workload's environment; not read here."),
    ("FLEETBEAT_TEST_*", "Read by tests."),
)


def document() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_sections(), *_elsewhere(), *_not_read()])


def _sections() -> Iterator[str]:
    rows: list[Sequence[str]] = []
    heading = ""
    for name, field in Settings.model_fields.items():
        if name in Settings.sections:
            yield from _section(heading, rows)
            heading, rows = Settings.sections[name], []
        default = shown(field, field.default)
        code = f"`{default}`" if default else ""
        rows.append([f"`{variable_of(field)}`", code, allowed_values(field), field.description or "", _note(name)])
    yield from _section(heading, rows)


def _note(name: str) -> str:
    """Return how the setting differs from the reference system, "ours" where that has none, blank where alike."""
    field = Settings.model_fields[name]
    note = note_of(field, "reference")
    ours = variable_of(field).startswith("FLEETBEAT_") or name == "shard_hash"
    return "; ".join(filter(None, ["ours" if ours else "", note]))


def _section(heading: str, rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if heading:
        yield f"## {heading}\n"
        yield _table(("variable", "default", "allowed", "meaning", "reference system"), rows)


def _elsewhere() -> Iterator[str]:
    yield "## Read elsewhere\n"
    yield _table(("variable", "meaning"), [(f"`{name}`", meaning) for name, meaning in _ELSEWHERE])
    yield "Variables that Kubernetes sets for Services whose names begin with `fleetbeat` are passed over.\n"


def _not_read() -> Iterator[str]:
    yield "## Variables of the reference system that are not read\n"
    yield "Setting one of these changes nothing. A process that finds one says so, unless other programs read it too.\n"
    yield _table(("variable", "why"), [(f"`{name}`", reason) for name, reason in NOT_READ.items()])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(c.replace("|", "\\|") for c in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(document())
