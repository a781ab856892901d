"""Page tokens: opaque to callers, and only good for the list, and the filters, that they came from."""

from __future__ import annotations

import base64
import binascii

import msgspec

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import MAX_ID_LENGTH

DEFAULT_SIZE = 100
MAX_SIZE = 1000
_LONGEST = 1024
_LONGEST_AFTER = 3 * MAX_ID_LENGTH


class _Token(msgspec.Struct, array_like=True):
    what: str
    filters: list[str]
    after: str


def page_size(asked: int) -> int:
    """Return how many entries a page has: 0 means 100, more than 1000 means 1000. Raises InvalidInput."""
    if asked < 0:
        raise InvalidInput("page_size", f"{asked} is not allowed; it must be 0 to {MAX_SIZE}")
    return min(asked, MAX_SIZE) or DEFAULT_SIZE


def token(what: str, filters: list[str], after: str) -> str:
    """Return the token of the page behind this id."""
    packed = msgspec.msgpack.encode(_Token(what, filters, after))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def resume(what: str, filters: list[str], text: str) -> str:
    """Return the id behind which the page begins; a blank token begins at the start. Raises InvalidInput."""
    if not text:
        return ""
    try:
        if len(text) > _LONGEST:
            raise ValueError(text)  # noqa: TRY301 - told below, like any other nonsense
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = msgspec.msgpack.decode(packed, type=_Token)
    except (binascii.Error, ValueError):
        raise InvalidInput("page_token", "is not a next_page_token of this list") from None
    if (found.what, found.filters) != (what, filters) or len(found.after) > _LONGEST_AFTER:
        raise InvalidInput("page_token", "belongs to a list with other filters; begin again without it")
    return found.after
