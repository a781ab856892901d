"""`ListEvents` and `WatchEvents` of persys.control.v1."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from scheduler.domain.errors import InvalidInput
from scheduler.domain.event import Event, EventType
from scheduler.domain.ids import check_id
from scheduler.front import fields
from scheduler.front.errors import Overloaded, Stopping
from scheduler.front.event_log import TRIMMED, EventLog, Filter, Watcher
from scheduler.front.parts import FrontParts
from scheduler.pb import control_pb2 as pb

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000
MAX_WATCHERS = 100
OVERLAP = timedelta(seconds=10)
"""How far before `resume_from` a replay begins: events of other processes may have arrived after younger ones."""
_TYPES = {one.value.lower(): one.value for one in EventType}


class EventFeed:
    """The two methods."""

    def __init__(self, parts: FrontParts) -> None:
        """Take the front's parts."""
        self._log = EventLog(parts)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End all streams: the front stops."""
        self._stopping.set()

    async def ListEvents(self, request: pb.ListEventsRequest, _context: Any) -> pb.ListEventsResponse:  # noqa: N802 - the wire's name
        """Show the newest events, newest first."""
        limit = fields.number("limit", request.limit, 0, MAX_LIMIT) or DEFAULT_LIMIT
        found = await self._log.recent(_filter_of(request))
        return pb.ListEventsResponse(events=[_view(event) for event in reversed(found[-limit:])])

    async def WatchEvents(  # noqa: N802
        self, request: pb.WatchEventsRequest, _context: Any
    ) -> AsyncIterator[pb.SchedulerEventView]:
        """Replay what is kept, oldest first, then tell what happens; each event once."""
        wanted = _filter_of(request)
        fields.line("resume_from", request.resume_from, 64)
        if len(self._log) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} watchers are connected to this front; try again later")
        watcher = Watcher(wanted)
        try:
            # First the tail, then what is kept: so nothing falls in between, and ids keep it from coming twice.
            await self._log.join(watcher)
            for event in _from(await self._log.recent(wanted), await self._kept_of(request.resume_from)):
                watcher.mark(event)
                yield _view(event)
            async for told in self._live(watcher):
                yield told
        finally:
            await self._log.leave(watcher)

    async def _kept_of(self, resume_from: str) -> Event | None:
        if not resume_from:
            return None
        return next((event for event in await self._log.recent(Filter()) if event.id == resume_from), None)

    async def _live(self, watcher: Watcher) -> AsyncIterator[pb.SchedulerEventView]:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while True:
                if watcher.is_slow and watcher.queue.empty():
                    raise Overloaded("events came faster than they were read; watch again with resume_from")
                reading = asyncio.create_task(watcher.queue.get())
                try:
                    await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        raise Stopping
                    event = reading.result()
                finally:
                    reading.cancel()
                yield _view(event) if event else _gap()
        finally:
            stopping.cancel()


def _filter_of(request: pb.ListEventsRequest | pb.WatchEventsRequest) -> Filter:
    kind = fields.choice("type", request.type, _TYPES, blank="")
    for name in ("workload_id", "node_id"):
        if value := getattr(request, name):
            check_id(name, value)
    if isinstance(request, pb.ListEventsRequest) and request.limit < 0:
        raise InvalidInput("limit", f"{request.limit} must be 0 (the default, {DEFAULT_LIMIT}) to {MAX_LIMIT}")
    return Filter(kind, request.workload_id, request.node_id)


def _from(events: list[Event], last: Event | None) -> list[Event]:
    """Return what a watcher that has seen `last` may lack; everything when that one is not kept any more."""
    if last is None:
        return events
    return [event for event in events if event.timestamp >= last.timestamp - OVERLAP and event.id != last.id]


def _view(event: Event) -> pb.SchedulerEventView:
    view = pb.SchedulerEventView(
        id=event.id,
        type=event.type,
        workload_id=event.workload_id,
        node_id=event.node_id,
        reason=event.reason,
        details=event.details,
    )
    view.timestamp.FromDatetime(event.timestamp)
    return view


def _gap() -> pb.SchedulerEventView:
    return pb.SchedulerEventView(type=TRIMMED, reason="events may have been dropped before they could be sent here")
