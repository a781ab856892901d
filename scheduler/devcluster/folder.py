"""The data folder of an embedded cluster: what lies where, who holds it, what outlives a restart.

lock            held (flock) by the running `up`, with its pid and start time inside
cluster.json    how to reach the cluster; there from "ready" until the clean end
layout.json     ports, shard count and server versions; kept across restarts
children.json   pid and start time of every child, so that those of a killed `up` can be ended
hold/NAME       while this file exists, the child NAME is not started (again)
logs/NAME.log   output of each child; at most two files of 8 MiB each
etcd/ redis-*/ agents/NAME/     data of the children
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shlex
import shutil
from dataclasses import astuple, dataclass, field
from typing import Any

from scheduler.devcluster.binaries import CannotStart
from scheduler.devcluster.data_option import DEFAULT_FOLDER
from scheduler.devcluster.processes import Known, known

_LOG_BYTES_MAX = 8 * 1024 * 1024
_TAIL_BYTES = 8000
_TAIL_LINES = 25


@dataclass(slots=True)
class Layout:
    """What a restart on the same folder must find again."""

    shards: int = 0
    etcd_version: tuple[int, int] = (0, 0)
    ports: dict[str, int] = field(default_factory=dict)


class Folder:
    """Paths and small files of one data folder."""

    def __init__(self, root: pathlib.Path) -> None:
        """Describe the folder; nothing is created before `create`."""
        self.shown = str(root)
        self.root = root.absolute()
        self._lock: int | None = None

    @property
    def flag(self) -> str:
        """The --data flag that leads to the folder, and a space; blank for the default."""
        return "" if self.shown == DEFAULT_FOLDER else f"--data {shlex.quote(self.shown)} "

    def create(self) -> None:
        """Make the folder, readable by its owner only."""
        for path in (self.root, self.path("logs"), self.path("run"), self.path("hold"), self.path("agents")):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, *parts: str) -> pathlib.Path:
        """Return a path inside the folder."""
        return self.root.joinpath(*parts)

    def log(self, name: str) -> pathlib.Path:
        """Return the log file of a child."""
        return self.path("logs", f"{name}.log")

    def is_held(self, name: str) -> bool:
        """Say whether an operator wants this child to stay down."""
        return self.path("hold", name).exists()

    # Who runs here

    def lock(self) -> None:
        """Take the folder for this process until it ends; raises CannotStart when a live `up` has it."""
        descriptor = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            holder = self.holder()
            by = f" (pid {holder.pid})" if holder else ""
            raise CannotStart(
                f"{self.shown} is in use by a running cluster{by}; "
                f"stop it with: fleetbeat {self.flag}down, or choose another folder with --data"
            ) from None
        os.ftruncate(descriptor, 0)
        me = known(os.getpid())
        assert me is not None  # noqa: S101 - we run
        os.write(descriptor, f"{me.pid} {me.start_ticks} {me.boot_id}\n".encode())
        self._lock = descriptor

    def unlock(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def holder(self) -> Known | None:
        """Return the `up` that runs in this folder, or None."""
        try:
            pid, start_ticks, boot_id = self.path("lock").read_text().split()
        except (FileNotFoundError, ValueError):  # nobody ever ran here, or nobody does now
            return None
        holder = Known(int(pid), int(start_ticks), boot_id)
        return holder if holder.runs() else None

    # Small files

    def read_layout(self) -> Layout:
        """Return what the last run recorded; an empty layout for a new folder."""
        found = self._read("layout.json")
        if not found:
            return Layout()
        major, minor = found["etcd_version"]
        return Layout(int(found["shards"]), (int(major), int(minor)), {k: int(v) for k, v in found["ports"].items()})

    def write_layout(self, layout: Layout) -> None:
        """Record what the next run must find."""
        self._write(
            "layout.json", {"shards": layout.shards, "etcd_version": layout.etcd_version, "ports": layout.ports}
        )

    def read_children(self) -> dict[str, Known]:
        """Return the children that the last run recorded."""
        found = self._read("children.json")
        return {name: Known(*fields) for name, fields in found.items()}

    def write_children(self, children: dict[str, Known]) -> None:
        """Record the children that run now."""
        self._write("children.json", {name: astuple(child) for name, child in children.items()})

    def write_cluster(self, cluster: dict[str, object]) -> None:
        """Tell the command line how to reach the cluster."""
        self._write("cluster.json", cluster)

    def read_cluster(self) -> dict[str, Any]:
        """Return how to reach the cluster; empty when none is ready."""
        return self._read("cluster.json")

    def remove_cluster(self) -> None:
        """Say that the cluster cannot be reached any more."""
        self.path("cluster.json").unlink(missing_ok=True)

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path(name)
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CannotStart(
                f"{path} is damaged ({error}); remove it, or choose another folder with --data"
            ) from error
        if not isinstance(found, dict):
            raise CannotStart(f"{path} is damaged; remove it, or choose another folder with --data")
        return found

    def _write(self, name: str, value: dict[str, Any]) -> None:
        path = self.path(name)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(value, indent=1) + "\n")
        fresh.replace(path)

    # Logs

    def trim_logs(self) -> None:
        """Keep each log within its bound: copy a full one to NAME.log.1 and empty it (children append)."""
        for path in self.path("logs").glob("*.log"):
            if path.stat().st_size > _LOG_BYTES_MAX:
                shutil.copyfile(path, path.with_suffix(".log.1"))
                os.truncate(path, 0)

    def log_tail(self, name: str) -> str:
        """Return the last lines of a child's log."""
        try:
            with self.log(name).open("rb") as file:
                file.seek(max(0, self.log(name).stat().st_size - _TAIL_BYTES))
                return "".join(file.read().decode(errors="replace").splitlines(keepends=True)[-_TAIL_LINES:])
        except FileNotFoundError:
            return ""
