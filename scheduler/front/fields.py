"""Checks of single fields. Each names the field, in the wire's spelling with a dotted path, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Sized

from scheduler.domain.errors import InvalidInput

_SHOWN = 60
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def shown(value: str) -> str:
    """Quote a value for a message, cut to a length that is fit to print."""
    return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")


def text(field: str, value: str, longest: int, *, blank: bool = True) -> str:
    """Return the value if it is at most so long, has no NUL, and is not blank where that is not allowed."""
    if not blank and not value.strip():
        raise InvalidInput(field, "must not be blank")
    if len(value) > longest:
        raise InvalidInput(field, f"has {len(value)} characters, at most {longest} are allowed")
    if "\0" in value:
        raise InvalidInput(field, "must not contain a NUL character")
    return value


def line(field: str, value: str, longest: int, *, blank: bool = True) -> str:
    """Return the value if it is such a text and has no control character."""
    text(field, value, longest, blank=blank)
    if _CONTROL.search(value):
        raise InvalidInput(field, f"{shown(value)} must not contain control characters")
    return value


def matching(field: str, value: str, pattern: re.Pattern[str], allowed: str, longest: int = 256) -> str:
    """Return the value if the whole of it matches; `allowed` says in words what does."""
    text(field, value, longest, blank=False)
    if not pattern.fullmatch(value):
        raise InvalidInput(field, f"{shown(value)} must be {allowed}")
    return value


def number(field: str, value: int, low: int, high: int) -> int:
    """Return the value if it lies within the bounds, both included."""
    if not low <= value <= high:
        raise InvalidInput(field, f"{value} is not allowed; it must be {low} to {high}")
    return value


def choice(field: str, value: str, allowed: Mapping[str, str], *, blank: str | None = None) -> str:
    """Return the canonical spelling of one of the allowed values, whatever its case.

    `allowed` maps lower-case spellings to canonical ones; `blank` is what a blank value means (None: not allowed).
    """
    if blank is not None and not value.strip():
        return blank
    found = allowed.get(value.strip().lower())
    if found is None:
        names = ", ".join(dict.fromkeys(allowed.values()))
        raise InvalidInput(field, f"{shown(value)} is not allowed; it must be one of {names}")
    return found


def count(field: str, items: Sized, most: int) -> None:
    """Refuse more than so many items."""
    if len(items) > most:
        raise InvalidInput(field, f"has {len(items)} entries, at most {most} are allowed")


def distinct(field: str, names: Iterable[str], what: str) -> None:
    """Refuse a name that occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(field, f"{what} {shown(name)} is given twice")
        seen.add(name)


def path(field: str, value: str, longest: int = 1024) -> str:
    """Return an absolute path without `..`, `:` or control characters."""
    line(field, value, longest, blank=False)
    if not value.startswith("/"):
        raise InvalidInput(field, f"{shown(value)} must be an absolute path")
    if ":" in value or ".." in value.split("/"):
        raise InvalidInput(field, f"{shown(value)} must not contain ':' or '..'")
    return value


_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def environment(field: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables whose names and sizes are fit for a process."""
    count(field, values, 1000)
    for name, value in values.items():
        matching(f"{field}[{shown(name)}]", name, _ENV_NAME, "a name of letters, digits, _ . and -, not led by a digit")
        text(f"{field}.{name}", value, 32_768)
    return dict(values)


_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
KEY_WORDS = "letters, digits, . _ / and -, beginning and ending with a letter or digit"


def labels(field: str, values: Mapping[str, str], most: int, longest: int) -> dict[str, str]:
    """Return labels or metadata: keys of a plain form, values of bounded length."""
    count(field, values, most)
    for key, value in values.items():
        matching(f"{field}[{shown(key)}]", key, _KEY, KEY_WORDS, 128)
        text(f"{field}.{key}", value, longest)
    return dict(values)


def strings(field: str, values: Sequence[str], most: int, longest: int) -> tuple[str, ...]:
    """Return a list of texts of bounded number and length."""
    count(field, values, most)
    return tuple(text(f"{field}[{i}]", value, longest) for i, value in enumerate(values))
