"""Whatever happens in etcd, to the watch and to the history: the cache ends up as etcd is."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.domain.shard import FenceRecord
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import FENCES, SLOTS
from scheduler.store.kv import Delete, Operation, Put
from scheduler.store.memory import MemoryEtcd, Mishap
from tests.support.records import fence
from tests.support.waiting import eventually

IDS = st.sampled_from(["0/a", "0/b", "1/a", "1/b"])
WRITES = st.lists(
    st.one_of(
        st.builds(lambda i, n: Put(FENCES.key(i), fence(n).to_json()), IDS, st.integers(0, 9)),
        st.builds(lambda i: Delete(FENCES.key(i)), IDS),
        st.just(Put("/persys/scheduler/elsewhere", b"x")),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda operation: operation.key,
)
STEPS = st.lists(st.one_of(WRITES, st.sampled_from(["cut", "mend", "compact", "breathe"])), max_size=30)


@settings(max_examples=100, deadline=None)
@given(steps=STEPS)
def test_scenario_E1_E2_a_cache_becomes_what_etcd_is(steps: list[list[Operation] | str]) -> None:
    """Changes, outages and compactions in any order: records, revisions and what listeners were told all agree."""

    async def scenario() -> None:
        etcd = MemoryEtcd()
        cache = Cache(etcd, [FENCES, SLOTS])
        told: dict[str, FenceRecord | None] = {}

        def listen(changes: list[Change]) -> None:
            for change in changes:
                assert (change.before.record if change.before else None) == told.get(change.id)
                told[change.id] = change.after.record

        cache.subscribe(listen)  # type: ignore[arg-type]
        await cache.start()
        for step in steps:
            await take(etcd, step)
        etcd.mishap = lambda _call: None
        last = (await etcd.txn((), [Put(FENCES.key("9/last"), fence(1).to_json())])).revision
        await cache.wait_revision(last, 10)
        truth = {kv.key: (kv.value, kv.mod_revision) for kv in (await etcd.scan(FENCES.prefix))[0]}
        held = {FENCES.key(i): (v.record.to_json(), v.mod_revision) for i, v in cache.all(FENCES).items() if v.record}
        assert held == truth
        assert {FENCES.key(i) for i, record in told.items() if record} == set(truth)
        assert cache.failures == 0
        await eventually(lambda: cache.freshness().synced)
        await cache.close()
        await etcd.close()

    asyncio.run(scenario())


async def take(etcd: MemoryEtcd, step: list[Operation] | str) -> None:
    """Do one step."""
    if step == "cut":
        etcd.mishap = lambda call: Mishap.UNAVAILABLE if call in {"watch", "scan"} else None
    elif step == "mend":
        etcd.mishap = lambda _call: None
    elif step == "compact":
        etcd.compact(etcd.revision)
    elif step == "breathe":
        for _ in range(5):
            await asyncio.sleep(0)
    elif isinstance(step, list):
        await etcd.txn((), step)
