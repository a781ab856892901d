"""The values that the fields of a manifest may have. Each check says in words what is allowed."""

from __future__ import annotations

import re
import shlex
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import check_id

KINDS = ("container", "compose", "vm")
TYPES = {**{kind: kind for kind in KINDS}, "docker-container": "container", "docker-compose": "compose"}
_SHOWN = 60
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def told(value: object) -> str:
    """Quote a value for a message, cut to a length that is fit to print."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return f'"{text}"' if isinstance(value, str) else text


def whole(what: str, low: int, high: int) -> BeforeValidator:
    """Take a whole number within bounds."""

    def check(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{told(value)} is not a whole number")  # noqa: TRY004 - pydantic wants a ValueError
        if not low <= value <= high:
            raise ValueError(f"{value} is not {what}; allowed {low}–{high}")  # noqa: RUF001 - an en dash, meant
        return value

    return BeforeValidator(check)


def _sound(value: str) -> str:
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise ValueError("has a character that is not allowed (NUL, or half of a pair)")
    return value


def matching(pattern: re.Pattern[str], allowed: str) -> AfterValidator:
    """Take what the whole pattern matches; `allowed` says in words what does."""

    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{told(value)} must be {allowed}")
        return value

    return AfterValidator(check)


def _identifier(value: str) -> str:
    try:
        return check_id("", value)
    except InvalidInput as error:
        raise ValueError(error.problem) from None


def _absolute(value: str) -> str:
    if not value.startswith("/") or ":" in value or ".." in value.split("/"):
        raise ValueError(f"{told(value)} must be an absolute path without : and ..")
    return value


def one_of(*words: str) -> BeforeValidator:
    """Take one of these words in any case."""
    by_lower = {word.lower(): word for word in words}

    def check(value: object) -> object:
        if not isinstance(value, str) or value.strip().lower() not in by_lower:
            raise ValueError(f"{told(value)} must be {' or '.join(words)}")
        return by_lower[value.strip().lower()]

    return BeforeValidator(check)


def not_deleted(value: object) -> object:
    """Tell how to delete, where somebody tries it by applying."""
    if isinstance(value, str) and value.strip().lower() == "deleted":
        raise ValueError("Deleted cannot be applied; use `fleetbeat workload delete`")
    return value


def arguments(value: object) -> object:
    """Split a command given as one text as a shell would."""
    if not isinstance(value, str):
        return value
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ValueError(f"cannot be split into arguments ({error}); write it as a list") from None


def workload_type(value: object) -> object:
    """Take a type of workload, the reference system's other names for it included."""
    if not isinstance(value, str) or value.strip().lower() not in TYPES:
        raise ValueError(f"{told(value)} must be one of {', '.join(KINDS)}")
    return TYPES[value.strip().lower()]


Text = Annotated[str, AfterValidator(_sound)]
Id = Annotated[Text, AfterValidator(_identifier)]
PortNumber = Annotated[int, whole("a port", 1, 65535)]
AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
EnvName = Annotated[Text, matching(_ENV_NAME, "a name of letters, digits, _ . and -, not led by a digit")]
Environment = dict[EnvName, Text]
Image = Annotated[Text, matching(re.compile(r"[^\s\x00-\x1f\x7f]+"), "an image name without blanks")]
