"""The events that are kept, in Redis and in etcd, as one list; and the tail of both as one stream.

Each event has one id wherever it is, and may be in both places, or twice in one: whoever sent it
did not know whether it had arrived. So everything here goes by ids.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pydantic import ValidationError

from scheduler.domain.event import Event
from scheduler.front.parts import FrontParts
from scheduler.store.cache import Change
from scheduler.store.keys import EVENTS
from scheduler.telemetry.events import FIELD, STREAM
from scheduler.telemetry.redis import TelemetryUnavailable, answers, configured, end_task

POLL_SECONDS = 0.5
PAGE = 500
QUEUE = 2_000
"""Events that wait for one watcher. More than the stream keeps, so that a replay of all of it fits."""
SEEN = 20_000
"""Ids that one watcher remembers; far more than are kept anywhere."""
TRIMMED = "EventsTrimmed"
"""The type of what a watcher is told when events may have gone before it could be sent them."""
BEGIN = "0-0"

_log = structlog.get_logger("scheduler.front.events")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events are wanted; blank fields want all."""

    type: str = ""
    workload_id: str = ""
    node_id: str = ""

    def takes(self, event: Event) -> bool:
        """Whether an event is wanted."""
        return (
            self.type in ("", event.type)
            and self.workload_id in ("", event.workload_id)
            and self.node_id in ("", event.node_id)
        )


class Watcher:
    """One who watches: a bounded queue, and the ids that went through it."""

    def __init__(self, wanted: Filter) -> None:
        """Start with nothing."""
        self._wanted = wanted
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE)
        """None: events may have gone."""
        self.is_slow = False
        """The queue was full: what it lacks cannot be made up for any more."""

    def offer(self, event: Event) -> None:
        """Queue an event that is wanted and new."""
        if not self._wanted.takes(event) or event.id in self._seen:
            return
        self.mark(event)
        self._put(event)

    def mark(self, event: Event) -> None:
        """Remember an event as sent."""
        self._seen[event.id] = None
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)

    def tell_of_gap(self) -> None:
        """Queue the news that events may have gone."""
        self._put(None)

    def _put(self, item: Event | None) -> None:
        try:
            self.queue.put_nowait(item)
        except asyncio.QueueFull:
            self.is_slow = True


class EventLog:
    """Reads both places. One tail for all watchers, and none while nobody watches."""

    def __init__(self, parts: FrontParts) -> None:
        """Take the front's parts."""
        self._parts = parts
        self._watchers: set[Watcher] = set()
        self._position = BEGIN
        """The last entry of the stream that was read."""
        self._tail: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """The tail knows where it stands, or that Redis is away."""
        parts.cache.subscribe(self._take_changes)

    async def recent(self, wanted: Filter) -> list[Event]:
        """Return all events that are kept and wanted, oldest first; those in Redis only while it answers."""
        found = {event.id: event for event in self._stored() if wanted.takes(event)}
        try:
            for event in await self._in_redis():
                if wanted.takes(event):
                    found[event.id] = event
        except TelemetryUnavailable as error:
            _log.info("only events in etcd are told", error=str(error))
        return sorted(found.values(), key=lambda event: (event.timestamp, event.id))

    async def join(self, watcher: Watcher) -> None:
        """Send a watcher what happens from now on."""
        self._watchers.add(watcher)
        if self._tail is None:
            self._settled.clear()
            self._tail = asyncio.create_task(self._follow(), name="event tail")
        await self._settled.wait()

    async def leave(self, watcher: Watcher) -> None:
        """Send a watcher nothing any more."""
        self._watchers.discard(watcher)
        if not self._watchers and self._tail is not None:
            tail, self._tail = self._tail, None
            await end_task(tail)

    def __len__(self) -> int:
        """Return how many watch."""
        return len(self._watchers)

    def _stored(self) -> list[Event]:
        known = self._parts.cache.all(EVENTS)
        return [stored.record for stored in known.values() if stored.record]

    async def _in_redis(self) -> list[Event]:
        with answers():
            entries = await configured(self._parts.redis).xrange(STREAM)
        return self._decoded(entries)

    def _take_changes(self, changes: Sequence[Change]) -> None:
        self._send_all(c.after.record for c in changes if c.table is EVENTS and c.after.record)

    def _send_all(self, events: Iterable[Event]) -> None:
        if not self._watchers:
            return
        for event in events:
            for watcher in self._watchers:
                watcher.offer(event)

    async def _follow(self) -> None:
        self._position = await self._newest()
        self._settled.set()
        while True:
            try:
                while await self._read_on():
                    pass
            except TelemetryUnavailable:
                pass  # what comes meanwhile goes to etcd, and what is in Redis is read when it is back
            await asyncio.sleep(POLL_SECONDS)

    async def _newest(self) -> str:
        """Return where the stream ends; its begin when that is not known, for ids tell what is new."""
        try:
            with answers():
                last = await configured(self._parts.redis).xrevrange(STREAM, count=1)
        except TelemetryUnavailable:
            return BEGIN
        return _entry_id(last[0]) if last else BEGIN

    async def _read_on(self) -> bool:
        """Read a page; return whether there may be another one at once."""
        with answers():
            async with configured(self._parts.redis).pipeline(transaction=True) as pipe:
                pipe.xrange(STREAM, min=f"({self._position}", count=PAGE)
                pipe.xrange(STREAM, count=1)
                pipe.xrevrange(STREAM, count=1)
                page, first, last = await pipe.execute()
        if self._lost_touch(first, last):
            self._position = BEGIN
            for watcher in self._watchers:
                watcher.tell_of_gap()
            return True
        self._send_all(self._decoded(page))
        if page:
            self._position = _entry_id(page[-1])
        return len(page) == PAGE

    def _lost_touch(self, first: Sequence[object], last: Sequence[object]) -> bool:
        """Whether the entry read last is not in the stream any more: it was trimmed, or this is another stream."""
        if self._position == BEGIN:
            return False
        if not first or not last:
            return True
        mine = _order(self._position)
        return _order(_entry_id(first[0])) > mine or _order(_entry_id(last[0])) < mine

    def _decoded(self, entries: Any) -> list[Event]:
        """Return the events of some entries; what is no event is left out and counted."""
        found = []
        for _, data in entries or ():
            try:
                found.append(Event.from_json(data[FIELD.encode()]))
            except (ValidationError, KeyError, TypeError):
                self._parts.metrics.dropped.labels("undecodable_event").inc()
        return found


def _entry_id(entry: object) -> str:
    identifier = entry[0]  # type: ignore[index]
    return identifier.decode() if isinstance(identifier, bytes) else str(identifier)


def _order(entry_id: str) -> tuple[int, int]:
    ms, _, count = entry_id.partition("-")
    return int(ms), int(count or 0)
