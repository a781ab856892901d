"""The data folder of an agent: who it is, its records, and the deletes it must remember."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pathlib
import shutil
import socket

import msgspec
import structlog

from agent.durable import remove_durably, write_durably
from agent.records import Record

log = structlog.get_logger(__name__)

MAX_DELETED = 4096
"""Deletes remembered; an apply that is older than its delete by that many other deletes is not a thing that happens."""


class FolderInUse(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """The data folder belongs to another agent."""


class Identity(msgspec.Struct, frozen=True):
    """Who this data folder belongs to. The agent id marks this folder's processes and containers."""

    node_id: str
    agent_id: str


class Deleted(msgspec.Struct, frozen=True):
    """Copies of the workload with an epoch up to this one are gone and must not come back."""

    epoch: int
    at: int


class Shelf:
    """Reads and writes the data folder; only one agent at a time may hold it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Name the folder; open() takes it."""
        self.folder = folder.absolute()
        self.work = self.folder / "work"
        self.output = self.folder / "output"
        self.volumes = self.folder / "volumes"
        self._records = self.folder / "workloads"
        self._deleted = self.folder / "deleted"
        self._lock = -1

    def open(self, node_id: str) -> Identity:
        """Take the folder for this node; raises FolderInUse while another agent holds it or when it is another node's.

        The lock is the kernel's and ends with this process, however that ends.
        """
        for path in (self.folder, self.work, self.output, self._records, self._deleted):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self.folder / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._identity(node_id)
        except BlockingIOError:
            self.close()
            raise FolderInUse(
                f"data folder {self.folder} is in use by another agent; end that one or choose another --data"
            ) from None
        except FolderInUse:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _identity(self, node_id: str) -> Identity:
        path = self.folder / "agent.json"
        if not path.exists():
            write_durably(path, msgspec.json.encode(Identity(node_id, self._agent_id(node_id))))
        identity = msgspec.json.decode(path.read_bytes(), type=Identity)
        if identity.node_id != node_id:
            raise FolderInUse(
                f"data folder {self.folder} belongs to node {identity.node_id!r}, not {node_id!r}; "
                "choose another --data or --node-id"
            )
        return identity

    def _agent_id(self, node_id: str) -> str:
        """Return an id that no other folder has, and this place has again when the folder was removed.

        So a new agent finds what an earlier one left running whose records are gone.
        """
        place = self.folder.parent.stat()
        parts = (socket.gethostname(), place.st_dev, place.st_ino, self.folder.name, node_id)
        return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:32]

    def load_records(self) -> list[Record]:
        """Read all records; one that cannot be read is put aside and logged, never in the way of the others."""
        found = []
        for path in sorted(self._records.glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Record))
            except (msgspec.DecodeError, OSError) as error:
                log.error("record_unreadable", path=str(path), error=str(error))  # noqa: TRY400 - the text says it all
                path.replace(path.with_suffix(".bad"))
        return found

    def load_deleted(self) -> dict[str, Deleted]:
        """Read the remembered deletes, oldest first, and forget those beyond the bound."""
        found: dict[str, Deleted] = {}
        for path in self._deleted.glob("*.json"):
            try:
                found[path.stem] = msgspec.json.decode(path.read_bytes(), type=Deleted)
            except (msgspec.DecodeError, OSError) as error:
                log.error("deleted_unreadable", path=str(path), error=str(error))  # noqa: TRY400 - the text says it all
        ordered = sorted(found.items(), key=lambda item: item[1].at)
        for workload_id, _ in ordered[:-MAX_DELETED]:
            (self._deleted / f"{workload_id}.json").unlink(missing_ok=True)
        return dict(ordered[-MAX_DELETED:])

    async def save(self, record: Record) -> None:
        """Bring the record to disk."""
        data = msgspec.json.encode(record)
        await asyncio.to_thread(write_durably, self._records / f"{record.order.id}.json", data)

    async def forget(self, workload_id: str) -> None:
        """Remove the record."""
        await asyncio.to_thread(remove_durably, self._records / f"{workload_id}.json")

    async def save_deleted(self, workload_id: str, deleted: Deleted) -> None:
        """Bring the memory of a delete to disk."""
        await asyncio.to_thread(write_durably, self._deleted / f"{workload_id}.json", msgspec.json.encode(deleted))

    async def forget_deleted(self, workload_id: str) -> None:
        """Remove the memory of a delete."""
        await asyncio.to_thread((self._deleted / f"{workload_id}.json").unlink, missing_ok=True)

    def work_folder(self, workload_id: str) -> pathlib.Path:
        """Return the folder that a workload runs in, made when missing."""
        path = self.work / workload_id
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def volume_folder(self, identifier: str) -> pathlib.Path:
        """Return the folder of a volume; its name is the id's, with "_" for the ":" behind the driver."""
        return self.volumes / identifier.replace(":", "_")

    def remove_work(self, workload_id: str) -> None:
        """Remove the work folder and the kept output of a workload."""
        folder = self.work / workload_id
        if folder.exists():
            shutil.rmtree(folder)
        for name in (f"{workload_id}.log", f"{workload_id}.log.1"):
            (self.output / name).unlink(missing_ok=True)
