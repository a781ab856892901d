"""Working through a list with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

T = TypeVar("T")


async def each(items: Collection[T], parallel: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Do the work for every item, so many at a time. The first error cancels the rest and rises, as itself."""
    waiting = iter(items)

    async def take() -> None:
        for item in waiting:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(parallel, len(items))):
                group.create_task(take())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
