"""A lease counts as lost before etcd could have ended it. With a clock of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.lease import Lease
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.waiting import eventually


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        """Start anywhere."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


@pytest.fixture
async def etcd() -> AsyncIterator[MemoryEtcd]:
    """An etcd in memory."""
    etcd = MemoryEtcd()
    yield etcd
    await etcd.close()


async def test_a_lease_is_invalid_before_it_is_granted(etcd: MemoryEtcd) -> None:
    """Without an id there is nothing to trust, and it can still be started."""
    lease = Lease(etcd, 5)
    assert not lease.valid()
    await lease.start()
    assert lease.valid()
    await lease.close()
    assert not lease.valid()


async def test_scenario_B4_after_a_pause_beyond_the_deadline_it_is_lost_at_the_first_look(etcd: MemoryEtcd) -> None:
    """The process slept for 60 s: valid() is false at once, before any answer of etcd, and for good."""
    clock = Clock()
    lease = Lease(etcd, 5, clock=clock)
    await lease.start()
    clock.now += 4.9
    assert lease.valid()
    assert lease.remaining_seconds() == pytest.approx(0.1)
    clock.now += 0.1
    assert not lease.valid()
    clock.now -= 3
    assert not lease.valid(), "what was lost once stays lost"
    assert lease.remaining_seconds() == 0
    await lease.close()


async def test_the_deadline_counts_from_when_the_request_was_sent(etcd: MemoryEtcd) -> None:
    """The grant took 3 of 5 seconds: 2 are left."""
    clock = Clock()

    async def slowly() -> None:
        clock.now += 3

    etcd.pause = slowly
    lease = Lease(etcd, 5, clock=clock)
    await lease.start()
    assert lease.remaining_seconds() == pytest.approx(2)
    await lease.close()


async def test_a_renewal_moves_the_deadline_to_when_it_was_sent(etcd: MemoryEtcd) -> None:
    """Renewed after 4 s with an answer that took 1 s... the time counts from the sending."""
    clock = Clock()
    lease = Lease(etcd, 5, clock=clock)
    await lease.start()
    clock.now += 4

    async def slowly() -> None:
        clock.now += 0.5

    etcd.pause = slowly
    await lease._renew()
    assert lease.remaining_seconds() == pytest.approx(4.5)
    await lease.close()


async def test_scenario_K2_a_renewal_whose_answer_comes_too_late_does_not_revive_it(etcd: MemoryEtcd) -> None:
    """The answer says 5 s, but it arrives after the old deadline: the lease was lost in between, and stays so."""
    clock = Clock()
    lease = Lease(etcd, 5, clock=clock)
    await lease.start()
    clock.now += 4

    async def slowly() -> None:
        clock.now += 2

    etcd.pause = slowly
    await lease._renew()
    assert not lease.valid()
    await lease.close()


async def test_scenario_K2_no_time_left_in_an_answer_is_lost_at_once(etcd: MemoryEtcd) -> None:
    """Etcd no longer knows the lease: lost, although the local deadline lies ahead."""
    lease = Lease(etcd, 5)
    await lease.start()
    etcd.expire(lease.id)
    await lease._renew()
    assert lease.lost.is_set()
    assert not lease.valid()
    await lease.close()


async def test_a_renewal_that_fails_is_tried_again_until_the_deadline(etcd: MemoryEtcd) -> None:
    """One lost answer is no loss; the background task says nothing is lost while it can renew."""
    lease = Lease(etcd, 2)
    await lease.start()
    etcd.mishap = lambda call: Mishap.UNAVAILABLE if call == "keepalive" else None
    calls = etcd.calls
    await eventually(lambda: etcd.calls >= calls + 2, 5)
    assert lease.valid()
    etcd.mishap = lambda _call: None
    calls = etcd.calls
    await eventually(lambda: etcd.calls >= calls + 2, 5)
    assert lease.valid()
    etcd.mishap = lambda call: Mishap.UNAVAILABLE if call == "keepalive" else None
    async with asyncio.timeout(5):
        await lease.lost.wait()
    assert not lease.valid()
    await lease.close()


async def test_revoke_ends_it_here_even_when_etcd_cannot_be_told(etcd: MemoryEtcd) -> None:
    """The holder is out at once; the error says that etcd still has it."""
    lease = Lease(etcd, 5)
    await lease.start()
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    with pytest.raises(StoreUnavailable):
        await lease.revoke()
    assert not lease.valid()
    assert lease.lost.is_set()
