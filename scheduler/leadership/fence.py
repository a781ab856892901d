"""The fence of a cycle: its writes succeed only while no newer cycle, term or shard map has begun to write.

Nothing here rests on clocks or on Redis. A worker that slept, a beat that was deposed, a
map that moved on: the transactions of their cycles compare a fence that has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from scheduler.domain.errors import Fenced
from scheduler.domain.shard import Cycle, FenceRecord, ShardMap
from scheduler.leadership.shards import MAP_KEY
from scheduler.store.keys import FENCES, SHARD_MAP, SHARD_MAP_ID
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write


class CycleFence:
    """Takes `/shards/{shard}/{loop}` for a cycle at its first write; a cycle that writes nothing never touches it."""

    def __init__(self, store: Store, cycle: Cycle) -> None:
        """Take the store and the cycle whose writes to guard."""
        self._store = store
        self._cycle = cycle
        self._fence = Ref(FENCES, f"{cycle.shard}/{cycle.loop}")
        self._map = Ref(SHARD_MAP, SHARD_MAP_ID)
        self._lock = asyncio.Lock()
        self._guards: tuple[Guard, ...] = ()

    async def guards(self) -> Sequence[Guard]:
        """Return what each write of the cycle must compare.

        Raises Fenced when a newer cycle has written or the shard map has moved on,
        StoreUnavailable when etcd does not answer.
        """
        async with self._lock:
            if not self._guards:
                self._guards = await self._take()
            return self._guards

    async def _take(self) -> tuple[Guard, ...]:
        refs: list[Ref[Any]] = [self._fence, self._map]
        await self._store.transact(refs, self._decide)
        # Another chunk of this cycle may have put the fence, so its revision is read in any case.
        view = await self._store.read(refs)
        fence = view.get(FENCES, self._fence.id)
        if self._check(fence.record, view.get(SHARD_MAP, SHARD_MAP_ID).record):
            raise Fenced(f"the fence {self._fence.key} was taken away")
        return (
            Guard(self._fence.key, fence.mod_revision),
            Guard(MAP_KEY, view.get(SHARD_MAP, SHARD_MAP_ID).mod_revision),
        )

    def _decide(self, view: View) -> Write[None]:
        write: Write[None] = Write(None)
        fence = view.get(FENCES, self._fence.id).record
        if self._check(fence, view.get(SHARD_MAP, SHARD_MAP_ID).record):
            write.put(FENCES, self._fence.id, FenceRecord(term=self._cycle.term, slot=self._cycle.slot))
        return write

    def _check(self, fence: FenceRecord | None, shards: ShardMap | None) -> bool:
        """Return whether the fence is still to be taken. Raises Fenced when it may not be."""
        if shards is None or shards.generation != self._cycle.generation:
            raise Fenced(f"the shard map is not of generation {self._cycle.generation} any more")
        ours = (self._cycle.term, self._cycle.slot)
        theirs = (fence.term, fence.slot) if fence else (-1, -1)
        if theirs > ours:
            raise Fenced(f"{self._fence.key}: term {theirs[0]} slot {theirs[1]} has begun to write")
        return theirs < ours
