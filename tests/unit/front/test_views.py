"""Views: what is shown of records, and the texts of failures."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from scheduler.convergence.failures import failure_text, is_infrastructure
from scheduler.domain.node import Node, Taint
from scheduler.domain.workload import Reason, Retry, StatusInfo, WorkloadSpec, WorkloadStatus
from scheduler.front.views import node_view, timestamp, workload_view
from scheduler.front.vitals import NOBODY, Vital
from scheduler.telemetry.pulses import Usage, Use

WHEN = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
SPEC = WorkloadSpec(id="web", type="container", revision_id="r", created_at=WHEN, generation=3)


def failed(reason: str, **facts: str) -> WorkloadStatus:
    """Return a status with a failure reason and what the runtime says."""
    return WorkloadStatus(id="web", status_info=StatusInfo(failure_reason=reason), metadata=facts)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (failed(""), ""),
        (failed("exit 1"), "exit 1"),
        (failed("", last_error="old"), "old"),
        (failed("exit 1", **{"container.stderr": "boom"}), "exit 1\nboom"),
        (failed("boom", **{"container.stderr": "boom"}), "boom"),
        (failed("connection refused", **{"container.stderr": "boom"}), "boom\nconnection refused"),
        (failed("", **{"last_runtime_error": "b", "container.runtime_error": "c"}), "b"),
    ],
)
def test_F29_the_more_telling_half_of_a_failure_comes_first(status: WorkloadStatus, text: str) -> None:
    """The runtime's words before those about the way to the node; equal texts once."""
    assert failure_text(status) == text


def test_F30_texts_about_the_way_to_the_node_are_told_apart() -> None:
    """As the reference system does (4.4)."""
    for text in ("Node n1 is UNAVAILABLE", "no failover target", "heartbeat expired: x", "context deadline exceeded"):
        assert is_infrastructure(text)
    assert not is_infrastructure("the node of the tree is red")


def test_a_workload_is_shown_with_all_it_has() -> None:
    """Fields of the reference system and ours."""
    status = WorkloadStatus(
        id="web",
        node_id="n1",
        epoch=7,
        retry=Retry(attempts=2, next_retry_at=WHEN),
        status_info=StatusInfo(reason=Reason(code="C", message="m", retryable=True, last_transition=WHEN)),
        pending_reason="why",
    )
    view = workload_view(SPEC, status, shown="Running", since=None, usage=Usage("web", cpu_percent=1.5, collected_at=9))
    assert (view.status, view.assigned_node_id, view.revision_id) == ("Running", "n1", "r")
    assert (view.retry_attempts, view.retry_max_attempts) == (2, 5)
    assert view.retry_next_at == view.reason.last_transition == view.created_at == view.last_updated == timestamp(WHEN)
    assert (view.reason.code, view.reason.retryable) == ("C", True)
    assert (view.usage.cpu_percent, view.usage.collected_at.seconds) == (1.5, 9)
    assert (view.generation, view.assignment_epoch, view.pending_reason) == (3, 7, "why")


def test_what_is_not_there_is_not_shown() -> None:
    """No empty reason, no usage, no times; the older field of the node's name counts when the newer is blank."""
    status = WorkloadStatus(id="web", assigned_node="n9", status_info=StatusInfo(reason=Reason()))
    view = workload_view(SPEC.replace(created_at=None), status, shown="Pending", since=None, usage=None)
    assert view.assigned_node_id == "n9"
    for name in ("reason", "usage", "last_updated", "created_at", "retry_next_at"):
        assert not view.HasField(name)


def test_a_vms_address_is_not_glued_to_its_status() -> None:
    """Clients that compare the status would fail to (9.24)."""
    spec = SPEC.replace(type="vm")
    status = WorkloadStatus(id="web", metadata={"vm.primary_ip": "10.0.0.7"})
    assert workload_view(spec, status, shown="Running", since=None, usage=None).status == "Running"


def test_a_node_that_was_never_heard_has_no_heartbeat_and_all_of_it_is_available() -> None:
    """Available is what is not used; intent and health are both in `schedulable` and `status`."""
    node = Node(node_id="n1", total_cpu=2.0, total_memory=1000, taints=(Taint(key="k", value="v"),), drain="Draining")
    view = node_view(node, NOBODY, None, shard=3, workloads=0)
    assert not view.HasField("last_heartbeat")
    assert (view.available_cpu_cores, view.available_memory_mb, view.shard) == (2.0, 1000, 3)
    assert not view.schedulable
    assert [(t.key, t.value, t.effect) for t in view.taints] == [("k", "v", "NoSchedule")]
    busy = node_view(node, Vital(5.0, Use(500, 100)), None, shard=0, workloads=0)
    assert (busy.available_cpu_cores, busy.available_memory_mb, busy.last_heartbeat.seconds) == (1.5, 900, 5)


@pytest.mark.parametrize("hours", [14, -14])
def test_F86_a_time_that_the_wire_cannot_hold_is_left_out(hours: int) -> None:
    """A record of another scheduler may hold one; lists must show it all the same."""
    zone = timezone(timedelta(hours=hours))
    when = datetime.min.replace(tzinfo=zone) if hours > 0 else datetime.max.replace(tzinfo=zone)
    spec = WorkloadSpec(id="w", type="container", created_at=when)
    assert timestamp(when) is None
    view = workload_view(spec, WorkloadStatus(id="w"), shown="Pending", since=None, usage=None)
    assert not view.HasField("created_at")
