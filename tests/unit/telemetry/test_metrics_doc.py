"""The metrics reference lists exactly the metrics there are, each where it belongs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from scheduler.telemetry.metrics import GAUGES, LABELLED, FleetFigures, Metrics
from tests.support.metrics_page import rows

Known = tuple[str, str, tuple[str, ...]]


def counted(metrics: Metrics) -> list[Known]:
    """Return name, type and labels of the counters and histograms."""
    found = [one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)]
    return [(family.name, family.type, one._labelnames) for one in found for family in one.collect()]


def names(registry: CollectorRegistry) -> set[str]:
    """Return the names of what a registry has."""
    return {family.name for family in registry.collect()}


def test_the_page_lists_every_metric_once_with_its_type_and_labels() -> None:
    """And nothing else."""
    metrics = Metrics(process=False)
    expected = counted(metrics)
    labelled = {name: {("x",) * len(labels): 1.0} for name, (_, labels) in LABELLED.items()}
    metrics.observe_fleet(lambda: FleetFigures(gauges=dict.fromkeys(GAUGES, 1.0), labelled=labelled))
    gauges = [family for family in metrics.registry.collect() if family.type == "gauge"]
    expected += [(family.name, "gauge", tuple(family.samples[0].labels)) for family in gauges]
    assert sorted((row.name, row.kind, row.labels) for row in rows()) == sorted(expected)


def test_what_processes_add_up_is_listed_as_such() -> None:
    """Whoever writes a query learns there whether to add fronts up or to take any of them."""
    metrics = Metrics(process=False)
    sections = {row.name: row.section for row in rows() if row.kind != "gauge"}
    assert {name for name, section in sections.items() if section == "Of one front"} == names(metrics.registry)
    assert {name for name, section in sections.items() if section == "Of all processes together"} == names(metrics.work)
