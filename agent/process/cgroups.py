"""Limits by control groups, where this kernel and this user have them: version 2, or 1.

Each copy of a workload gets a group `fleetbeat/{agent}/{workload}.{random}` below the agent's own
group, in each hierarchy that can be written. A group is also the surest list of a copy's processes.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from agent.records import Limits

log = structlog.get_logger(__name__)

_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
MAX_PROCESSES = 4096
"""Processes of one workload, so that a fork bomb ends at its own group."""
_CONTROLLERS = ("memory", "cpu", "pids")


@dataclass(frozen=True)
class Mount:
    """A hierarchy: where it is mounted and the group this process is in."""

    unified: bool
    """Version 2, which has one hierarchy for all controllers; else version 1."""
    controllers: frozenset[str]
    base: pathlib.Path


def mounts(proc: pathlib.Path = pathlib.Path("/proc/self")) -> list[Mount]:
    """Return the hierarchies that this process sees, each with the group it is in."""
    groups: dict[frozenset[str], str] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        groups[frozenset(names.split(","))] = path.lstrip("/")
    found = []
    for line in (proc / "mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split(" ")
        if kind == "cgroup2":
            base = pathlib.Path(where) / groups.get(frozenset({""}), "")
            found.append(Mount(unified=True, controllers=frozenset(_words(base / "cgroup.controllers")), base=base))
        elif kind == "cgroup":
            given = frozenset(options.split(","))
            found += [
                Mount(unified=False, controllers=names, base=pathlib.Path(where) / path)
                for names, path in groups.items()
                if names <= given
            ]
    return found


def _words(path: pathlib.Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


class Cgroups:
    """The groups of one agent's workloads."""

    def __init__(self, agent_id: str, available: list[Mount]) -> None:
        """Find the hierarchies in which this agent may make groups."""
        self._roots: dict[str, tuple[bool, pathlib.Path]] = {}
        for mount in available:
            wanted = [c for c in _CONTROLLERS if c in mount.controllers and c not in self._roots]
            root = mount.base / "fleetbeat" / agent_id
            if wanted and _make_root(mount, root, wanted):
                _remove_empty(root)
                self._roots.update(dict.fromkeys(wanted, (mount.unified, root)))

    def __contains__(self, controller: str) -> bool:
        """Say whether this controller limits our workloads."""
        return controller in self._roots

    def summary(self) -> str:
        """Say what is limited, and what is not."""
        have = [c for c in _CONTROLLERS if c in self]
        lack = [c for c in _CONTROLLERS if c not in self]
        if not have:
            return "no cgroup can be written: cpu, memory and pids are not limited"
        versions = sorted({"v2" if unified else "v1" for unified, _ in self._roots.values()})
        text = f"cgroup {'+'.join(versions)}: {', '.join(have)}"
        return f"{text}; not limited: {', '.join(lack)}" if lack else text

    def create(self, workload_id: str, limits: Limits) -> tuple[str, ...]:
        """Make and return the groups of one copy; raises OSError when the kernel does not take a limit."""
        name = f"{workload_id}.{secrets.token_hex(4)}"
        folders = tuple(dict.fromkeys(str(root / name) for _, root in self._roots.values()))
        for folder in folders:
            pathlib.Path(folder).mkdir(parents=True)
        try:
            for controller, (unified, root) in self._roots.items():
                for file, value in _values(controller, limits, unified=unified):
                    (root / name / file).write_text(value)
        except OSError:
            remove(folders)
            raise
        return folders

    def close(self) -> None:
        """Remove the agent's own groups when no workload is left in them."""
        for _, root in set(self._roots.values()):
            with contextlib.suppress(OSError):  # in use by workloads that run on: the next start finds them
                root.rmdir()
                root.parent.rmdir()


def entrances(folders: Iterable[str]) -> list[str]:
    """Return the files by which a process enters the groups."""
    return [f"{folder}/cgroup.procs" for folder in folders]


def pids(folders: Iterable[str]) -> set[int]:
    """Return the processes in the groups."""
    return {int(word) for path in entrances(folders) for word in _words(pathlib.Path(path))}


def oom_kills(folders: Iterable[str]) -> int:
    """Return how often the kernel has killed a process of the groups for want of memory."""
    found = 0
    for folder in folders:
        for name in ("memory.events", "memory.oom_control"):
            words = _words(pathlib.Path(folder, name))
            found += int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
    return found


def remove(folders: Iterable[str]) -> None:
    """Remove the groups, which no process is in any more."""
    for folder in folders:
        try:
            pathlib.Path(folder).rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:  # a process of it is just ending: an empty group left behind does no harm
            log.info("cgroup_not_removed", group=folder, reason=str(error))


def _remove_empty(root: pathlib.Path) -> None:
    """Remove groups that an agent left which ended at a bad moment; the kernel keeps those with a process in them."""
    for folder in root.iterdir():
        if folder.is_dir():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _values(controller: str, limits: Limits, *, unified: bool) -> list[tuple[str, str]]:
    """Return which file of a group takes which value; -1 and max lift an older limit."""
    quota = max(limits.cpu_millicores * _PERIOD_US // 1000, _LEAST_QUOTA_US) if limits.cpu_millicores else 0
    memory = limits.memory_mb * 2**20
    if not unified:
        return {
            "memory": [("memory.limit_in_bytes", str(memory or -1))],
            "cpu": [("cpu.cfs_period_us", str(_PERIOD_US)), ("cpu.cfs_quota_us", str(quota or -1))],
            "pids": [("pids.max", str(MAX_PROCESSES))],
        }[controller]
    return {
        "memory": [("memory.max", str(memory or "max"))],
        "cpu": [("cpu.max", f"{quota or 'max'} {_PERIOD_US}")],
        "pids": [("pids.max", str(MAX_PROCESSES))],
    }[controller]


def _make_root(mount: Mount, root: pathlib.Path, controllers: list[str]) -> bool:
    """Make the group that holds the workloads' groups; say whether limits can be set below it."""
    try:
        if mount.unified:
            _delegate(mount.base, controllers)
        root.parent.mkdir(exist_ok=True)
        root.mkdir(exist_ok=True)
        if mount.unified:
            for folder in (root.parent, root):
                (folder / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in controllers))
    except OSError as error:
        log.info("cgroup_not_usable", base=str(mount.base), reason=str(error))
        return False
    return os.access(root, os.W_OK)


def _delegate(base: pathlib.Path, controllers: list[str]) -> None:
    """Let groups below the agent's own have these controllers.

    Version 2 wants that no process is in a group that hands controllers on, so the agent moves to a leaf.
    """
    control = base / "cgroup.subtree_control"
    order = " ".join(f"+{c}" for c in controllers)
    try:
        control.write_text(order)
    except OSError:
        leaf = base / "fleetbeat-agent"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(str(os.getpid()))
        control.write_text(order)
