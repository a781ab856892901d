"""Metrics: row F89's names and labels, Go's spelling of codes, gauges that never go stale."""

from __future__ import annotations

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store
from scheduler.telemetry.metrics import GAUGES, FleetFigures, Metrics, category_of, go_code

REFERENCE = {
    "persys_scheduler_grpc_server_requests": ("counter", {"method", "code"}),
    "persys_scheduler_grpc_server_request_duration_seconds": ("histogram", {"method", "code"}),
    "persys_scheduler_agent_rpc_requests": ("counter", {"rpc", "code"}),
    "persys_scheduler_agent_rpc_duration_seconds": ("histogram", {"rpc", "code"}),
    "persys_scheduler_reconciliation_results": ("counter", {"action", "success"}),
    "persys_scheduler_reconciliation_cycle_duration_seconds": ("histogram", set()),
    "persys_scheduler_reconciliation_cycles": ("counter", {"result"}),
    "persys_scheduler_nodes_status": ("gauge", {"status"}),
    "persys_scheduler_workloads_status": ("gauge", {"status"}),
    "persys_scheduler_workloads_desired_state": ("gauge", {"desired_state"}),
    "persys_scheduler_state_store_writes": ("counter", {"category"}),
}


def families(metrics: Metrics) -> dict[str, object]:
    """Return the exposition, parsed."""
    return {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}


def test_F89_every_metric_of_the_reference_system_is_there_with_its_labels() -> None:
    """Names, types and labels are those that its dashboards query."""
    metrics = Metrics(process=False)
    metrics.grpc_requests.labels("/a.B/C", go_code("OK")).inc()
    metrics.grpc_duration.labels("/a.B/C", "OK").observe(0.1)
    metrics.agent_call("ApplyWorkload", "UNAVAILABLE", 0.2)
    metrics.reconciled("Apply", success=True)
    metrics.reconciliation_duration.observe(12)
    metrics.reconciliation_cycles.labels("success").inc()
    metrics.store_writes.labels("spec").inc()
    metrics.observe_fleet(FleetFigures)
    found = families(metrics)
    for name, (kind, labels) in REFERENCE.items():
        family = found[name]
        assert family.type == kind, name  # type: ignore[attr-defined]
        sample = family.samples[0]  # type: ignore[attr-defined]
        assert set(sample.labels) - {"le"} == labels, name
    text = metrics.exposition().decode()
    assert 'agent_rpc_requests_total{code="Unavailable",rpc="ApplyWorkload"} 1.0' in text
    assert 'reconciliation_results_total{action="Apply",success="true"} 1.0' in text


def test_F89_a_state_that_nobody_is_in_any_more_does_not_keep_its_last_value() -> None:
    """Pre-set states go to 0, others vanish."""
    figures = FleetFigures(
        nodes={"Ready": 2, "Draining": 1}, workloads={"Scheduled": 3, "": 1}, gauges={"redis_up": 1.0}
    )
    metrics = Metrics(process=False)
    metrics.observe_fleet(lambda: figures)
    text = metrics.exposition().decode()
    assert 'nodes_status{status="ready"} 2.0' in text
    assert 'nodes_status{status="draining"} 1.0' in text
    assert 'workloads_status{status="unknown"} 1.0' in text
    assert "persys_scheduler_redis_up 1.0" in text
    figures = FleetFigures()
    text = metrics.exposition().decode()
    assert 'nodes_status{status="ready"} 0.0' in text
    assert "draining" not in text
    assert "scheduled" not in text
    assert "redis_up" not in text


def test_codes_are_spelt_as_go_does() -> None:
    """Every gRPC code has its Go name; CANCELLED has one L less."""
    assert {go_code(code.name) for code in grpc.StatusCode} >= {"OK", "Canceled", "Unknown", "NotFound", "DataLoss"}
    assert all("_" not in go_code(code.name) for code in grpc.StatusCode)


@pytest.mark.parametrize(
    ("prefix", "category"),
    [("/workloads-spec/", "spec"), ("/nodes/", "node"), ("/", "cluster"), ("/a/b/", "a_b")],
)
def test_writes_are_counted_by_what_they_write(prefix: str, category: str) -> None:
    """Categories are the reference system's where it has one."""
    assert category_of(prefix) == category
    metrics = Metrics(process=False)
    store = Store(MemoryEtcd())
    metrics.follow_store(store)
    store.on_write(prefix)
    store.on_conflict(prefix)
    text = metrics.exposition().decode()
    assert f'state_store_writes_total{{category="{category}"}} 1.0' in text
    assert f'state_store_conflicts_total{{category="{category}"}} 1.0' in text


def test_two_processes_parts_do_not_share_a_registry() -> None:
    """Tests and embedded fronts may have several; each counts for itself, process metrics included."""
    one, two = Metrics(), Metrics()
    one.dropped.labels("usage").inc()
    assert b'dropped_total{what="usage"}' not in two.exposition()
    assert b"python_gc_objects_collected_total" in one.exposition()


def test_gauges_say_what_they_mean() -> None:
    """Each has a text of its own."""
    assert len(set(GAUGES.values())) == len(GAUGES)


def test_F89_reconcile_cycles_are_counted_and_timed_by_result() -> None:
    """Other loops' cycles are not reconcile cycles."""
    metrics = Metrics(process=False)
    metrics.cycle_ended("reconcile", success=True, seconds=0.4)
    metrics.cycle_ended("reconcile", success=False, seconds=70.0)
    metrics.cycle_ended("monitor_nodes", success=True, seconds=1.0)
    shown = metrics.exposition().decode()
    assert 'persys_scheduler_reconciliation_cycles_total{result="success"} 1.0' in shown
    assert 'persys_scheduler_reconciliation_cycles_total{result="error"} 1.0' in shown
    assert "persys_scheduler_reconciliation_cycle_duration_seconds_count 2.0" in shown
