"""Which outcomes of reconciling are news, and how they are written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from redis.asyncio import Redis

from scheduler.domain.reconciliation import MAX_REASON, Outcome, Reconciliation
from scheduler.loops.holds import Holds
from scheduler.loops.step import step
from scheduler.telemetry.history import STREAM, History, key_of
from tests.support.loop_world import world
from tests.support.placement import spec

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def outcome(action: str = "Assign", *, success: bool = True, reason: str = "", anew: bool = False) -> Outcome:
    """Return an outcome about "web"."""
    record = Reconciliation(workload_id="web", action=action, success=success, reason=reason, attempted_at=NOON)
    return Outcome(record, anew)


def unconnected() -> History:
    """A history that is never sent: the test looks at what waits, without an event loop's turn in between."""
    return History(Redis(), max_entries=10, ttl_seconds=60, buffer=10_000)


def waiting(history: History) -> list[Outcome]:
    """Return what would be sent."""
    return list(history._waiting)


def test_F70_a_record_has_the_reference_systems_fields_and_one_width_of_time() -> None:
    """So that the order of the texts is the order of time, in Redis's script as well."""
    second = Reconciliation(workload_id="web", action="Assign", success=False, reason="full", attempted_at=NOON)
    assert json.loads(second.to_json()) == {
        "workloadId": "web",
        "action": "Assign",
        "success": False,
        "reason": "full",
        "attemptedAt": "2026-01-01T12:00:00.000000Z",
    }
    elsewhere = second.replace(attempted_at=NOON.astimezone(timezone(timedelta(hours=2))))
    assert elsewhere.to_json() == second.to_json()
    of_go = Reconciliation.from_json(second.to_json().replace(b"00.000000Z", b"00.123456789Z"))
    assert of_go.attempted_at == NOON.replace(microsecond=123456)
    with pytest.raises(ValidationError):
        Reconciliation.from_json(second.to_json().replace(b"000000Z", b"000000"))


@pytest.mark.parametrize(
    ("before", "after", "is_news"),
    [
        (None, outcome(), True),
        (outcome(), outcome(), False),
        (outcome(), outcome(anew=True), True),
        (outcome(), outcome("Delete"), True),
        (outcome(), outcome(success=False), True),
        (outcome(reason="a"), outcome(reason="b"), True),
    ],
)
def test_F70_news_is_what_differs_or_was_done_anew(before: Outcome | None, after: Outcome, is_news: bool) -> None:
    """A look that comes to the same as the one before is not kept."""
    assert after.is_news_after(before.record if before else None) is is_news


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["web", "db", "history"]),
        st.sampled_from(["Assign", "ReapplyRunning", "FinalizeDelete"]),
        st.booleans(),
        st.sampled_from(["", "full"]),
        st.booleans(),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(_STEPS)
def test_F70_of_any_steps_nothing_done_is_lost_and_no_repeat_is_kept(
    steps: Sequence[tuple[str, str, bool, str, bool]],
) -> None:
    """What is done anew comes through; of what is not, a workload never has the same twice in a row while it lives."""

    async def run() -> list[Outcome]:
        history = unconnected()
        for workload_id, action, success, reason, anew in steps:
            history.record(workload_id, action, success=success, reason=reason, anew=anew)
        kept = waiting(history)
        history._waiting.clear()
        await history.close()
        return kept

    kept = asyncio.run(run())
    assert sum(one.anew for one in kept) == sum(step[-1] for step in steps)
    last: dict[str, Reconciliation] = {}
    for one in kept:
        before = last.pop(one.record.workload_id, None)
        assert one.anew or before is None or not one.record.says_the_same(before)
        if not one.is_end:
            last[one.record.workload_id] = one.record
    for workload_id, *_ in steps:
        assert any(one.record.workload_id == workload_id for one in kept)


async def test_F70_a_reason_is_cut_and_a_full_buffer_drops_the_oldest() -> None:
    """An agent may say what it likes; each dropped outcome is counted."""
    drops: list[int] = []
    history = History(Redis(), max_entries=10, ttl_seconds=60, buffer=2, on_drop=lambda: drops.append(1))
    for number in range(3):
        history.record(f"w{number}", "Assign", success=False, reason="x" * 10_000)
    assert [one.record.workload_id for one in waiting(history)] == ["w1", "w2"]
    assert {len(one.record.reason) for one in waiting(history)} == {MAX_REASON}
    assert (history.dropped, len(drops)) == (1, 1)
    history._waiting.clear()
    await history.close()


async def test_F70_without_redis_and_etcd_nothing_is_kept() -> None:
    """No task, no buffer."""
    history = History(None, max_entries=10, ttl_seconds=60)
    history.record("web", "Assign", success=True)
    assert waiting(history) == []
    await history.close()


def test_F70_no_workload_id_makes_a_key_of_the_history() -> None:
    """Ids have no colon, and the stream's key does not begin as the keys of workloads do."""
    assert not STREAM.startswith(key_of(""))


async def test_F70_steps_that_do_nothing_record_nothing() -> None:
    """A workload that is as it should be, and one that is not there."""
    async with world() as fleet:
        await fleet.add_node("n-1")
        await fleet.apply(spec())
        await fleet.cycle()
        await fleet.report("n-1")
        fleet.outcomes.clear()
        for workload_id in ("web", "nobody"):
            await step(fleet.ctx, workload_id, fleet.guards, Holds(fleet.ctx))
        assert fleet.outcomes == []
        assert fleet.results == [("Assign", True), ("ReapplyRunning", True), ("NoAction", True)]
