"""The elected beat, tick by tick: real election over an etcd in memory, a broker that the test controls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from scheduler.domain.errors import StoreUnavailable, WrongCluster
from scheduler.domain.shard import ShardMap, SlotRecord
from scheduler.leadership.beat import ElectedScheduler, backlog_limit
from scheduler.leadership.candidate import Candidate
from scheduler.queues.app import make_app
from scheduler.queues.messages import CycleMessage, Message
from scheduler.queues.publish import PublishRefused
from scheduler.settings import Settings, load
from scheduler.store.cache import Cache
from scheduler.store.keys import SHARD_MAP, SHARD_MAP_ID, SLOTS
from scheduler.store.kv import Delete, Put
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.store import Store

NOON = 1_800_000_000.0


class Parts:
    """What a beat opens, over an etcd in memory."""

    def __init__(self) -> None:
        """Start with an empty etcd."""
        self.etcd = MemoryEtcd()
        self.store = Store(self.etcd)
        self.cache = Cache(self.etcd, [SHARD_MAP])
        self.closed = 0

    async def close(self) -> None:
        """Close them."""
        self.closed += 1
        await self.cache.close()
        await self.etcd.close()


class Broker:
    """Stands in for the Publisher."""

    def __init__(self) -> None:
        """Take everything."""
        self.batches: list[list[CycleMessage]] = []
        self.waiting: dict[int, int] = {}
        self.fails: Exception | None = None
        self.before_flush: Callable[[], None] = lambda: None

    def send(self, messages: Sequence[Message], *, entitled: Callable[[], bool]) -> None:
        """Take a batch if its sender is entitled in the last moment."""
        if self.fails:
            raise self.fails
        self.before_flush()
        if not entitled():
            raise PublishRefused
        self.batches.append([m for m in messages if isinstance(m, CycleMessage)])

    def backlog(self, shards: Sequence[int]) -> list[int]:
        """Tell how many messages wait."""
        return [self.waiting.get(shard, 0) for shard in shards]

    def slots(self, loop: str = "reconcile") -> list[int]:
        """Return the slots of a loop in the order in which they were sent."""
        return [batch[0].slot for batch in self.batches if batch and batch[0].loop == loop]


class Beat(ElectedScheduler):
    """A beat whose clock and broker the test holds."""

    time_is = NOON
    count = 3
    prepare: Callable[[Parts], Any] | None = None
    refuse: Exception | None = None
    parts: Parts
    broker: Broker

    @classmethod
    async def open_parts(cls, _settings: Settings) -> Parts:
        """Open an etcd that has a shard map."""
        if cls.refuse:
            raise cls.refuse
        parts = Parts()
        shards = ShardMap(generation=4, count=cls.count)
        await parts.etcd.txn([], [Put(SHARD_MAP.key(SHARD_MAP_ID), shards.to_json())])
        if cls.prepare:
            await cls.prepare(parts)
        await parts.cache.start()
        await parts.cache.ready(5)
        cls.parts = parts
        return parts

    def setup_schedule(self) -> None:
        """Put the broker in place."""
        super().setup_schedule()
        self._publisher = type(self).broker  # type: ignore[assignment]

    def now(self) -> float:
        """Tell the test's time."""
        return type(self).time_is

    @property
    def candidate(self) -> Candidate:
        """The asynchronous half."""
        assert self._candidate
        return self._candidate

    def act(self) -> float:
        """Do one tick without the wait; return how long it would have waited."""
        return self._act(self.candidate)

    def lead(self) -> None:
        """Wait until this beat leads."""
        wait_for(self.candidate.leadership)

    def run(self, coroutine: Any) -> Any:
        """Run something in the loop of the candidate."""
        return self.candidate._thread.call(coroutine, timeout_seconds=5)


def wait_for(condition: Callable[[], object]) -> None:
    """Wait, synchronously, until a condition holds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.005)


@pytest.fixture
def beat_class(monkeypatch: pytest.MonkeyPatch) -> type[Beat]:
    """A Beat class of the test's own."""
    monkeypatch.setenv("FLEETBEAT_BROKER_URL", "memory://")

    class Made(Beat):
        broker = Broker()

    return Made


@pytest.fixture
def beat(beat_class: type[Beat]) -> Iterator[Beat]:
    """A leading beat at noon, before its first slot."""
    made = beat_class(make_app(load()))
    try:
        made.lead()
        yield made
    finally:
        made.close()


def test_the_banner_starts_no_election(beat_class: type[Beat]) -> None:
    """Celery builds the class lazily first, only to print it."""
    lazy = beat_class(make_app(load()), lazy=True)
    assert "reconcile" in lazy.info
    lazy.close()
    assert lazy.tick() == 1.0


def test_all_shards_get_the_current_slot_in_one_batch(beat: Beat) -> None:
    """Slot, term, generation, and an expiry at the end of the slot."""
    beat.act()
    batch = next(b for b in beat.broker.batches if b[0].loop == "monitor_nodes")
    held = beat.candidate.leadership()
    assert held
    assert [m.shard for m in batch] == [0, 1, 2]
    for message in batch:
        assert message.slot == NOON / 5
        assert (message.term, message.generation) == (held.term, 4)
        assert (message.due, message.expires) == (NOON, NOON + 5)


def test_a_slot_is_sent_once_and_recorded(beat: Beat) -> None:
    """Ticks within a slot send nothing; the record follows the publication."""
    for _ in range(10):
        beat.act()
    assert beat.broker.slots() == [NOON // 5 - 1]
    store, loops = beat.parts.store, ("reconcile", "monitor_nodes", "monitor_workloads", "detect_drift")
    wait_for(lambda: all(beat.run(store.get(SLOTS, loop)).record for loop in loops))
    recorded = beat.run(store.get(SLOTS, "reconcile")).record
    assert recorded == SlotRecord(loop="reconcile", slot=NOON // 5 - 1, term=beat.candidate.leadership().term)  # type: ignore[union-attr]


def test_slots_follow_the_grid_whatever_the_ticks_do(beat: Beat) -> None:
    """No drift: late ticks do not move later slots, and missed slots are not sent afterwards."""
    for moment in (0.0, 4.9, 5.3, 9.8, 27.0, 27.1):
        type(beat).time_is = NOON + 1.25 + moment
        beat.act()
    first = NOON // 5
    assert beat.broker.slots() == [first, first + 1, first + 5]


def test_beat_sleeps_until_the_next_slot_but_never_longer_than_a_second(beat: Beat) -> None:
    """A longer silence looks like a dead beat to its probe."""
    type(beat).time_is = NOON + 4.75
    assert beat.act() == pytest.approx(0.25)
    type(beat).time_is = NOON + 1.5
    assert beat.act() == 1.0


def test_loops_of_one_period_do_not_begin_together(beat: Beat) -> None:
    """Phase offsets spread them over the period."""
    begins = {loop: grid.begin(1000) % grid.period_seconds for loop, grid in beat._grids.items()}
    assert begins["monitor_nodes"] != begins["reconcile"]


@pytest.mark.parametrize(("age", "expected"), [(-1, []), (0, []), (1, [0]), (1000, [0])])
def test_B5_after_a_takeover_due_cycles_are_sent_once_and_missed_ones_never(
    beat_class: type[Beat], age: int, expected: list[int]
) -> None:
    """What the predecessor recorded counts; older slots are coalesced into the current one."""
    slot = int(NOON // 5) - 1

    async def recorded(parts: Parts) -> None:
        record = SlotRecord(loop="reconcile", slot=slot - age, term=1)
        await parts.etcd.txn([], [Put(SLOTS.key("reconcile"), record.to_json())])

    beat_class.prepare = staticmethod(recorded)
    beat = beat_class(make_app(load()))
    beat.lead()
    for _ in range(3):
        beat.act()
    assert [s - slot for s in beat.broker.slots()] == expected
    beat.close()


def test_a_longer_period_than_before_is_no_obstacle(beat_class: type[Beat]) -> None:
    """With another period the slot numbers begin elsewhere, even below the recorded ones."""

    async def recorded(parts: Parts) -> None:
        record = SlotRecord(loop="reconcile", slot=10**12, term=1)
        await parts.etcd.txn([], [Put(SLOTS.key("reconcile"), record.to_json())])

    beat_class.prepare = staticmethod(recorded)
    beat = beat_class(make_app(load()))
    beat.lead()
    beat.act()
    assert beat.broker.slots() == [NOON // 5 - 1]
    beat.close()


def test_nothing_is_sent_before_the_last_slots_are_known(beat: Beat) -> None:
    """B1: an etcd that elects but does not answer reads is no licence to send."""
    beat.parts.etcd.mishap = lambda call: Mishap.UNAVAILABLE if call == "get_many" else None
    assert beat.act() < 1.0
    assert beat.broker.batches == []
    beat.parts.etcd.mishap = lambda _call: None
    beat.act()
    assert beat.broker.batches


def test_B4_a_batch_whose_term_ends_before_the_flush_does_not_leave(beat: Beat) -> None:
    """SIGSTOP in the middle of a fan-out: the last look before the flush finds the lease gone."""
    held = beat.candidate.leadership()
    assert held
    beat.broker.before_flush = held.lease._lose
    beat.act()
    assert beat.broker.batches == []


def test_B4_after_the_lease_nothing_is_published(beat: Beat) -> None:
    """A beat that wakes up looks at its lease first."""
    held = beat.candidate.leadership()
    assert held
    held.lease._deadline = 0.0
    beat.act()
    assert beat.broker.batches == []


def test_B3_a_record_refused_by_the_leader_key_ends_the_term(beat: Beat) -> None:
    """Somebody deleted the key: the next slot goes out under a new term, or not at all."""
    held = beat.candidate.leadership()
    assert held
    beat.run(beat.parts.etcd.txn([], [Delete(held.key)]))
    beat.act()
    wait_for(lambda: (now := beat.candidate.leadership()) and now.term > held.term)


def test_B8_a_failed_publication_is_tried_again_within_its_slot(beat: Beat, caplog: pytest.LogCaptureFixture) -> None:
    """The rest of the tick is given up, beat comes back soon, and the log is not flooded."""
    beat.broker.fails = ConnectionError("away")
    for _ in range(50):
        assert 0 < beat.act() <= 1
    assert len([r for r in caplog.records if "not sent" in r.getMessage()]) == 1
    beat.broker.fails = None
    beat.act()
    assert beat.broker.slots() == [NOON // 5 - 1]


def test_a_full_queue_is_skipped_and_counted(beat: Beat) -> None:
    """A shard without workers must not fill Redis; the others go on."""
    beat.broker.waiting = {1: backlog_limit(load()) + 1, 2: backlog_limit(load())}
    beat.act()
    assert all([m.shard for m in batch] == [0, 2] for batch in beat.broker.batches)
    assert beat.counts["skipped"] == len(beat.broker.batches)


def test_the_backlog_limit_is_two_cycles_of_everything() -> None:
    """More than what two healthy cycles leave in a queue, far less than a day without workers."""
    assert backlog_limit(Settings(chunk_nodes=50)) == 48
    assert backlog_limit(Settings(chunk_nodes=1000)) >= 2 * 4


def test_a_new_shard_map_counts_from_the_next_slot(beat: Beat) -> None:
    """The map is read before each slot."""
    beat.act()
    new = ShardMap(generation=5, count=4)
    beat.run(beat.parts.etcd.txn([], [Put(SHARD_MAP.key(SHARD_MAP_ID), new.to_json())]))
    wait_for(lambda: beat.candidate.shards() == new)
    beat.broker.batches.clear()
    type(beat).time_is = NOON + 6.25
    beat.act()
    assert {(m.generation, m.shard) for batch in beat.broker.batches for m in batch} == {(5, k) for k in range(4)}


def test_a_clock_that_goes_back_starts_a_new_term(beat: Beat) -> None:
    """Within a term slots must grow, or workers and fences refuse them: for an hour, after a step of an hour."""
    beat.act()
    held = beat.candidate.leadership()
    assert held
    type(beat).time_is = NOON - 3600
    beat.act()
    wait_for(lambda: (now := beat.candidate.leadership()) and now.term > held.term)
    beat.broker.batches.clear()
    beat.act()
    assert beat.broker.slots() == [(NOON - 3600) // 5 - 1]


def test_a_tiny_step_back_sends_nothing_twice(beat: Beat) -> None:
    """Clocks are slewed all the time."""
    type(beat).time_is = NOON + 1.2501
    beat.act()
    type(beat).time_is = NOON + 1.2499
    beat.act()
    type(beat).time_is = NOON + 1.2502
    beat.act()
    assert beat.broker.slots() == [NOON // 5]


def test_close_resigns_and_may_come_twice(beat: Beat) -> None:
    """From the signal handler and from the end of the service."""
    held = beat.candidate.leadership()
    assert held
    beat.close()
    beat.close()
    assert not held.valid()
    assert beat.parts.closed == 1
    assert beat.tick() == 1.0


def test_close_while_etcd_is_away_is_bounded(beat_class: type[Beat]) -> None:
    """A beat that never got to etcd stops as well."""
    beat_class.refuse = StoreUnavailable()
    beat = beat_class(make_app(load()))
    assert beat.act() == 1.0
    before = time.monotonic()
    beat.close()
    assert time.monotonic() - before < 5


def test_the_wrong_cluster_ends_beat(beat_class: type[Beat]) -> None:
    """It says why, and does not try again for ever."""
    beat_class.refuse = WrongCluster("etcd has layout version 9")
    beat = beat_class(make_app(load()))
    wait_for(lambda: beat.candidate.refused)
    with pytest.raises(WrongCluster, match="layout version 9"):
        beat.tick()
    beat.close()


def test_a_change_of_leadership_wakes_the_tick(beat: Beat) -> None:
    """Waiting happens inside the tick, and ends at once."""
    before = time.monotonic()
    beat.candidate.resign()
    beat.candidate.wait(30)
    assert time.monotonic() - before < 10
