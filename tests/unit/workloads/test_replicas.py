"""Copies as they are stored: who owns an id, scaling in steps, and what users may not do."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from scheduler.domain.errors import Conflict, InvalidInput, NotFound, Refused
from scheduler.domain.workload import Desired, WorkloadSpec
from scheduler.store.claims import CLAIMED_AT_ONCE
from scheduler.store.keys import SPECS
from scheduler.store.memory import MemoryEtcd
from scheduler.store.replicas import preview, scale, write_copies
from scheduler.store.store import Store
from scheduler.store.workloads import apply_spec, finalize_delete, mark_deleted, retry, set_desired
from tests.support.placement import records, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


@pytest.fixture
def store(etcd: MemoryEtcd) -> Store:
    """A store without a cache."""
    return Store(etcd)


async def stored(store: Store, workload_id: str = "web") -> WorkloadSpec:
    """Read a spec that is there."""
    record = (await store.get(SPECS, workload_id)).record
    assert record
    return record


async def with_copies(store: Store, replicas: int) -> None:
    """Store a workload with its copies."""
    await apply_spec(store, spec("web", replicas=replicas), now=NOW)
    await write_copies(store, "web", [f"web.{n}" for n in range(2, replicas + 1)], now=NOW)


async def test_F87_an_apply_that_does_not_say_how_many_keeps_how_many_there_are(store: Store) -> None:
    """One of a new workload."""
    assert (await apply_spec(store, spec(replicas=0), now=NOW)).spec.replicas == 1
    await scale(store, "web", 4, now=NOW)
    applied = await apply_spec(store, spec(replicas=0, image="new"), now=NOW)
    assert (applied.spec.replicas, applied.replicas_before) == (4, 4)
    again = await apply_spec(store, spec(replicas=0, image="new"), now=NOW)
    assert not again.changed


async def test_F87_scaling_is_a_new_generation_of_the_same_revision(store: Store) -> None:
    """The same number again writes nothing."""
    before = (await apply_spec(store, spec(), now=NOW)).spec
    scaled = await scale(store, "web", 3, now=NOW)
    assert (scaled.replicas_before, scaled.spec.replicas, scaled.changed) == (1, 3, True)
    assert (scaled.spec.revision_id, scaled.spec.generation) == (before.revision_id, 2)
    assert not (await scale(store, "web", 3, now=NOW)).changed


async def test_F87_scaling_an_expected_generation(etcd: MemoryEtcd, store: Store) -> None:
    """Another one is a conflict that names both; a preview stores nothing."""
    await apply_spec(store, spec(), now=NOW)
    with pytest.raises(Conflict, match="at generation 1, not at 7"):
        await scale(store, "web", 3, now=NOW, generation=7)
    revision = etcd.revision
    assert (await preview(store, "web", 3, now=NOW, generation=1)).spec.replicas == 3
    assert etcd.revision == revision
    await scale(store, "web", 2 + 2 * CLAIMED_AT_ONCE, now=NOW, generation=1)
    assert (await stored(store)).replicas == 2 + 2 * CLAIMED_AT_ONCE


async def test_F87_a_thousand_copies_are_taken_in_steps(store: Store) -> None:
    """And all of them are written."""
    await apply_spec(store, spec(replicas=1000), now=NOW)
    assert (await stored(store)).replicas == 1000
    ids = [f"web.{n}" for n in range(2, 1001)]
    assert len(await write_copies(store, "web", ids, now=NOW)) == 999
    assert await write_copies(store, "web", ids, now=NOW) == []


@pytest.mark.parametrize("replicas", [3, 250])
async def test_F87_an_id_of_another_workload_stops_the_apply_and_the_scale(
    etcd: MemoryEtcd, store: Store, replicas: int
) -> None:
    """The error names both; nothing is stored."""
    other = f"web.{replicas}"
    await apply_spec(store, spec(other), now=NOW)
    revision = etcd.revision
    with pytest.raises(Refused, match=f'"web" cannot have .*"{other}"'):
        await apply_spec(store, spec(replicas=replicas), now=NOW)
    assert etcd.revision == revision
    await apply_spec(store, spec(), now=NOW)
    with pytest.raises(Refused, match=f'"web" cannot have .*"{other}"'):
        await scale(store, "web", replicas, now=NOW)
    assert (await stored(store)).replicas == 1
    await scale(store, "web", replicas - 1, now=NOW)


async def test_F87_nobody_can_take_the_id_of_a_copy_that_is_still_to_be_written(store: Store) -> None:
    """It belongs to the workload from when that says so; the number behind it is free."""
    await apply_spec(store, spec(replicas=3), now=NOW)
    with pytest.raises(Refused, match='copy 3 of workload "web"'):
        await apply_spec(store, spec("web.3"), now=NOW)
    await apply_spec(store, spec("web.4"), now=NOW)


async def test_F87_a_copy_is_not_changed_by_itself(store: Store) -> None:
    """The error names its workload; a retry is allowed."""
    await with_copies(store, 2)
    for attempt in (
        apply_spec(store, spec("web.2"), now=NOW),
        set_desired(store, "web.2", Desired.STOPPED, now=NOW),
        mark_deleted(store, "web.2", now=NOW),
        scale(store, "web.2", 2, now=NOW),
    ):
        with pytest.raises(Refused, match=r'"web\.2" is a copy of "web"'):
            await attempt
    await retry(store, "web.2", now=NOW)
    assert (await stored(store, "web.2")).desired_state == Desired.RUNNING


async def test_F87_copies_follow_content_desired_state_and_deletion(store: Store) -> None:
    """Each a new generation of the copy; its failures are forgotten with new content only."""
    await with_copies(store, 2)
    first = await stored(store, "web.2")
    await apply_spec(store, spec(replicas=2, image="new"), now=NOW)
    await write_copies(store, "web", ["web.2"], now=NOW)
    second = await stored(store, "web.2")
    assert (second.image, second.generation, second.created_at) == ("new", 2, first.created_at)
    assert second.revision_id != first.revision_id
    await set_desired(store, "web", Desired.STOPPED, now=NOW)
    await write_copies(store, "web", ["web.2"], now=NOW)
    third = await stored(store, "web.2")
    assert (third.desired_state, third.revision_id) == (Desired.STOPPED, second.revision_id)
    await mark_deleted(store, "web", now=NOW)
    await write_copies(store, "web", ["web.2"], now=NOW)
    assert (await stored(store, "web.2")).desired_state == Desired.DELETED


async def test_F87_a_copy_whose_workload_is_gone_is_removed(store: Store) -> None:
    """However it came to be left behind."""
    await with_copies(store, 2)
    await mark_deleted(store, "web", now=NOW)
    await finalize_delete(store, "web", tombstone=False, now=NOW)
    await write_copies(store, "web", ["web.2"], now=NOW)
    assert (await stored(store, "web.2")).desired_state == Desired.DELETED


async def test_F87_a_workload_that_is_being_deleted_cannot_be_scaled(store: Store) -> None:
    """Nor one that is not there, nor to a number out of bounds."""
    with pytest.raises(NotFound):
        await scale(store, "web", 2, now=NOW)
    await apply_spec(store, spec(), now=NOW)
    for replicas in (0, -1, 1001):
        with pytest.raises(InvalidInput, match="1 to 1000"):
            await scale(store, "web", replicas, now=NOW)
    await mark_deleted(store, "web", now=NOW)
    with pytest.raises(Refused, match="being deleted"):
        await scale(store, "web", 2, now=NOW)


async def test_F87_another_users_workload_under_a_wanted_id_is_left_alone(etcd: MemoryEtcd, store: Store) -> None:
    """Even if it came there by a way around the claims."""
    await apply_spec(store, spec("web.2"), now=NOW)
    assert await write_copies(store, "web", ["web.2"], now=NOW) == []
    assert (await records(etcd, SPECS))["web.2"].replica_of == ""
