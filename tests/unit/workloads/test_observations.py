"""What nodes say about workloads, as it is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.domain.report import Report
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
from scheduler.store.cache import Cache
from scheduler.store.keys import SPECS, STATUSES, TOMBSTONES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.observations import (
    FACTS,
    MAX_TEXT_BYTES,
    Counted,
    Recorded,
    ReportOutcome,
    bounded,
    is_news,
    record_applied,
    record_failure,
    record_missing,
    record_report,
)
from scheduler.store.store import Store
from scheduler.store.workloads import add_tombstone, clear_tombstone, mark_deleted, set_desired
from scheduler.store.write import Ref, View, Write
from tests.support.placement import TABLES, put

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=200)
SPEC = WorkloadSpec(id="web", type="container", revision_id="r2", generation=2)


def make(actual: str = Actual.PENDING, **fields: object) -> WorkloadStatus:
    """Return the status of a copy on n-1 with the current revision."""
    return WorkloadStatus(
        id="web",
        status=Phase.SCHEDULED,
        node_id="n-1",
        epoch=7,
        observed_generation=2,
        observed_revision="r2",
        status_info=StatusInfo(actual_state=actual, last_updated=NOW),
    ).replace(**fields)


def report(state: str = Actual.RUNNING, **fields: Any) -> Report:
    """Return a report about the copy."""
    return Report(**{"workload_id": "web", "state": state, "revision_id": "r2", "epoch": 7, **fields})


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


@pytest.fixture
async def store(etcd: MemoryEtcd) -> Store:
    """A store that holds one workload on n-1, Pending."""
    found = Store(etcd)
    await put(found, SPECS, "web", SPEC)
    await put(found, STATUSES, "web", make())
    return found


async def status_of(store: Store) -> WorkloadStatus:
    """Read the status."""
    record = (await store.get(STATUSES, "web")).record
    assert record
    return record


async def remove(store: Store) -> None:
    """Remove the workload's records, as the end of a delete does."""

    def decide(_view: View) -> Write[None]:
        write: Write[None] = Write(None)
        write.delete(SPECS, "web")
        write.delete(STATUSES, "web")
        return write

    await store.transact([Ref(SPECS, "web"), Ref(STATUSES, "web")], decide)


async def test_F6_a_report_is_recorded_once(etcd: MemoryEtcd, store: Store) -> None:
    """State, revision and time change with the first report; the same again writes nothing."""
    outcome = await record_report(store, "n-1", report(), now=LATER)
    assert outcome == ReportOutcome(changed=True, needs_action=False)
    status = await status_of(store)
    assert (status.actual, status.status, status.status_info.last_updated) == (Actual.RUNNING, Phase.RUNNING, LATER)
    revision = etcd.revision
    assert await record_report(store, "n-1", report(message="up 3 s"), now=LATER) == ReportOutcome()
    assert etcd.revision == revision


async def test_F6_a_failure_is_recorded_with_its_reason(store: Store) -> None:
    """Code, message and whether a retry can help are kept, and an early look is asked for."""
    failed = report(Actual.FAILED, message="no such image", failure_code="INVALID_IMAGE", retryable=False)
    assert (await record_report(store, "n-1", failed, now=LATER)).needs_action
    status = await status_of(store)
    assert status.status == Phase.FAILED
    assert status.status_info.failure_reason == "no such image"
    assert status.status_info.reason == Reason(
        code="INVALID_IMAGE", message="no such image", last_transition=LATER, retryable=False
    )
    assert status.metadata == {"failure_reason": "INVALID_IMAGE"}


async def test_F6_a_recovery_clears_the_failure(store: Store) -> None:
    """Nothing of an old failure is shown for a copy that runs, and the count of refusals starts anew."""
    await put(store, STATUSES, "web", make(retry=Retry(attempts=3, next_retry_at=LATER)))
    await record_report(store, "n-1", report(Actual.FAILED, message="boom", failure_code="X"), now=NOW)
    await record_report(store, "n-1", report(), now=LATER)
    status = await status_of(store)
    assert (status.status_info.failure_reason, status.status_info.reason) == ("", None)
    assert status.metadata == {}
    assert status.retry == Retry()


@pytest.mark.parametrize("state", [Actual.PENDING, Actual.RUNNING, Actual.STOPPED])
async def test_9_14_progress_texts_are_no_news(etcd: MemoryEtcd, store: Store, state: Actual) -> None:
    """A message that changes with every beat does not cause a write with every beat."""
    await record_report(store, "n-1", report(state, message="layer 1"), now=NOW)
    revision = etcd.revision
    for layer in range(5):
        assert await record_report(store, "n-1", report(state, message=f"layer {layer}"), now=LATER) == ReportOutcome()
    assert etcd.revision == revision


async def test_F6_only_the_assigned_node_is_believed(store: Store) -> None:
    """A report of another node changes no status, but makes that node owe the removal, once."""
    other = report(epoch=5)
    assert await record_report(store, "n-2", other, now=LATER) == ReportOutcome(changed=True, needs_action=True)
    assert await status_of(store) == make()
    owed = (await store.get(TOMBSTONES, "n-2/web")).record
    assert owed
    assert owed.epoch == 5
    assert await record_report(store, "n-2", other, now=LATER) == ReportOutcome()


async def test_F6_an_unknown_workload_is_left_alone(etcd: MemoryEtcd, store: Store) -> None:
    """No record is made up, and nothing is ordered removed."""
    revision = etcd.revision
    assert await record_report(store, "n-1", report(workload_id="stranger"), now=LATER) == ReportOutcome()
    assert etcd.revision == revision


async def test_F6_a_workload_without_a_node_believes_nobody(etcd: MemoryEtcd, store: Store) -> None:
    """While it has no node, a reported copy is neither believed nor removed."""
    await put(store, STATUSES, "web", WorkloadStatus(id="web"))
    revision = etcd.revision
    assert await record_report(store, "n-2", report(epoch=3), now=LATER) == ReportOutcome()
    assert etcd.revision == revision


async def test_9_3_a_copy_of_an_earlier_assignment_is_not_the_current_one(store: Store) -> None:
    """Its node turns out not to have the current copy: it is ordered again, and the old state is not believed."""
    outcome = await record_report(store, "n-1", report(epoch=6), now=LATER)
    assert outcome == ReportOutcome(changed=True, needs_action=True)
    status = await status_of(store)
    assert (status.actual, status.observed_revision) == (Actual.MISSING, "")
    assert await record_report(store, "n-1", report(epoch=6), now=LATER) == ReportOutcome()


async def test_9_3_a_report_of_a_later_epoch_than_is_stored_is_ignored(etcd: MemoryEtcd, store: Store) -> None:
    """Only etcd says what the epoch is."""
    revision = etcd.revision
    assert await record_report(store, "n-1", report(epoch=8), now=LATER) == ReportOutcome()
    assert etcd.revision == revision


async def test_F6_an_agent_without_epochs_is_believed_on_its_own_node(store: Store) -> None:
    """Epoch 0 and a blank revision mean that the agent does not say."""
    await record_report(store, "n-1", report(epoch=0, revision_id=""), now=LATER)
    status = await status_of(store)
    assert (status.actual, status.observed_revision) == (Actual.RUNNING, "r2")


async def test_F6_a_report_is_dropped_only_on_the_word_of_etcd(etcd: MemoryEtcd, store: Store) -> None:
    """A front whose cache has not heard of the assignment yet does not lose its first report."""
    cache = Cache(etcd, TABLES)
    await cache.start()
    await cache.ready(5)
    etcd.mishap = lambda call: "stalled" if call == "watch" else None  # type: ignore[assignment, return-value]
    await put(store, STATUSES, "web", make(node_id="n-9", epoch=8))
    behind = Store(etcd, cache=cache)
    assert (await record_report(behind, "n-9", report(epoch=8), now=LATER)).changed
    assert (await status_of(store)).actual == Actual.RUNNING
    await cache.close()


async def test_9_21_what_an_agent_says_is_bounded(store: Store) -> None:
    """Texts are cut, and only known facts are kept, so no agent can set a key of the scheduler's own."""
    metadata = dict.fromkeys(FACTS, "x" * 5000) | {f"k{i}": "v" for i in range(1000)} | {"allow_move": "true"}
    await record_report(store, "n-1", report(Actual.FAILED, message="é" * 5000, metadata=metadata), now=LATER)
    status = await status_of(store)
    assert set(status.metadata) == set(FACTS)
    assert len(status.to_json()) < 16 * 1024
    assert len(status.status_info.failure_reason.encode()) <= MAX_TEXT_BYTES


def test_9_21_a_text_is_cut_at_a_whole_character() -> None:
    """The limit is in bytes; short texts are untouched."""
    assert bounded("short") == "short"
    assert bounded("é" * 1000).encode() == ("é" * 510 + "…").encode()


async def test_F22_a_stable_run_resets_the_guard_when_it_ends(store: Store) -> None:
    """A crash after a run longer than the last wait is the first again; one after a short run is not."""
    guard = Reapply(attempts=4, revision_id="r2", last_at=NOW, next_at=NOW + timedelta(seconds=90))
    running = make(Actual.RUNNING, reapply=guard)
    await put(store, STATUSES, "web", running)
    await record_report(store, "n-1", report(Actual.FAILED), now=NOW + timedelta(seconds=90))
    assert (await status_of(store)).reapply == guard
    await put(store, STATUSES, "web", running)
    await record_report(store, "n-1", report(Actual.FAILED), now=NOW + timedelta(seconds=91))
    assert (await status_of(store)).reapply == Reapply()


async def test_F20_a_missing_copy_is_recorded_if_it_had_been_there(store: Store) -> None:
    """The absence counts for the assignment it was judged for, and once."""
    assert (await record_missing(store, "n-1", "web", 7, now=LATER)).needs_action
    assert (await status_of(store)).actual == Actual.MISSING
    assert await record_missing(store, "n-1", "web", 7, now=LATER) == ReportOutcome()


@pytest.mark.parametrize(
    ("node_id", "epoch", "status"),
    [("n-2", 7, make()), ("n-1", 6, make()), ("n-1", 7, make(observed_revision=""))],
)
async def test_F20_a_copy_that_was_never_there_is_not_missing(
    etcd: MemoryEtcd, store: Store, node_id: str, epoch: int, status: WorkloadStatus
) -> None:
    """Another node, another epoch, or an order that has not been taken yet."""
    await put(store, STATUSES, "web", status)
    revision = etcd.revision
    assert await record_missing(store, node_id, "web", epoch, now=LATER) == ReportOutcome()
    assert etcd.revision == revision


async def test_P2_news_older_than_the_status_is_dropped(etcd: MemoryEtcd, store: Store) -> None:
    """What a list showed counts only if the status is still the one from before the list."""
    before = (await store.get(STATUSES, "web")).mod_revision
    await put(store, STATUSES, "web", make(Actual.RUNNING))
    revision = etcd.revision
    for outcome in (
        await record_report(store, "n-1", report(Actual.FAILED), now=LATER, seen_revision=before),
        await record_missing(store, "n-1", "web", 7, now=LATER, seen_revision=before),
    ):
        assert outcome == ReportOutcome()
    assert etcd.revision == revision


async def applied(store: Store, seen: WorkloadStatus, answer: Report, ordered: WorkloadSpec = SPEC) -> Recorded:
    """Record the answer to an order."""
    return await record_applied(store, ordered, seen, answer, now=LATER, reapply_base_seconds=45)


async def test_F20_an_order_that_was_taken_is_recorded_in_one_write(etcd: MemoryEtcd, store: Store) -> None:
    """State, revision, generation and the guard's count change together."""
    fresh = make(observed_revision="", observed_generation=0, retry=Retry(attempts=2, next_retry_at=NOW))
    await put(store, STATUSES, "web", fresh)
    revision = etcd.revision
    assert await applied(store, fresh, report(Actual.PENDING)) is Recorded.DONE
    assert etcd.revision == revision + 1
    status = await status_of(store)
    assert (status.actual, status.observed_revision, status.observed_generation) == (Actual.PENDING, "r2", 2)
    assert (status.reapply.attempts, status.reapply.next_at) == (1, LATER + timedelta(seconds=45))
    assert status.retry == Retry()
    assert status.status == Phase.SCHEDULED


async def test_F20_each_start_of_a_dead_copy_counts(store: Store) -> None:
    """The guard's count grows with every start of the revision."""
    for attempts in (1, 2, 3):
        dead = (await status_of(store)).replace(status_info=StatusInfo(actual_state=Actual.FAILED, last_updated=NOW))
        await put(store, STATUSES, "web", dead)
        await applied(store, dead, report(Actual.RUNNING))
        assert (await status_of(store)).reapply.attempts == attempts


async def test_F19_a_stop_arms_no_guard_and_clears_an_armed_one(store: Store) -> None:
    """A stopped workload starts without a wait."""
    seen = make(Actual.RUNNING, reapply=Reapply(attempts=6, revision_id="r2", next_at=LATER))
    await put(store, STATUSES, "web", seen)
    await applied(store, seen, report(Actual.STOPPED), SPEC.replace(desired_state=Desired.STOPPED))
    status = await status_of(store)
    assert (status.reapply.attempts, status.reapply.next_at) == (0, None)


async def test_9_20_asking_again_for_news_does_not_count_as_a_start(store: Store) -> None:
    """An order repeated because the copy stayed Pending leaves the count, and notes the time."""
    seen = make(Actual.PENDING, reapply=Reapply(attempts=2, revision_id="r2", next_at=NOW, last_at=NOW))
    await put(store, STATUSES, "web", seen)
    await applied(store, seen, report(Actual.PENDING))
    assert (await status_of(store)).reapply == seen.reapply.replace(last_at=LATER)


async def test_F49_a_report_and_an_answer_both_survive(store: Store) -> None:
    """A report that came in while the order was under way stays; the order's own fields are written too."""
    seen = make(Actual.FAILED, observed_generation=1)
    await put(store, STATUSES, "web", seen)
    await record_report(store, "n-1", report(Actual.RUNNING), now=LATER)
    assert await applied(store, seen, report(Actual.PENDING)) is Recorded.DONE
    status = await status_of(store)
    assert (status.actual, status.observed_generation, status.reapply.attempts) == (Actual.RUNNING, 2, 1)


async def test_P2_two_workers_that_sent_the_same_order_count_it_once(store: Store) -> None:
    """The second answer finds the first one recorded."""
    seen = make(Actual.FAILED)
    await put(store, STATUSES, "web", seen)
    await applied(store, seen, report(Actual.RUNNING))
    await applied(store, seen, report(Actual.RUNNING))
    assert (await status_of(store)).reapply.attempts == 1


async def test_P2_an_older_revision_taken_late_is_seen_as_such(store: Store) -> None:
    """The user changed the spec while the order was under way: the node has the old revision, so it is not done."""
    seen = make(observed_revision="", observed_generation=0)
    await put(store, STATUSES, "web", seen)
    await put(store, SPECS, "web", SPEC.replace(revision_id="r3", generation=3))
    await applied(store, seen, report(Actual.RUNNING))
    status = await status_of(store)
    assert (status.observed_revision, status.observed_generation, status.status) == ("r2", 2, Phase.UPDATING)


@pytest.mark.parametrize("now_is", [None, make(epoch=8), make(node_id="n-2")])
async def test_scenario_O7_an_answer_for_an_assignment_that_is_over_is_superseded(
    etcd: MemoryEtcd, store: Store, now_is: WorkloadStatus | None
) -> None:
    """Deleted, moved, or placed anew meanwhile: nothing is recorded, and the caller is told."""
    seen = make()
    if now_is:
        await put(store, STATUSES, "web", now_is)
    else:
        await remove(store)
    revision = etcd.revision
    assert await applied(store, seen, report()) is Recorded.SUPERSEDED
    assert etcd.revision == revision


async def test_scenario_R5_an_unreachable_agent_uses_up_nothing(etcd: MemoryEtcd, store: Store) -> None:
    """It is written once an episode, and no count grows."""
    seen = await status_of(store)
    for _ in range(3):
        await record_failure(store, seen, code="AGENT_UNREACHABLE", message="no answer", counted=False, now=LATER)
    status = await status_of(store)
    assert (status.retry, status.reapply) == (Retry(), Reapply())
    assert status.status_info.reason
    assert status.status_info.reason.code == "AGENT_UNREACHABLE"
    revision = etcd.revision
    again = await record_failure(store, seen, code="AGENT_UNREACHABLE", message="still not", counted=False, now=LATER)
    assert again is Counted.KNOWN
    assert etcd.revision == revision


async def test_F24_a_refusal_delays_the_next_try(store: Store) -> None:
    """The third refusal in a row waits five seconds, and shows RetryPending with the agent's words."""
    for _ in range(3):
        await record_failure(store, await status_of(store), code="INTERNAL", message="cannot", counted=True, now=LATER)
    status = await status_of(store)
    assert (status.status, status.retry.attempts) == (Phase.RETRY_PENDING, 3)
    assert status.retry.next_retry_at == LATER + timedelta(seconds=5)
    assert status.status_info.failure_reason == "cannot"


async def test_F15_reports_do_not_hide_a_deletion(store: Store) -> None:
    """The state is recorded, the status stays Deleting."""
    await mark_deleted(store, "web", now=NOW)
    await record_report(store, "n-1", report(), now=LATER)
    status = await status_of(store)
    assert (status.status, status.actual) == (Phase.DELETING, Actual.RUNNING)


async def test_F19_a_wish_that_changed_meanwhile_stays_due(store: Store) -> None:
    """An answer to the old wish does not count as one to the new."""
    seen = await status_of(store)
    await set_desired(store, "web", Desired.STOPPED, now=NOW)
    await applied(store, seen, report(Actual.RUNNING))
    assert (await status_of(store)).observed_generation == 2
    spec = (await store.get(SPECS, "web")).record
    assert spec
    assert spec.generation == 3


async def test_F16_tombstones_only_grow_and_are_cleared_for_what_was_done(store: Store) -> None:
    """An older epoch neither lowers one nor clears a newer one."""
    assert await add_tombstone(store, "n-1", "web", 5, now=NOW)
    assert not await add_tombstone(store, "n-1", "web", 4, now=NOW)
    assert await add_tombstone(store, "n-1", "web", 6, now=NOW)
    assert not await clear_tombstone(store, "n-1", "web", 5)
    assert await clear_tombstone(store, "n-1", "web", 6)
    assert not await clear_tombstone(store, "n-1", "web", 6)


def test_F6_news_can_be_told_without_asking_the_store() -> None:
    """The same question as record_report's, answered from records at hand."""
    assert not is_news(SPEC, make(), "n-1", report(Actual.PENDING))
    assert is_news(SPEC, make(), "n-1", report(Actual.RUNNING))
    assert is_news(SPEC, make(), "n-2", report(Actual.PENDING))
    assert is_news(SPEC, make(), "n-1", report(Actual.PENDING, epoch=6))
