"""The asynchronous half of a beat: etcd, the election and the shard map, in an event loop thread.

The synchronous half, Celery's scheduler, asks and is told through methods that do not block.
"""

from __future__ import annotations

import asyncio
import math
import queue
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Protocol

import structlog

from scheduler.domain.errors import Fenced, StoreUnavailable, WrongCluster
from scheduler.domain.shard import ShardMap, SlotRecord
from scheduler.leadership.election import Election, Leadership, new_instance_id
from scheduler.leadership.shards import current_map
from scheduler.queues.loop_thread import LoopThread
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.keys import LEADER_PREFIX, SLOTS
from scheduler.store.kv import EtcdApi
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

_OPEN_AGAIN_SECONDS = 1.0
_READ_SECONDS = 5.0
_CLOSE_SECONDS = 4.0

log = structlog.get_logger(__name__)


class BeatParts(Protocol):
    """What a beat needs; the cache holds the shard map."""

    @property
    def etcd(self) -> EtcdApi:
        """For the election."""
        ...

    @property
    def store(self) -> Store:
        """For the record of slots."""
        ...

    @property
    def cache(self) -> Cache:
        """For the shard map."""
        ...

    async def close(self) -> None:
        """Close them all."""
        ...


class Candidate:
    """Stands for election from `start` to `close`. Its methods are for one other thread, signal handlers included.

    Nothing here may wait for a lock that the other thread could hold: a signal handler that
    closes the candidate interrupts that thread anywhere. Hence the SimpleQueue.
    """

    def __init__(self, open_parts: Callable[[Settings], Awaitable[BeatParts]], settings: Settings) -> None:
        """Take what connects to etcd, and the settings."""
        self.instance_id = new_instance_id()
        self.refused: WrongCluster | None = None
        """Why this process can never lead."""
        self._open_parts = open_parts
        self._settings = settings
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = LoopThread("election")
        self._opening: Future[None] | None = None
        self._parts: BeatParts | None = None
        self._election: Election | None = None
        self._records: dict[str, Future[None]] = {}

    def start(self) -> None:
        """Begin to stand for election."""
        self._opening = self._thread.start(self._open())

    def leadership(self) -> Leadership | None:
        """Return the present term, None when this process does not surely lead."""
        return self._election.leadership() if self._election and not self.refused else None

    def shards(self) -> ShardMap | None:
        """Return the shard map as the watch last told it."""
        return current_map(self._parts.cache) if self._parts else None

    def wait(self, seconds: float) -> None:
        """Wait until leadership begins or ends, at most so long."""
        try:
            self._changes.get(timeout=max(0.0, seconds))
            while True:
                self._changes.get_nowait()
        except queue.Empty:
            return

    def resign(self) -> None:
        """End the present term and stand again."""
        self._thread.start(self._resign())

    def last_slots(self, loops: Sequence[str]) -> dict[str, SlotRecord]:
        """Return the last recorded slot of each loop. Raises StoreUnavailable."""
        try:
            return self._thread.call(self._read_slots(loops), timeout_seconds=_READ_SECONDS)
        except (TimeoutError, CancelledError):
            raise StoreUnavailable("etcd does not tell the last slots in time") from None

    def record(self, lead: Leadership, loop: str, slot: int) -> None:
        """Have a slot recorded as published. Losing a record only means that a successor may send the slot again."""
        before = self._records.get(loop)
        if before is None or before.done():
            self._records[loop] = self._thread.start(self._record(lead, loop, slot))

    def close(self) -> None:
        """Resign and let go of etcd, within seconds."""
        try:
            self._thread.call(self._close(), timeout_seconds=_CLOSE_SECONDS)
        except TimeoutError:
            log.warning("the election was not left in time, the lease will run out", instance_id=self.instance_id)
        finally:
            self._thread.close()

    async def _open(self) -> None:
        while self._parts is None:
            try:
                self._parts = await self._open_parts(self._settings)
            except WrongCluster as error:
                self._refuse(error)
                return
            except StoreUnavailable as error:
                log.warning("beat waits for etcd", error=str(error))
                await asyncio.sleep(_OPEN_AGAIN_SECONDS)
        self._parts.store.on_refused = self._refuse
        if self._parts.store.refused:
            self._refuse(self._parts.store.refused)
            return
        self._election = Election(
            self._parts.etcd,
            instance_id=self.instance_id,
            lease_seconds=math.ceil(self._settings.leader_lease_seconds),
            on_change=lambda: self._changes.put(None),
            on_put=partial(self._parts.store.wrote, LEADER_PREFIX),
        )
        self._election.start()

    def _refuse(self, why: WrongCluster) -> None:
        self.refused = why
        self._changes.put(None)

    async def _resign(self) -> None:
        if self._election:
            self._election.resign()

    async def _read_slots(self, loops: Sequence[str]) -> dict[str, SlotRecord]:
        if self._parts is None:
            return {}
        view = await self._parts.store.read([Ref(SLOTS, loop) for loop in loops])
        records = {loop: view.get(SLOTS, loop).record for loop in loops}
        return {loop: record for loop, record in records.items() if record}

    async def _record(self, lead: Leadership, loop: str, slot: int) -> None:
        if self._parts is None:
            return

        def decide(_view: View) -> Write[None]:
            write: Write[None] = Write(None)
            write.put(SLOTS, loop, SlotRecord(loop=loop, slot=slot, term=lead.term))
            return write

        try:
            await self._parts.store.transact([Ref(SLOTS, loop)], decide, guards=[lead.guard])
        except Fenced:
            log.warning("the term is over", instance_id=self.instance_id, term=lead.term)
            await self._resign()
        except StoreUnavailable as error:
            log.warning("a slot could not be recorded", loop=loop, slot=slot, error=str(error))

    async def _close(self) -> None:
        if self._opening:
            self._opening.cancel()
        if self._election:
            await self._election.close()
        if self._parts:
            await self._parts.close()
