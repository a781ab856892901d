"""The metrics reference lists exactly the metrics there are."""

from __future__ import annotations

import pathlib
import re

from prometheus_client.metrics import MetricWrapperBase

from scheduler.telemetry.metrics import GAUGES, LABELLED, FleetFigures, Metrics

_PAGE = pathlib.Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
_ROW = re.compile(r"\| `(persys_scheduler_\w+)` \| (\w+) \| ([^|]+) \| [^|]+ \|")

Row = tuple[str, str, tuple[str, ...]]


def rows() -> list[Row]:
    """Return name, type and labels of each row of the page."""
    found = filter(None, map(_ROW.fullmatch, _PAGE.read_text().splitlines()))
    return [(row[1], row[2], tuple(re.findall(r"`(\w+)`", row[3]))) for row in found]


def counted(metrics: Metrics) -> list[Row]:
    """Return the same of the counters and histograms."""
    found = [one for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)]
    return [(family.name, family.type, one._labelnames) for one in found for family in one.collect()]


def test_the_page_lists_every_metric_once_with_its_type_and_labels() -> None:
    """And nothing else."""
    metrics = Metrics(process=False)
    expected = counted(metrics)
    labelled = {name: {("x",) * len(labels): 1.0} for name, (_, labels) in LABELLED.items()}
    metrics.observe_fleet(lambda: FleetFigures(gauges=dict.fromkeys(GAUGES, 1.0), labelled=labelled))
    gauges = [family for family in metrics.registry.collect() if family.type == "gauge"]
    expected += [(family.name, "gauge", tuple(family.samples[0].labels)) for family in gauges]
    assert sorted(rows()) == sorted(expected)
