"""Ports as the reference layout stores them: "[address:]host:container[/protocol]"."""

from __future__ import annotations

from typing import NamedTuple


class PortMapping(NamedTuple):
    """A port of the node that leads to one of the container."""

    host: int
    """0: none is asked for, the engine chooses."""
    container: int
    protocol: str


def parse_port(text: str) -> PortMapping:
    """Parse a stored port; a port alone is the container's. What is no number counts as 0, which no agent takes."""
    mapping, _, protocol = text.partition("/")
    parts = [part.strip() for part in mapping.split(":")]
    host = _number(parts[-2]) if len(parts) > 1 else 0
    return PortMapping(host, _number(parts[-1]), protocol.strip().lower() or "tcp")


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
