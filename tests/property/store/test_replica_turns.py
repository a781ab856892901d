"""Scaling, applying, deleting and writing copies at every turn of each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.convergence.replicas import changes
from scheduler.domain.errors import Conflict, NotFound, Refused
from scheduler.domain.replicas import number_of
from scheduler.domain.workload import Desired, WorkloadSpec
from scheduler.store.keys import SPECS
from scheduler.store.memory import MemoryEtcd
from scheduler.store.replicas import scale, write_copies
from scheduler.store.store import Store
from scheduler.store.workloads import apply_spec, finalize_delete, mark_deleted, set_desired
from tests.support.placement import records, spec
from tests.support.turns import Turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MOST = 6
IDS = [f"web.{n}" for n in range(2, MOST + 1)]
TOLERATED = (Refused, NotFound, Conflict)

acts = st.lists(
    st.tuples(
        st.sampled_from(["scale", "scale", "apply", "stop", "delete", "write", "write", "finalise", "take"]),
        st.integers(1, MOST),
    ),
    min_size=3,
    max_size=6,
)


def act_of(name: str, number: int, store: Store) -> Coroutine[Any, Any, Any]:
    """Return what one of the actors does."""
    found: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "scale": lambda: scale(store, "web", number, now=NOW),
        "apply": lambda: apply_spec(store, spec(replicas=number, image=f"v{number}"), now=NOW),
        "stop": lambda: set_desired(store, "web", Desired.STOPPED, now=NOW),
        "delete": lambda: mark_deleted(store, "web", now=NOW),
        "write": lambda: write_copies(store, "web", IDS[: number + 1], now=NOW),
        "finalise": lambda: finalise(store),
        "take": lambda: apply_spec(store, spec(f"web.{max(2, number)}"), now=NOW),
    }
    return found[name]()


async def finalise(store: Store) -> None:
    """Remove the records of what is to be deleted, as the loop does once an agent has confirmed."""
    for identifier in (*IDS, "web"):
        if identifier == "web":
            await write_copies(store, "web", IDS, now=NOW)
        await finalize_delete(store, identifier, tombstone=False, now=NOW)


async def play(moves: list[tuple[str, int]], choose: Callable[[int], int]) -> None:
    """Run all acts at once, then let a loop go on until nothing is left to do; check the end and every revision."""
    etcd = MemoryEtcd()
    await apply_spec(Store(etcd), spec(replicas=3), now=NOW)
    turns = Turns(choose)
    etcd.pause = turns.pause
    outcomes = await turns.run([act_of(name, number, Store(etcd)) for name, number in moves])
    etcd.pause = lambda: asyncio.sleep(0)
    for outcome in outcomes:
        assert not isinstance(outcome, Exception) or isinstance(outcome, TOLERATED), outcome
    for _ in range(4):
        await write_copies(Store(etcd), "web", IDS, now=NOW)
        await finalise(Store(etcd))
    await check_end(etcd)
    await check_history(etcd)
    await etcd.close()


async def check_end(etcd: MemoryEtcd) -> None:
    """Exactly the wanted copies are there, each as it is wanted."""
    found = await records(etcd, SPECS)
    parent = found.get("web")
    copies = {i: one for i, one in found.items() if one.replica_of}
    wanted = range(2, (parent.replicas if parent else 1) + 1)
    assert sorted(map(number_of, copies.values())) == list(wanted), (parent, list(found))
    assert changes(parent, copies) == []


async def check_history(etcd: MemoryEtcd) -> None:
    """No copy was ever created or changed that its workload did not want at that very revision."""
    before: dict[str, WorkloadSpec] = {}
    for revision in range(2, etcd.revision + 1):
        now = await records(etcd, SPECS, revision)
        parent = now.get("web")
        for identifier, copy in now.items():
            if not copy.replica_of or before.get(identifier) == copy or copy.desired_state == Desired.DELETED:
                continue
            assert parent is not None
            assert parent.desired_state != Desired.DELETED
            assert number_of(copy) <= parent.replicas
        before = now


@settings(max_examples=150, deadline=None)
@given(acts, st.data())
def test_F87_whatever_the_order_the_wanted_copies_are_there_in_the_end(
    moves: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Scale up, scale down, apply, stop, delete, the end of deletions and other users at every turn."""
    asyncio.run(play(moves, lambda count: data.draw(st.integers(0, count - 1), "turn")))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_F87_of_a_scale_and_another_user_one_gets_the_id(data: st.DataObject) -> None:
    """Never both, never neither; the loser's error names the winner."""

    async def race() -> None:
        etcd = MemoryEtcd()
        await apply_spec(Store(etcd), spec(), now=NOW)
        turns = Turns(lambda count: data.draw(st.integers(0, count - 1), "turn"))
        etcd.pause = turns.pause
        outcomes = await turns.run([act_of("scale", 3, Store(etcd)), act_of("take", 3, Store(etcd))])
        etcd.pause = lambda: asyncio.sleep(0)
        lost = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert len(lost) == 1
        assert isinstance(lost[0], Refused)
        assert '"web' in str(lost[0])
        found = await records(etcd, SPECS)
        assert ("web.3" in found) is (found["web"].replicas == 1)
        await etcd.close()

    asyncio.run(race())
