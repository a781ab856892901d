"""The guardian: a small process beside the agent that ends exclusive workloads when the node is not heard.

Two copies of an exclusive workload must never run. When the control plane has not heard this node
for the workload's stop_after, it may start another copy elsewhere; so by then this one has ended,
also when the agent is dead, stopped or stuck. Hence a process and a session of its own, and no
talk with the agent but by files in the agent's data folder:

  workloads/*.json     the agent's records: which workloads are exclusive, what runs them
  guard/contact.json   when the last heartbeat was sent that was acknowledged (written by the agent)
  guard/guardian.json  that the guardian is awake (written here, every tick)
  guard/stopped/       one mark a workload that was ended here, written before anything is done to
                       it: the agent must not take the end for a crash and start it again

Times are CLOCK_BOOTTIME: they go on while the machine sleeps, and no change of the date moves
them. It looks again and again, so a copy that an agent starts late is ended a tick later. The
kernel's lock on guard/lock makes it the only one; a new guardian ends the one before, so a new
agent has one of its own version without a gap. It goes when its agent is gone and nothing is left.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pathlib
import signal
import sys
import time
from typing import TypeVar

import msgspec
import structlog

from agent.durable import write_durably
from agent.process import table
from agent.process.tree import Trees
from agent.records import Record
from agent.runtimes import Trouble
from agent.shelf import Identity

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=msgspec.Struct)
TICK_SECONDS = 0.5
_POLL_SECONDS = 0.1
GRACE_SHARE = 4
"""A copy is asked to end this part of its stop_after before it is over, at most."""
ENGINES = frozenset({"docker", "compose"})


class Contact(msgspec.Struct, frozen=True):
    """What the agent tells: who it is, and when it was heard last."""

    boot_id: str
    agent_pid: int
    agent_start_ticks: int
    grace_seconds: float
    heard_at: float | None = None
    """When the last heartbeat that was acknowledged was sent; None: not since this boot."""


class Awake(msgspec.Struct, frozen=True):
    """What the guardian tells: who it is, and that it looked just now."""

    boot_id: str
    pid: int
    start_ticks: int
    at: float


class Stopped(msgspec.Struct, frozen=True):
    """A workload that was, or is being, ended here."""

    epoch: int
    done: bool


def boot_seconds() -> float:
    """Return the seconds since the machine was started, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def over_at(heard_at: float | None, stop_after_seconds: float) -> float:
    """Return when no copy may run any more, in seconds since boot; never heard: at once."""
    return 0.0 if heard_at is None else heard_at + stop_after_seconds


def grace_of(stop_after_seconds: float, grace_seconds: float) -> float:
    """Return how long before that a copy is asked to end."""
    return min(grace_seconds, stop_after_seconds / GRACE_SHARE)


class Guarded:
    """The files that agent and guardian share."""

    def __init__(self, data: pathlib.Path) -> None:
        """Name the agent's data folder."""
        self.folder = data / "guard"
        self.records = data / "workloads"
        self.identity = data / "agent.json"
        self._stopped = self.folder / "stopped"

    def make(self) -> None:
        """Make the folders."""
        self._stopped.mkdir(parents=True, exist_ok=True, mode=0o700)

    def contact(self) -> Contact | None:
        """Read what the agent told last."""
        return _read(self.folder / "contact.json", Contact)

    def awake(self) -> Awake | None:
        """Read when the guardian was awake last."""
        return _read(self.folder / "guardian.json", Awake)

    def tell_contact(self, contact: Contact) -> None:
        """Tell when the agent was heard; not brought to disk, for it is void after a restart of the machine."""
        _replace(self.folder / "contact.json", msgspec.json.encode(contact))

    def tell_awake(self, awake: Awake) -> None:
        """Tell that the guardian is awake."""
        _replace(self.folder / "guardian.json", msgspec.json.encode(awake))

    def mark(self, workload_id: str, stopped: Stopped) -> None:
        """Note that a workload is being ended, or has been; on disk when this returns."""
        write_durably(self._stopped / f"{workload_id}.json", msgspec.json.encode(stopped))

    def marked(self, workload_id: str) -> Stopped | None:
        """Return whether a workload was ended here."""
        return _read(self._stopped / f"{workload_id}.json", Stopped)

    def unfinished(self) -> list[str]:
        """Return the workloads whose end was begun and not completed."""
        found = {path.stem: _read(path, Stopped) for path in self._stopped.glob("*.json")}
        return [workload_id for workload_id, mark in found.items() if mark and not mark.done]

    def unmark(self, workload_id: str) -> None:
        """Forget that a workload was ended here."""
        (self._stopped / f"{workload_id}.json").unlink(missing_ok=True)


class Guardian:
    """Ends exclusive workloads in time."""

    def __init__(self, data: pathlib.Path) -> None:
        """Guard the workloads of the agent with this data folder."""
        self._files = Guarded(data)
        identity = msgspec.json.decode(self._files.identity.read_bytes(), type=Identity)
        self._trees = Trees(identity.agent_id)
        self._agent_id = identity.agent_id
        self._known: dict[str, tuple[int, Record]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._clean: set[str] = set()
        """Workloads whose time is over and of which nothing was found to run."""
        self._is_alone = False
        me = table.read(os.getpid())
        self._me = Awake(self._trees.boot_id, os.getpid(), me.start_ticks if me else 0, 0.0)

    async def run(self) -> None:
        """Guard until the agent is gone and nothing is left to be guarded."""
        lock = await asyncio.to_thread(self._take_over)
        try:
            while self._files.folder.exists():
                self._files.tell_awake(msgspec.structs.replace(self._me, at=boot_seconds()))
                self._note_agent()
                if not self._look() and self._is_alone:
                    return
                await asyncio.sleep(TICK_SECONDS)
        finally:
            os.close(lock)

    def _take_over(self) -> int:
        """Become the only guardian: end the one before, and wait until the kernel says that it has."""
        lock = os.open(self._files.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        agent_pid = os.getppid()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._end_the_one_before(agent_pid)
                time.sleep(_POLL_SECONDS)
            else:
                return lock

    def _end_the_one_before(self, agent_pid: int) -> None:
        """Kill whoever guards now; but leave it to a newer agent's guardian when there is a newer agent."""
        contact, before = self._files.contact(), self._files.awake()
        if contact and contact.agent_pid != agent_pid:
            log.info("guardian_not_needed", agent=agent_pid, newer=contact.agent_pid)
            sys.exit(0)
        if before and before.boot_id == self._trees.boot_id:
            table.send(before.pid, before.start_ticks, signal.SIGKILL)

    def _note_agent(self) -> None:
        """Notice the end of the agent. What was found before says nothing then: it may have started something since."""
        is_alone = not self._agent_lives()
        if is_alone and not self._is_alone:
            self._clean.clear()
        self._is_alone = is_alone

    def _agent_lives(self) -> bool:
        contact = self._files.contact()
        if contact is None or contact.boot_id != self._trees.boot_id:
            return False
        return table.is_alive(contact.agent_pid, contact.agent_start_ticks)

    def _look(self) -> bool:
        """Begin to end what is due; say whether anything is left to be guarded."""
        contact, now = self._files.contact(), boot_seconds()
        heard_at = contact.heard_at if contact and contact.boot_id == self._trees.boot_id else None
        grace_seconds = contact.grace_seconds if contact else 0.0
        self._tasks = {key: task for key, task in self._tasks.items() if not task.done()}
        begun = set(self._files.unfinished())
        left = set(self._tasks)
        for record in self._exclusive():
            workload_id, stop_after = record.order.id, record.order.stop_after_ms / 1000
            over = over_at(heard_at, stop_after)
            if now < over - grace_of(stop_after, grace_seconds) and workload_id not in begun:
                self._clean.discard(workload_id)
                left.add(workload_id)
            elif workload_id not in self._tasks:
                left |= {workload_id} - self._clean
                task = asyncio.create_task(self._end(record, over), name=f"end-{workload_id}")
                task.add_done_callback(_tell_failure)
                self._tasks[workload_id] = task
        return bool(left)

    def _exclusive(self) -> list[Record]:
        """Return the records of exclusive workloads; each file is read again only when it has changed."""
        found: dict[str, tuple[int, Record]] = {}
        for entry in os.scandir(self._files.records):
            if not entry.name.endswith(".json") or entry.name.startswith("."):
                continue
            try:
                changed = entry.stat().st_mtime_ns
                known = self._known.get(entry.name)
                if known is None or known[0] != changed:
                    data = pathlib.Path(entry.path).read_bytes()
                    known = (changed, msgspec.json.decode(data, type=Record))
            except FileNotFoundError:
                continue
            except (OSError, msgspec.DecodeError) as error:
                log.error("record_unreadable", path=entry.path, error=str(error))  # noqa: TRY400 - the text says it all
                continue
            found[entry.name] = known
        self._known = found
        return [record for _, record in found.values() if record.order.exclusive]

    async def _end(self, record: Record, over: float) -> None:
        """End every copy of a workload: asked at first, made to when its time is over."""
        workload_id, ref = record.order.id, record.process
        mark = self._files.marked(workload_id)
        if not await self._runs(record):
            if mark and not mark.done:
                await asyncio.to_thread(self._files.mark, workload_id, Stopped(mark.epoch, done=True))
            self._clean.add(workload_id)
            return
        self._clean.discard(workload_id)
        log.warning("not_heard_ending", workload=workload_id, epoch=record.order.epoch)
        await asyncio.to_thread(self._files.mark, workload_id, Stopped(record.order.epoch, done=False))
        in_containers = asyncio.create_task(self._end_containers(record, over))
        if ref and self._trees.is_alive(ref):
            await self._trees.ask_to_end(ref)
        members = await asyncio.to_thread(self._members, record)
        while members and boot_seconds() < over:
            await asyncio.sleep(_POLL_SECONDS)
            members = await asyncio.to_thread(self._members, record)
        await self._trees.kill(workload_id, ref, watched=False)
        await in_containers
        await asyncio.to_thread(self._files.mark, workload_id, Stopped(record.order.epoch, done=True))
        log.warning("not_heard_ended", workload=workload_id, epoch=record.order.epoch)

    async def _runs(self, record: Record) -> bool:
        members = await asyncio.to_thread(self._members, record)
        if members:
            return True
        if not ENGINES & set(record.runtimes):
            return False
        from agent.engine.ending import running  # noqa: PLC0415 - the SDK is slow to import, and few need it

        return bool(await asyncio.to_thread(running, self._agent_id, record.order.id))

    async def _end_containers(self, record: Record, over: float) -> None:
        if not ENGINES & set(record.runtimes):
            return
        from agent.engine.ending import end  # noqa: PLC0415 - the SDK is slow to import, and few need it

        await asyncio.to_thread(end, self._agent_id, record.order.id, max(0.0, over - boot_seconds()))

    def _members(self, record: Record) -> list[table.Process]:
        return self._trees.members(record.order.id, record.process, watched=False)


def _tell_failure(task: asyncio.Task[None]) -> None:
    """Log why an end failed; the next look tries again."""
    if task.cancelled() or not (error := task.exception()):
        return
    if isinstance(error, Trouble | OSError):
        log.error("cannot_end", what=task.get_name(), error=str(error))
    else:
        log.error("cannot_end", what=task.get_name(), exc_info=error)


def _read(path: pathlib.Path, kind: type[T]) -> T | None:
    """Read a file of this kind; None when there is none or it is of another form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError):
        return None


def _replace(path: pathlib.Path, data: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(data)
    scratch.replace(path)


def main() -> None:
    """Guard the data folder that the command line names."""
    from agent import logs  # noqa: PLC0415 - only the process needs it

    logs.set_up_logs("info", "json")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever ends the agent's group does not mean what it guards
    asyncio.run(Guardian(pathlib.Path(sys.argv[1])).run())


if __name__ == "__main__":
    main()
