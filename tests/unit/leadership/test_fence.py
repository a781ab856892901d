"""The fence: what an older cycle writes after a newer one has begun is refused."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from scheduler.domain.errors import Fenced, StoreUnavailable
from scheduler.domain.shard import Cycle, FenceRecord, ShardMap, SlotRecord
from scheduler.leadership.fence import CycleFence
from scheduler.store.keys import FENCES, SHARD_MAP, SHARD_MAP_ID, SLOTS
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

FENCE = "2/reconcile"


def a_cycle(term: int, slot: int, generation: int = 1) -> Cycle:
    """A cycle of reconcile on shard 2."""
    return Cycle(term, slot, "reconcile", 2, generation)


@pytest.fixture
async def etcd() -> MemoryEtcd:
    """An etcd with a shard map of generation 1."""
    made = MemoryEtcd()
    await set_map(made, 1)
    return made


async def set_map(etcd: MemoryEtcd, generation: int) -> None:
    """Change the shard map."""
    await etcd.txn([], [Put(SHARD_MAP.key(SHARD_MAP_ID), ShardMap(generation=generation, count=4).to_json())])


async def write_under(store: Store, fence: CycleFence) -> None:
    """Do what a loop does: write a record, guarded by the cycle."""

    def decide(_view: View) -> Write[None]:
        write: Write[None] = Write(None)
        write.put(SLOTS, "reconcile", SlotRecord(loop="reconcile", slot=next(_numbers), term=0))
        return write

    await store.transact([Ref(SLOTS, "reconcile")], decide, guards=await fence.guards())


_numbers = itertools.count()


async def test_an_idle_cycle_never_touches_the_fence(etcd: MemoryEtcd) -> None:
    """No read, no write: the fence is taken with the first write."""
    before = etcd.calls
    CycleFence(Store(etcd), a_cycle(5, 100))
    assert etcd.calls == before


async def test_the_first_write_takes_the_fence_and_later_ones_do_not_ask_again(etcd: MemoryEtcd) -> None:
    """One fence write a cycle, however many writes follow, at once or one by one."""
    store = Store(etcd)
    fence = CycleFence(store, a_cycle(5, 100))
    guards = await asyncio.gather(*(fence.guards() for _ in range(20)))
    assert len({tuple(g) for g in guards}) == 1
    assert (await store.get(FENCES, FENCE)).record == FenceRecord(term=5, slot=100)
    assert store.writes["/shards/"] == 1
    await write_under(store, fence)


async def test_chunks_of_one_cycle_share_the_fence(etcd: MemoryEtcd) -> None:
    """Whoever is first puts it; the others go on with the same revision."""
    stores = [Store(etcd) for _ in range(4)]
    fences = [CycleFence(store, a_cycle(5, 100)) for store in stores]
    guards = await asyncio.gather(*(fence.guards() for fence in fences))
    assert len({tuple(g) for g in guards}) == 1
    for store, fence in zip(stores, fences, strict=True):
        await write_under(store, fence)


@pytest.mark.parametrize(("term", "slot"), [(5, 101), (6, 100), (6, 3)])
async def test_E4_a_newer_cycle_fences_the_older_one_off(etcd: MemoryEtcd, term: int, slot: int) -> None:
    """The older one writes nothing more, neither with the guards it has nor with new ones."""
    store = Store(etcd)
    old, new = CycleFence(store, a_cycle(5, 100)), CycleFence(store, a_cycle(term, slot))
    await write_under(store, old)
    await write_under(store, new)
    with pytest.raises(Fenced):
        await write_under(store, old)
    with pytest.raises(Fenced):
        await CycleFence(store, a_cycle(5, 100)).guards()
    await write_under(store, new)


async def test_L8_a_deposed_beats_cycle_is_refused(etcd: MemoryEtcd) -> None:
    """Its term is smaller; a later slot does not help it."""
    store = Store(etcd)
    await write_under(store, CycleFence(store, a_cycle(9, 100)))
    with pytest.raises(Fenced):
        await CycleFence(store, a_cycle(5, 101)).guards()


async def test_a_cycle_cut_for_another_map_is_refused(etcd: MemoryEtcd) -> None:
    """Before its first write and after it."""
    store = Store(etcd)
    begun = CycleFence(store, a_cycle(5, 100))
    await write_under(store, begun)
    await set_map(etcd, 2)
    with pytest.raises(Fenced):
        await write_under(store, begun)
    with pytest.raises(Fenced):
        await CycleFence(store, a_cycle(5, 101)).guards()
    await write_under(store, CycleFence(store, a_cycle(5, 101, generation=2)))


async def test_fences_of_other_loops_and_shards_do_not_matter(etcd: MemoryEtcd) -> None:
    """Each loop and shard has its own."""
    store = Store(etcd)
    await CycleFence(store, Cycle(9, 100, "reconcile", 1, 1)).guards()
    await CycleFence(store, Cycle(9, 100, "detect_drift", 2, 1)).guards()
    await CycleFence(store, a_cycle(5, 7)).guards()


async def test_the_fence_survives_lost_answers(etcd: MemoryEtcd) -> None:
    """Whether the put was applied or not, the guards are right or there are none."""
    store = Store(etcd)
    mishaps = iter([Mishap.ANSWER_LOST])
    etcd.mishap = lambda call: next(mishaps, None) if call == "txn" else None
    await write_under(store, CycleFence(store, a_cycle(5, 100)))


async def test_without_etcd_there_are_no_guards(etcd: MemoryEtcd) -> None:
    """And the fence can be taken once it is back."""
    fence = CycleFence(Store(etcd), a_cycle(5, 100))
    etcd.mishap = lambda _call: Mishap.UNAVAILABLE
    with pytest.raises(StoreUnavailable):
        await fence.guards()
    etcd.mishap = lambda _call: None
    assert len(await fence.guards()) == 2


async def test_under_any_race_of_cycles_the_fence_only_grows(etcd: MemoryEtcd) -> None:
    """Twenty cycles at once: at every revision the fence is newer than before, and the newest holds it at the end."""
    cycles = [a_cycle(term, slot) for term in range(5) for slot in range(4)]

    async def take(cycle: Cycle) -> bool:
        try:
            await CycleFence(Store(etcd), cycle).guards()
        except Fenced:
            return False
        return True

    took = await asyncio.gather(*(take(cycle) for cycle in reversed(cycles)), *(take(cycle) for cycle in cycles))
    assert any(took)
    seen = [
        FenceRecord.from_json(event.value)
        for batch in etcd._history
        for event in batch.events
        if event.key == FENCES.key(FENCE) and event.value
    ]
    assert [(f.term, f.slot) for f in seen] == sorted({(f.term, f.slot) for f in seen})
    assert (seen[-1].term, seen[-1].slot) == (4, 3)
