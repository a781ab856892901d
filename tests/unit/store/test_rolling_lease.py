"""One lease for many records that are to live about as long."""

from __future__ import annotations

import pytest

from scheduler.domain.errors import StoreUnavailable
from scheduler.store.lease import RollingLease
from scheduler.store.memory import MemoryEtcd, Mishap


class Clock:
    """Monotonic seconds, set by hand."""

    def __init__(self) -> None:
        """Begin anywhere."""
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


async def test_F87_a_lease_is_shared_for_an_eighth_of_its_time_and_then_replaced() -> None:
    """So what is bound to it lives for the whole time given, whenever it was bound."""
    etcd, clock = MemoryEtcd(), Clock()
    leases = RollingLease(etcd, 800, 10, clock=clock)
    first = await leases.take()
    clock.now += 99
    assert await leases.take() == first
    assert await etcd.keepalive(first) == 900
    clock.now += 1
    second = await leases.take()
    assert second not in (0, first)
    await etcd.close()


async def test_F87_no_more_records_than_allowed_are_bound_to_one_lease() -> None:
    """Beyond that there is none until the next one is due."""
    etcd, clock = MemoryEtcd(), Clock()
    leases = RollingLease(etcd, 80, 2, clock=clock)
    assert all([await leases.take(), await leases.take()])
    assert await leases.take() == 0
    clock.now += 10
    assert await leases.take()
    await etcd.close()


async def test_F87_a_lease_that_etcd_has_lost_is_forgotten() -> None:
    """Forgetting an older one changes nothing; an etcd that does not answer is told."""
    etcd, clock = MemoryEtcd(), Clock()
    leases = RollingLease(etcd, 80, 9, clock=clock)
    first = await leases.take()
    leases.forget(first + 1)
    assert await leases.take() == first
    leases.forget(first)
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    with pytest.raises(StoreUnavailable):
        await leases.take()
    etcd.mishap = lambda _call: None
    assert await leases.take() not in (0, first)
    await etcd.close()
