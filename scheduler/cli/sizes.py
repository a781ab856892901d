"""Sizes and amounts as people write them on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

import click

T = TypeVar("T")
_BINARY = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,3})?)\s*([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_LONGEST_SECONDS = 86_400
_CPU = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(m?)", re.ASCII)


def bytes_in(text: str, plain_unit: str = "") -> int:
    """Return the bytes of "64K", "1.5Gi" or a bare number of the plain unit; ValueError for other text."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a size; write it as 512K, 64Mi or 2Gi")
    return int(Decimal(found[1]) * _BINARY[(found[2] or plain_unit).lower()])


def millicores_in(text: str) -> int:
    """Return the millicores of "100m", "0.5" or "2" (cores); ValueError for other text."""
    found = _CPU.fullmatch(text.strip())
    amount = Decimal(found[1]) * (1 if found[2] else 1000) if found else Decimal("0.5")
    if amount != int(amount):
        raise ValueError(f"{text!r} is not an amount of CPU; write it as 250m or 0.25, at least 1m apart")
    return int(amount)


def size_in(text: str, unit: str, plain_unit: str, most_bytes: int = 1024**5) -> int:
    """Return whole units, rounded up, of a size whose bare numbers mean the plain unit ("", "k", "m", "g")."""
    size = bytes_in(text, plain_unit)
    if size > most_bytes:
        raise ValueError(f"{text!r} is more than {most_bytes} bytes")
    return -(-size // _BINARY[unit])


def seconds_in(text: str) -> float:
    """Return the seconds of "90", "2m" or "1m30s", up to a day."""
    from scheduler.settings_values import parse_duration  # noqa: PLC0415 - slow to import

    try:
        seconds = float(str(parse_duration(text)))
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError(f"{text!r} must be more than 0 and at most 24h")
    return seconds


def converted(convert: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """Make an option's callback of a function that raises ValueError."""

    def callback(_ctx: click.Context, _param: click.Parameter, value: str | None) -> T | None:
        if value is None:
            return None
        try:
            return convert(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


timeout_option = click.option(
    "--timeout",
    "seconds",
    default="2m",
    show_default=True,
    metavar="DURATION",
    callback=converted(seconds_in),
    help="How long to wait, as 90 or 2m.",
)
