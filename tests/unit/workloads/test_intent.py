"""What users want of workloads, as it is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.domain.errors import InvalidInput, NotFound, Refused
from scheduler.domain.workload import (
    Actual,
    Desired,
    Phase,
    Reapply,
    Reason,
    Retry,
    StatusInfo,
    WorkloadSpec,
    WorkloadStatus,
)
from scheduler.store.assign import Placed
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from scheduler.store.workloads import apply_spec, finalize_delete, mark_deleted, retry, set_desired
from tests.support.placement import node, placer_on, put, put_nodes, spec

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


@pytest.fixture
def store(etcd: MemoryEtcd) -> Store:
    """A store without a cache."""
    return Store(etcd)


async def status_of(store: Store, workload_id: str = "web") -> WorkloadStatus:
    """Read a status that is there."""
    record = (await store.get(STATUSES, workload_id)).record
    assert record
    return record


async def spec_of(store: Store, workload_id: str = "web") -> WorkloadSpec:
    """Read a spec that is there."""
    record = (await store.get(SPECS, workload_id)).record
    assert record
    return record


def failing(**fields: object) -> WorkloadStatus:
    """Return the status of a workload that has failed in every way."""
    return WorkloadStatus(
        id="web",
        status=Phase.FAILED,
        node_id="n-1",
        epoch=3,
        observed_generation=1,
        observed_revision="r1",
        status_info=StatusInfo(
            actual_state=Actual.FAILED, failure_reason="boom", reason=Reason(code="RUNTIME_ERROR", message="boom")
        ),
        retry=Retry(attempts=4, max_attempts=9, next_retry_at=LATER),
        reapply=Reapply(attempts=5, next_at=LATER, revision_id="r1"),
        metadata={"failure_reason": "RUNTIME_ERROR", "assignment_reason": "best"},
    ).replace(**fields)


async def test_F8_create_goes_pending(store: Store) -> None:
    """A new workload has a revision, generation 1, a creation time, and no node."""
    applied = await apply_spec(store, spec(image="nginx"), now=NOW)
    assert (applied.created, applied.changed) == (True, True)
    stored = await spec_of(store)
    assert stored == applied.spec
    assert (len(stored.revision_id), stored.generation, stored.created_at) == (24, 1, NOW)
    assert (await status_of(store)).status == Phase.PENDING


async def test_F13_an_identical_spec_writes_nothing(etcd: MemoryEtcd, store: Store) -> None:
    """Applying the same again leaves revision, generation and every record alone."""
    first = await apply_spec(store, spec(image="nginx"), now=NOW)
    revision = etcd.revision
    again = await apply_spec(store, spec(image="nginx"), now=LATER)
    assert (again.created, again.changed, again.spec) == (False, False, first.spec)
    assert etcd.revision == revision


async def test_F13_a_changed_spec_gets_a_new_revision_and_shows_updating(store: Store) -> None:
    """The whole content is replaced, the generation grows by one, the creation time stays."""
    old = (await apply_spec(store, spec(image="nginx:1", env_vars={"A": "1"}), now=NOW)).spec
    await put(store, STATUSES, "web", WorkloadStatus(id="web", node_id="n-1", observed_revision=old.revision_id))
    applied = await apply_spec(store, spec(image="nginx:2"), now=LATER)
    assert applied.changed
    assert not applied.created
    new = await spec_of(store)
    assert new.revision_id != old.revision_id
    assert (new.generation, new.created_at, new.image, new.env_vars) == (2, NOW, "nginx:2", {})
    assert (await status_of(store)).status == Phase.UPDATING


async def test_F14_the_revision_depends_on_the_content_alone(store: Store) -> None:
    """The same spec at another time, in another state, for the same id has the same revision."""
    first = (await apply_spec(store, spec(image="nginx"), now=NOW)).spec
    await apply_spec(store, spec(image="apache"), now=NOW)
    back = (await apply_spec(store, spec(image="nginx", desired_state=Desired.STOPPED), now=LATER)).spec
    assert back.revision_id == first.revision_id
    assert back.generation == 3


async def test_F13_a_new_revision_clears_failure_accounting(store: Store) -> None:
    """What went wrong with the old content counts no more; where the workload is does."""
    await apply_spec(store, spec(image="nginx:1"), now=NOW)
    await put(store, STATUSES, "web", failing())
    await apply_spec(store, spec(image="nginx:2"), now=LATER)
    status = await status_of(store)
    assert status.retry == Retry(max_attempts=9)
    assert status.reapply == Reapply()
    assert (status.status_info.failure_reason, status.status_info.reason) == ("", None)
    assert status.metadata == {"assignment_reason": "best"}
    assert (status.node_id, status.epoch, status.observed_revision) == ("n-1", 3, "r1")


async def test_F9_the_desired_state_changes_without_a_new_revision(store: Store) -> None:
    """Only desired state and generation change; the crash-loop guard starts anew."""
    old = (await apply_spec(store, spec(), now=NOW)).spec
    await put(store, STATUSES, "web", failing())
    changed = await set_desired(store, "web", Desired.STOPPED, now=LATER)
    assert changed.changed
    new = await spec_of(store)
    assert (new.revision_id, new.generation, new.desired_state) == (old.revision_id, 2, "Stopped")
    assert (await status_of(store)).reapply == Reapply()


async def test_F9_the_same_desired_state_writes_nothing(etcd: MemoryEtcd, store: Store) -> None:
    """Asking for what is asked for already is no change."""
    await apply_spec(store, spec(), now=NOW)
    revision = etcd.revision
    assert not (await set_desired(store, "web", Desired.RUNNING, now=LATER)).changed
    assert etcd.revision == revision


async def test_F9_an_unknown_workload_cannot_be_desired(store: Store) -> None:
    """There is nothing to change."""
    with pytest.raises(NotFound, match='"nope"'):
        await set_desired(store, "nope", Desired.RUNNING, now=NOW)
    with pytest.raises(NotFound):
        await retry(store, "nope", now=NOW)


@pytest.mark.parametrize("desired", ["Deleted", "running", "", "Paused"])
async def test_F9_only_running_and_stopped_can_be_desired(store: Store, desired: str) -> None:
    """Anything else is refused with the field's name, and nothing is stored."""
    with pytest.raises(InvalidInput, match="desired_state"):
        await apply_spec(store, spec(desired_state=desired), now=NOW)
    with pytest.raises(InvalidInput, match="desired_state"):
        await set_desired(store, "web", desired, now=NOW)
    assert (await store.get(SPECS, "web")).record is None


async def test_F9_a_deletion_is_a_one_way_flag(etcd: MemoryEtcd, store: Store) -> None:
    """No apply, no desired state and no retry takes it back."""
    await apply_spec(store, spec(image="nginx"), now=NOW)
    await mark_deleted(store, "web", now=NOW)
    revision = etcd.revision
    for call in (
        apply_spec(store, spec(image="nginx"), now=LATER),
        apply_spec(store, spec(image="other"), now=LATER),
        set_desired(store, "web", Desired.RUNNING, now=LATER),
        retry(store, "web", now=LATER),
    ):
        with pytest.raises(Refused, match='"web" is being deleted'):
            await call
    assert etcd.revision == revision


async def test_F15_marking_deleted_is_idempotent(etcd: MemoryEtcd, store: Store) -> None:
    """The first call shows Deleting, the second writes nothing, an unknown id is no error."""
    await apply_spec(store, spec(), now=NOW)
    marked = await mark_deleted(store, "web", now=NOW)
    assert marked
    assert (marked.desired_state, marked.generation) == ("Deleted", 2)
    assert (await status_of(store)).status == Phase.DELETING
    revision = etcd.revision
    assert await mark_deleted(store, "web", now=LATER) == marked
    assert await mark_deleted(store, "nope", now=LATER) is None
    assert etcd.revision == revision


async def test_F18_retry_clears_all_failure_accounting(store: Store) -> None:
    """Attempts, guard, reason and failure code are gone, and so is the wait."""
    await apply_spec(store, spec(), now=NOW)
    await put(store, STATUSES, "web", failing())
    status = await retry(store, "web", now=LATER)
    assert status == await status_of(store)
    assert status.retry == Retry(max_attempts=9)
    assert status.reapply == Reapply()
    assert status.status_info.failure_reason == ""
    assert "failure_reason" not in status.metadata


async def placed(etcd: MemoryEtcd, store: Store) -> Placed:
    """Create a workload and give it the only node."""
    await put_nodes(store, [node("n-1")])
    await apply_spec(store, spec(ports=("8080:80/tcp",)), now=NOW)
    async with placer_on(etcd) as (placer, _, _):
        outcome = await placer.place("web")
    assert isinstance(outcome, Placed)
    return outcome


async def test_F15_finalising_removes_every_record_in_one_transaction(etcd: MemoryEtcd, store: Store) -> None:
    """Spec, status, assignment and ledger commitment go at one revision; doing it again does nothing."""
    await placed(etcd, store)
    await mark_deleted(store, "web", now=NOW)
    revision = etcd.revision
    assert await finalize_delete(store, "web", tombstone=False, now=NOW)
    assert etcd.revision == revision + 1
    tables: tuple[Table[Any], ...] = (SPECS, STATUSES, ASSIGNMENTS)
    for table in tables:
        assert (await store.get(table, "web")).record is None
    ledger = (await store.get(LEDGERS, "n-1")).record
    assert ledger
    assert ledger.commitments == {}
    assert (await store.get(TOMBSTONES, "n-1/web")).record is None
    assert not await finalize_delete(store, "web", tombstone=False, now=NOW)
    assert etcd.revision == revision + 1


async def test_F16_finalising_on_a_lost_node_leaves_a_tombstone(etcd: MemoryEtcd, store: Store) -> None:
    """The node owes the removal of every copy up to the last epoch."""
    epoch = (await placed(etcd, store)).epoch
    await mark_deleted(store, "web", now=NOW)
    assert await finalize_delete(store, "web", tombstone=True, now=LATER)
    owed = (await store.get(TOMBSTONES, "n-1/web")).record
    assert owed
    assert (owed.node_id, owed.workload_id, owed.epoch, owed.created_at) == ("n-1", "web", epoch, LATER)


async def test_F15_only_what_is_marked_deleted_is_finalised(etcd: MemoryEtcd, store: Store) -> None:
    """A late finaliser of an earlier life does not hit a workload that was created anew."""
    await placed(etcd, store)
    revision = etcd.revision
    assert not await finalize_delete(store, "web", tombstone=False, now=NOW)
    assert etcd.revision == revision


async def test_F15_a_confirmation_for_another_assignment_finalises_nothing(etcd: MemoryEtcd, store: Store) -> None:
    """That one copy is gone says nothing about a later one."""
    await placed(etcd, store)
    seen = await status_of(store)
    await mark_deleted(store, "web", now=NOW)
    await put(store, STATUSES, "web", seen.replace(epoch=seen.epoch + 1))
    assert not await finalize_delete(store, "web", tombstone=False, now=NOW, seen=seen)
    assert (await store.get(SPECS, "web")).record


async def test_F17_an_unassigned_workload_is_finalised_without_a_node(store: Store) -> None:
    """There is neither a ledger nor a tombstone to write."""
    await apply_spec(store, spec(), now=NOW)
    await mark_deleted(store, "web", now=NOW)
    assert await finalize_delete(store, "web", tombstone=True, now=NOW)
    assert (await store.get(SPECS, "web")).record is None


async def test_F15_epochs_grow_over_delete_and_recreate(etcd: MemoryEtcd, store: Store) -> None:
    """A copy of the earlier life can be told from one of the new life."""
    first = (await placed(etcd, store)).epoch
    await mark_deleted(store, "web", now=NOW)
    await finalize_delete(store, "web", tombstone=True, now=NOW)
    assert (await placed(etcd, store)).epoch > first
