"""The election over an etcd in memory: one leader, or none."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator

import pytest

from scheduler.domain.errors import Fenced
from scheduler.domain.shard import SlotRecord
from scheduler.leadership.election import Election, new_instance_id
from scheduler.store.keys import LEADER_PREFIX, SLOTS
from scheduler.store.kv import Delete
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write
from tests.support.waiting import eventually


class Field:
    """Candidates for one etcd."""

    def __init__(self) -> None:
        """Start without candidates."""
        self.etcd = MemoryEtcd()
        self.candidates: list[Election] = []

    def join(self, lease_seconds: int = 1) -> Election:
        """Add a candidate."""
        election = Election(self.etcd, instance_id=f"beat-{len(self.candidates)}", lease_seconds=lease_seconds)
        self.candidates.append(election)
        election.start()
        return election

    def leaders(self) -> list[Election]:
        """Return who thinks it leads."""
        return [c for c in self.candidates if c.leadership()]


@pytest.fixture
async def field() -> AsyncIterator[Field]:
    """A field that is cleared in the end."""
    made = Field()
    yield made
    made.etcd.mishap = lambda _call: None
    for election in made.candidates:
        await election.close()
    await made.etcd.close()


async def test_instance_ids_are_the_host_and_eight_hex_digits() -> None:
    """New at each start."""
    first, second = new_instance_id(), new_instance_id()
    assert re.fullmatch(r".+-[0-9a-f]{8}", first)
    assert first != second


async def test_exactly_one_of_many_leads(field: Field) -> None:
    """And its key says who it is, under its lease, with the term as create revision."""
    for _ in range(5):
        field.join()
    await eventually(lambda: len(field.leaders()) == 1)
    leader = field.leaders()[0]
    held = leader.leadership()
    assert held
    keys, _ = await field.etcd.scan(LEADER_PREFIX)
    mine = next(kv for kv in keys if kv.key == held.key)
    assert mine.value.decode() == leader.instance_id
    assert mine.key == f"{LEADER_PREFIX}{mine.lease:x}"
    assert held.term == mine.create_revision == min(kv.create_revision for kv in keys)


async def test_a_planned_stop_hands_over_at_once(field: Field) -> None:
    """The lease is given back, not left to run out; the next term is greater."""
    first = field.join(lease_seconds=60)
    await eventually(first.leadership)
    term = first.leadership().term  # type: ignore[union-attr]
    second = field.join(lease_seconds=60)
    async with asyncio.timeout(5):
        await first.close()
        assert first.leadership() is None
        await eventually(second.leadership, 5)
    assert second.leadership().term > term  # type: ignore[union-attr]


async def test_K2_who_cannot_renew_stops_leading_before_the_lease_ends(field: Field) -> None:
    """Nobody leads while etcd is away for longer than the lease; afterwards it is a new term."""
    election = field.join()
    await eventually(election.leadership)
    held = election.leadership()
    assert held
    field.etcd.mishap = lambda call: Mishap.UNAVAILABLE if call == "keepalive" else None
    await eventually(lambda: election.leadership() is None)
    assert not held.valid()
    field.etcd.mishap = lambda _call: None
    await eventually(election.leadership)
    assert election.leadership().term > held.term  # type: ignore[union-attr]
    assert not held.valid()


async def test_a_short_outage_of_etcd_does_not_end_the_term(field: Field) -> None:
    """While the lease surely lives, leading goes on."""
    election = field.join(lease_seconds=60)
    await eventually(election.leadership)
    held = election.leadership()
    field.etcd.mishap = lambda call: Mishap.UNAVAILABLE if call in ("scan", "watch") else None
    follower = field.join(lease_seconds=60)
    await asyncio.sleep(0.3)
    assert election.leadership() == held
    field.etcd.mishap = lambda _call: None
    await asyncio.sleep(0.3)
    assert election.leadership() == held
    assert follower.leadership() is None


async def test_B3_a_leader_whose_key_is_deleted_by_hand_steps_down(field: Field) -> None:
    """Whoever leads next has a new term, and the old term's transactions are refused."""
    first, second = field.join(), field.join()
    await eventually(first.leadership)
    held = first.leadership()
    assert held
    await field.etcd.txn([], [Delete(held.key)])
    await eventually(second.leadership)
    await eventually(lambda: len(field.leaders()) == 1)
    assert second.leadership().term > held.term  # type: ignore[union-attr]

    def decide(_view: View) -> Write[None]:
        write: Write[None] = Write(None)
        write.put(SLOTS, "reconcile", SlotRecord(loop="reconcile", slot=1, term=held.term))
        return write

    with pytest.raises(Fenced):
        await Store(field.etcd).transact([Ref(SLOTS, "reconcile")], decide, guards=[held.guard])


@pytest.mark.parametrize("call", ["grant", "txn", "scan"])
@pytest.mark.parametrize("how", [StopIteration, ValueError, KeyError, OSError])
async def test_B1_any_error_while_acquiring_means_not_leading(
    field: Field, call: str, how: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail closed, keep standing, lead once all is well."""

    async def fail(*_args: object, **_kwargs: object) -> None:
        raise how("no")

    with monkeypatch.context() as broken:
        broken.setattr(field.etcd, call, fail)
        election = field.join()
        await asyncio.sleep(0.15)
        assert election.leadership() is None
    await eventually(election.leadership)


async def test_B1_a_lost_answer_while_acquiring_leaves_no_key_behind(field: Field) -> None:
    """The put may have been applied: its lease is given back before the next attempt."""
    lost = iter([Mishap.ANSWER_LOST])
    field.etcd.mishap = lambda call: next(lost, None) if call == "txn" else None
    election = field.join(lease_seconds=60)
    await eventually(election.leadership, 5)
    keys, _ = await field.etcd.scan(LEADER_PREFIX)
    assert len(keys) == 1


async def test_resigning_starts_a_new_term(field: Field) -> None:
    """Alone in the field, the same candidate leads again under a greater number."""
    election = field.join()
    await eventually(election.leadership)
    held = election.leadership()
    assert held
    election.resign()
    assert election.leadership() is None
    await eventually(election.leadership)
    assert election.leadership().term > held.term  # type: ignore[union-attr]


async def test_never_two_leaders_while_leases_run_out(field: Field) -> None:
    """Etcd goes away and comes back, leases run out or are saved in the last moment: at no moment do two lead."""
    chance = random.Random(7)  # noqa: S311 - reproducible
    for _ in range(3):
        field.join()
    terms: set[int] = set()
    for turn in range(280):
        share = {"keepalive": 1.0 if 30 <= turn < 200 else 0.0}
        field.etcd.mishap = lambda call, share=share: (  # type: ignore[misc]
            Mishap.UNAVAILABLE if chance.random() < share.get(call, 0.2) else None
        )
        await asyncio.sleep(0.008)
        leading = [held for c in field.candidates if (held := c.leadership())]
        assert len(leading) <= 1
        terms |= {held.term for held in leading}
    assert len(terms) >= 2
