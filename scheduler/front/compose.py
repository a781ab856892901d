"""Checks of compose files sent inline: size, depth, YAML, and that there are services.

A file is walked event by event before anything is built from it: nesting and what aliases
expand to are bounded there, so that neither a deep file nor a "billion laughs" reaches the
parser. The largest file allowed takes some 70 ms: check large ones off the event loop.
"""

from __future__ import annotations

from typing import Any

import yaml

from scheduler.domain.errors import InvalidInput

MAX_BYTES = 131_072
MAX_DEPTH = 32
MAX_ELEMENTS = 50_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def check_compose(field: str, content: str) -> str:
    """Return the compose text, or raise InvalidInput that says what is wrong with it, and in which line."""
    if not content.strip():
        raise InvalidInput(field, "must not be blank")
    size = len(content.encode())
    if size > MAX_BYTES:
        raise InvalidInput(field, f"has {size} bytes, at most {MAX_BYTES} are allowed")
    try:
        _walk(field, content)
        document = yaml.load(content, Loader=_Loader)  # noqa: S506 - a safe loader, the C one where there is one
    except yaml.YAMLError as error:
        raise InvalidInput(field, f"is not YAML: {_in_words(error)}") from None
    except (ValueError, RecursionError, OverflowError) as error:  # "2026-99-99" is a date to YAML, and no date
        raise InvalidInput(field, f"cannot be read: {error}") from None
    _check_services(field, document)
    return content


def _walk(field: str, content: str) -> None:
    """Bound nesting, and the number of elements that there are once every alias is replaced by what it stands for."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []  # anchor, and the elements before it
    elements = 0
    for event in yaml.parse(content, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            # An alias to what is still open would never end.
            elements += sizes.get(event.anchor or "", MAX_ELEMENTS)
        elif isinstance(event, yaml.ScalarEvent):
            elements += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, elements))
            elements += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            if anchor:
                sizes[anchor] = elements - before
        if len(open_nodes) > MAX_DEPTH:
            raise InvalidInput(field, f"is nested deeper than {MAX_DEPTH} levels")
        if elements > MAX_ELEMENTS:
            raise InvalidInput(field, f"has more than {MAX_ELEMENTS} elements, aliases counted as what they stand for")


def _check_services(field: str, document: object) -> None:
    if not isinstance(document, dict):
        raise InvalidInput(field, "must be a mapping with the key services")
    services = document.get("services")
    if not isinstance(services, dict) or not services:
        raise InvalidInput(field, "services: must be a mapping with at least one service")
    for name, service in services.items():
        if not isinstance(service, dict) or not (service.get("image") or service.get("build")):
            raise InvalidInput(field, f"services.{str(name)[:60]}: must be a mapping with an image")


def _in_words(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}" if mark else str(problem)
