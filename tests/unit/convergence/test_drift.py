"""What differs on a node, and when a copy that nobody knows may be deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.convergence.drift import Known, Quarantine, findings, may_delete
from scheduler.domain.drift import DriftAction, DriftRecord, DriftType, OrphanPolicy
from scheduler.domain.report import Report
from scheduler.domain.workload import Actual, Desired, StatusInfo, Tombstone, WorkloadSpec, WorkloadStatus

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = WorkloadSpec(id="web", type="container", revision_id="r")
KEEP = OrphanPolicy.KEEP


def status(node_id: str = "n1", actual: str = Actual.RUNNING, *, age: float = 300, **fields: object) -> WorkloadStatus:
    """A copy of epoch 5 that has been in a state for so long."""
    info = StatusInfo(actual_state=actual, last_updated=NOW - timedelta(seconds=age))
    found = WorkloadStatus(id="web", node_id=node_id, epoch=5, observed_revision="r", status_info=info)
    return found.replace(**fields)


def report(state: str = Actual.RUNNING, revision: str = "r", epoch: int = 5) -> Report:
    """What the node says."""
    return Report("web", state, revision_id=revision, epoch=epoch)


def difference(known: Known, reported: Report | None, policy: OrphanPolicy = KEEP) -> tuple[str, str] | None:
    """The one finding about the workload."""
    found = findings("n1", {"web": reported} if reported else {}, {"web": known}, NOW, policy)
    return (found[0].kind, found[0].action) if found else None


@pytest.mark.parametrize(
    ("policy", "action"),
    [
        (KEEP, DriftAction.INVESTIGATE),
        (OrphanPolicy.ADOPT, DriftAction.ADOPT),
        (OrphanPolicy.DELETE, DriftAction.DELETE_UNKNOWN),
    ],
)
def test_F36_what_becomes_of_an_unknown_copy_is_the_operators_policy(policy: OrphanPolicy, action: str) -> None:
    """It is kept by default."""
    assert difference(Known(), report(), policy) == (DriftType.ORPHAN, action)


@pytest.mark.parametrize(
    ("known", "reported", "expected"),
    [
        (Known(SPEC, status()), report(), None),
        (Known(SPEC, status()), report(Actual.FAILED), ("state_mismatch", "align_scheduler_status")),
        (Known(SPEC, status()), report(revision="old"), ("revision_mismatch", "reapply_scheduler_revision")),
        (Known(SPEC, status()), report(revision=""), None),
        (Known(SPEC, status()), report(epoch=4), None),
        (Known(SPEC, status("n2")), report(), ("orphan_on_agent", "delete_duplicate_on_reporting_node")),
        (Known(SPEC.replace(desired_state=Desired.DELETED), status("n2")), report(),
         ("orphan_on_agent", "delete_deleted_residual_on_agent")),
        (Known(SPEC.replace(desired_state=Desired.DELETED), status()), report(Actual.FAILED), None),
        (Known(None, None, Tombstone(node_id="n1", workload_id="web", epoch=5)), report(), None),
        (Known(SPEC, status()), None, ("missing_on_agent", "retry_and_reconcile")),
        (Known(SPEC, status(age=5)), None, None),
        (Known(SPEC, status(observed_revision="")), None, None),
        (Known(SPEC, status(terminal="INVALID_IMAGE")), None, None),
        (Known(SPEC.replace(desired_state=Desired.STOPPED), status()), None, None),
    ],
)  # fmt: skip
def test_F37_F38_F39_F40_F41_the_table_of_findings(
    known: Known, reported: Report | None, expected: tuple[str, str] | None
) -> None:
    """Each kind, and what looks like one but is being taken care of."""
    assert difference(known, reported) == expected


def finding(number: int, sightings: int, age: float, action: str = DriftAction.DELETE_UNKNOWN) -> DriftRecord:
    """An open finding."""
    at = NOW - timedelta(seconds=age)
    return DriftRecord(
        node_id="n1", workload_id=f"w{number}", drift_type=DriftType.ORPHAN, detected_at=at, action=action,
        sightings=sightings,
    )  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1200)), max_size=30),
    st.sampled_from(OrphanPolicy),
    st.booleans(),
    st.booleans(),
    st.integers(0, 100),
)
def test_F36_an_unknown_copy_is_deleted_only_after_sightings_and_grace_and_few_at_a_time(
    seen: list[tuple[int, int]], policy: OrphanPolicy, dry_run: bool, trusted: bool, copies: int
) -> None:
    """Never under another policy, in a dry run, or while node or records are not to be trusted."""
    rules = Quarantine(policy, sightings=3, grace_seconds=600, max_share=0.1, dry_run=dry_run)
    found = [finding(number, *one) for number, one in enumerate(seen)]
    chosen = may_delete(found, copies, NOW, rules, trusted=trusted)
    assert len(chosen) <= max(1, copies // 10)
    assert all(one.sightings >= 3 and NOW - one.detected_at >= timedelta(seconds=600) for one in chosen)
    if policy is not OrphanPolicy.DELETE or dry_run or not trusted:
        assert chosen == []
    elif any(sightings >= 3 and age >= 600 for sightings, age in seen):
        assert chosen


def test_F36_a_finding_of_another_action_is_never_deleted() -> None:
    """A copy that was to be kept when it was last seen."""
    rules = Quarantine(OrphanPolicy.DELETE)
    assert may_delete([finding(1, 9, 9e5, DriftAction.INVESTIGATE)], 10, NOW, rules, trusted=True) == []
