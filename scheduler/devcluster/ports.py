"""Ports on the loopback: the same ones across restarts where they are still free."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
from collections.abc import Mapping, Sequence

from scheduler.devcluster.binaries import CannotStart

_LOWEST, _HIGHEST = 11000, 32767
"""Above the services that people know, below the range the kernel gives to outgoing connections."""


def assign_ports(
    names: Sequence[str], recorded: Mapping[str, int], wanted: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return a free port for each name: the wanted one, the recorded one, or else any.

    Raises CannotStart when a wanted port is taken or when there are none left.
    """
    wanted = wanted or {}
    for name, port in wanted.items():
        if not is_free(port):
            raise CannotStart(
                f"port {port} for {name} is taken on 127.0.0.1; choose another, or leave the choice to us"
            )
    chosen = dict(wanted)
    for name in names:
        if name not in chosen:
            chosen[name] = _choose(recorded.get(name, 0), set(chosen.values()) | _reserved(recorded, name))
    return chosen


def _reserved(recorded: Mapping[str, int], name: str) -> set[int]:
    return {port for other, port in recorded.items() if other != name}


def _choose(recorded: int, taken: set[int]) -> int:
    if recorded and recorded not in taken and is_free(recorded):
        return recorded
    start: int = random.randrange(_LOWEST, _HIGHEST)  # noqa: S311 - spreads clusters out, guards nothing
    for port in itertools.chain(range(start, _HIGHEST + 1), range(_LOWEST, start)):
        if port not in taken and is_free(port):
            return port
    raise CannotStart(f"no port between {_LOWEST} and {_HIGHEST} is free on 127.0.0.1")


def is_free(port: int) -> bool:
    """Say whether a server could listen on this port of the loopback now, the leavings of closed connections aside."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True
