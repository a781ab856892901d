"""Working through a list with bounded concurrency."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.loops.each import each


async def test_F47_all_is_done_and_never_more_than_so_many_at_a_time() -> None:
    """Twenty items, three at once."""
    busy, most, done = 0, 0, []

    async def work(item: int) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        busy -= 1
        done.append(item)

    await each(range(20), 3, work)
    assert sorted(done) == list(range(20))
    assert most == 3
    await each([], 3, work)


async def test_F47_an_error_rises_as_itself_and_cancels_the_rest() -> None:
    """Not wrapped in a group, so that callers can tell a fence from an outage."""
    started = []

    async def work(item: int) -> None:
        started.append(item)
        if item == 1:
            raise KeyError(item)
        await asyncio.sleep(60)

    with pytest.raises(KeyError):
        await each(range(10), 2, work)
    assert started == [0, 1]
