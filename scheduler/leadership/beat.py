"""The scheduler class of `celery -A tasks beat`: any number of beats, one of which sends.

It is Celery's frame and none of its schedule: no entries, no heap, no file. The frame
sleeps uninterruptibly between ticks, so waiting happens inside `tick`; it calls `close` from a
signal handler in the midst of a tick, and then again; it builds the class once more, lazily,
for its banner.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

from celery.beat import Scheduler

from beat_schedule import SCHEDULE, Periodic
from scheduler.domain.errors import StoreUnavailable, WrongCluster
from scheduler.leadership.candidate import BeatParts, Candidate
from scheduler.leadership.election import Leadership
from scheduler.leadership.grid import Grid
from scheduler.queues.messages import CycleMessage
from scheduler.queues.publish import Publisher, PublishRefused
from scheduler.queues.seldom import Seldom
from scheduler.settings import Settings, load

TICK_SECONDS = 1.0
"""A follower must come back from `tick` this often, or `celery inspect ping` takes it for dead."""
_RETRY_SECONDS = 0.5
_BACKLOG_CYCLES = 2
_USUAL_NODES = 200
"""Of one shard; see docs on scaling. More only makes the backlog check a little stricter."""

_log = logging.getLogger(__name__)


class ElectedScheduler(Scheduler):
    """Sends the current slot of each loop to all shards, while elected. A subclass brings `open_parts`."""

    async def open_parts(self, settings: Settings) -> BeatParts:
        """Connect to etcd; called in another thread. Raises StoreUnavailable (and is called again), WrongCluster."""
        raise NotImplementedError

    def setup_schedule(self) -> None:
        """Begin to stand for election; not called for the banner."""
        settings = load()
        self.counts: Counter[str] = Counter()
        """Messages sent, and skipped because their queue is full."""
        self._grids = {p.loop: _grid(p, settings) for p in SCHEDULE}
        self._backlog_limit = backlog_limit(settings)
        self._seldom = Seldom(_log)
        self._publisher = Publisher(self.app)
        self._term = 0
        self._sent: dict[str, int] = {}
        self._candidate: Candidate | None = Candidate(self.open_parts, settings)
        self._candidate.start()

    def tick(self, *_args: Any, **_kwargs: Any) -> float:
        """Send what is due, then wait for the next slot or a change of leadership, a second at most."""
        candidate = self._candidate
        if candidate is None:
            return TICK_SECONDS
        if candidate.refused:
            # Celery takes a SystemExit for a planned stop, with exit code 0.
            raise WrongCluster(f"beat cannot run: {candidate.refused}")
        candidate.wait(self._act(candidate))
        return 0.0

    def close(self) -> None:
        """Resign, so that another beat takes over at once. Idempotent, and safe in a signal handler."""
        candidate, self._candidate = getattr(self, "_candidate", None), None
        if candidate:
            candidate.close()
        super().close()

    def now(self) -> float:
        """Return Unix seconds, by which all beats agree on the slot."""
        return time.time()

    @property
    def info(self) -> str:
        """For the banner."""
        return "\n".join(f"    . cycle -> {p.loop}, all shards, every {p.period}" for p in SCHEDULE)

    def _act(self, candidate: Candidate) -> float:
        """Do what is due; return how long to wait."""
        lead = candidate.leadership()
        if lead is None:
            return TICK_SECONDS
        try:
            self._begin_term(candidate, lead)
        except StoreUnavailable as error:
            # Without them, a slot that was sent already would be sent again.
            self._seldom.warning("nothing is sent before the last slots are known: %s", error)
            return _RETRY_SECONDS
        for periodic in SCHEDULE:
            if not self._send_due(candidate, lead, periodic):
                return _RETRY_SECONDS
        now = self.now()
        return min(TICK_SECONDS, *(grid.begin(grid.slot(now) + 1) - now for grid in self._grids.values()))

    def _begin_term(self, candidate: Candidate, lead: Leadership) -> None:
        """At the start of a term, learn which of the current slots were sent already. Older ones are never sent."""
        if lead.term == self._term:
            return
        records = candidate.last_slots(list(self._grids))
        now = self.now()
        # The predecessor's clock may have been a little ahead of ours.
        self._sent = {loop: r.slot for loop, r in records.items() if 0 <= r.slot - self._grids[loop].slot(now) <= 1}
        self._term = lead.term

    def _send_due(self, candidate: Candidate, lead: Leadership, periodic: Periodic) -> bool:
        """Send the current slot of a loop if it was not sent; return whether all is well."""
        slot = self._grids[periodic.loop].slot(self.now())
        sent = self._sent.get(periodic.loop, slot - 1)
        if slot < sent - 1:
            # Cycles of one term must have growing slots; with a new term they may begin anywhere.
            _log.warning("the clock went back; standing for a new term")
            candidate.resign()
            return False
        if slot <= sent:
            return True
        if not self._publish(candidate, lead, periodic.loop, slot):
            return False
        self._sent[periodic.loop] = slot
        candidate.record(lead, periodic.loop, slot)
        return True

    def _publish(self, candidate: Candidate, lead: Leadership, loop: str, slot: int) -> bool:
        shards = candidate.shards()
        if shards is None:
            self._seldom.warning("there is no shard map yet")
            return False
        try:
            messages = self._cycles(loop, slot, lead.term, shards.generation, self._open_shards(shards.count))
            self._publisher.send(messages, entitled=lead.valid)
        except PublishRefused:
            _log.warning("leadership ended before slot %d of %s was sent", slot, loop)
            return False
        except Exception as error:  # noqa: BLE001 - whatever the broker does, beat goes on and tries again
            self.counts["failed"] += 1
            self._seldom.warning("slot %d of %s is not sent, the broker does not take it: %r", slot, loop, error)
            return False
        self.counts["sent"] += len(messages)
        return True

    def _open_shards(self, count: int) -> list[int]:
        """Return the shards whose queue is not full: where nobody consumes, messages must not pile up."""
        lengths = self._publisher.backlog(range(count))
        full = [shard for shard, length in enumerate(lengths) if length > self._backlog_limit]
        if full:
            self.counts["skipped"] += len(full)
            self._seldom.warning("nothing is sent to shards %s: more than %d messages wait", full, self._backlog_limit)
        return [shard for shard in range(count) if shard not in full]

    def _cycles(self, loop: str, slot: int, term: int, generation: int, shards: list[int]) -> list[CycleMessage]:
        grid = self._grids[loop]
        due, expires = grid.begin(slot), grid.begin(slot + 1)
        return [
            CycleMessage.model_validate(
                {"loop": loop, "shard": shard, "slot": slot, "term": term, "generation": generation}
                | {"due": due, "expires": expires}
            )
            for shard in shards
        ]


def backlog_limit(settings: Settings) -> int:
    """Return how many messages may wait in a queue: what two cycles of all loops make of a shard of usual size."""
    chunks = -(-_USUAL_NODES // settings.chunk_nodes) + 1
    return _BACKLOG_CYCLES * len(SCHEDULE) * (1 + chunks)


def _grid(periodic: Periodic, settings: Settings) -> Grid:
    period: float = getattr(settings, periodic.period)
    return Grid(period, periodic.offset * period)
