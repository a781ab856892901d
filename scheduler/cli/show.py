"""How data and messages are written: tables, JSON and YAML on stdout, messages on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_COLOURS = {
    "running": "green",
    "ready": "green",
    "placed": "green",
    "pending": "yellow",
    "scheduled": "yellow",
    "updating": "yellow",
    "retrypending": "yellow",
    "deleting": "yellow",
    "draining": "yellow",
    "drained": "yellow",
    "failed": "red",
    "refused": "red",
    "notready": "red",
    "unknown": "red",
}
_MAX_CELL = 100


@dataclass
class Table:
    """Rows under headings; columns named in `status` are coloured by what they say."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def say(message: str) -> None:
    """Tell people something; it does not become part of the data."""
    click.echo(printable(message), err=True)


def write(output: str, data: Any, *parts: Table | str) -> None:
    """Write data to stdout: whole as JSON or YAML, or as the tables and lines given for people."""
    if output == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    elif output == "yaml":
        from scheduler.cli.yaml_text import yaml_text  # noqa: PLC0415 - only here

        click.echo(yaml_text(data), nl=False)
    else:
        for part in parts:
            _write_part(part)


def _write_part(part: Table | str) -> None:
    if isinstance(part, str):
        click.echo(printable(part))
    elif sys.stdout.isatty():
        _write_rich(part)
    else:
        _write_plain(part)


def _write_plain(table: Table) -> None:
    rows = [list(table.columns), *([cell(c) for c in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _write_rich(table: Table) -> None:
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = RichTable(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(table.columns):
        shown.add_column(name, no_wrap=i == 0, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell(c), style=colour_of(c)) for c in row))
    Console().print(shown)


def colour_of(text: str) -> str:
    """Return the colour of a state; blank for other text."""
    words = text.split(maxsplit=1)
    return _COLOURS.get(words[0].lower(), "") if words else ""


def printable(text: str) -> str:
    """Replace control characters: what a workload or an agent wrote must not drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in text)


def cell(text: str) -> str:
    """Make a text fit for one line of a table; blank becomes "-"."""
    line = " ".join(printable(text).split())
    return (line if len(line) <= _MAX_CELL else line[: _MAX_CELL - 1] + "…") or "-"


def plain(message: Message) -> dict[str, Any]:
    """Turn a message into plain data under the wire's names; numbers stay numbers, unset messages are left out."""
    return _plain(message, _all_fields)


def plain_set(message: Message) -> dict[str, Any]:
    """Turn a message into plain data; fields at their default are left out."""
    return _plain(message, lambda m: [f for f, _ in m.ListFields()])


def _all_fields(message: Message) -> list[Any]:
    return [f for f in message.DESCRIPTOR.fields if not f.has_presence or message.HasField(f.name)]


def _plain(message: Message, fields_of: Callable[[Message], list[Any]]) -> dict[str, Any]:
    return {f.name: _plain_field(f, getattr(message, f.name), fields_of) for f in fields_of(message)}


def _plain_field(descriptor: Any, value: Any, fields_of: Callable[[Message], list[Any]]) -> Any:
    kind = descriptor.message_type
    if kind is not None and kind.GetOptions().map_entry:
        item = kind.fields_by_name["value"]
        return {str(key): _plain_value(item, value[key], fields_of) for key in sorted(value)}
    if descriptor.is_repeated:
        return [_plain_value(descriptor, item, fields_of) for item in value]
    return _plain_value(descriptor, value, fields_of)


def _plain_value(descriptor: Any, value: Any, fields_of: Callable[[Message], list[Any]]) -> Any:
    if isinstance(value, Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return _plain(value, fields_of)
    if descriptor.enum_type is not None:
        known = descriptor.enum_type.values_by_number.get(value)
        return known.name if known else value
    return value


def age(stamp: Timestamp, now: datetime | None = None) -> str:
    """Say how long ago this was: "12s", "5m", "3h", "9d"; blank when it is not set."""
    if not stamp.seconds:
        return ""
    return span(((now or datetime.now(UTC)) - stamp.ToDatetime(UTC)).total_seconds())


def moment(stamp: Timestamp) -> str:
    """Write a time to the second, in UTC; blank when it is not set."""
    return stamp.ToDatetime().isoformat(timespec="seconds") + "Z" if stamp.seconds else ""


def span(seconds: float) -> str:
    """Write a length of time in its largest unit that fits."""
    for unit, length, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{max(0, int(seconds // length))}{unit}"
    return f"{int(seconds // 86400)}d"


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Align names and values, one a line; pairs with a blank value are left out."""
    kept = [(name, value) for name, value in items if value]
    width = max((len(name) for name, _ in kept), default=0)
    indent = "\n" + " " * (width + 2)
    return "\n".join(f"{name.ljust(width)}  {value.rstrip().replace(chr(10), indent)}" for name, value in kept)
