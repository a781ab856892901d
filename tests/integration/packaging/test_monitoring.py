"""The dashboard, the alert rules and the configuration of Prometheus (row F89), held to the metrics there are."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from scheduler.cli.main import cli
from tests.support import beds
from tests.support.metrics_page import Row, rows

ROOT = pathlib.Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "dashboards" / "persys-scheduler.json"
BY_SERIES = {name: row for row in rows() for name in row.series}
OF_SCRAPES = {"job", "instance"}
AGGREGATED = re.compile(r"(max|sum|count)( by \([^)]*\))? ?\((\w+\()?$")
"""The innermost aggregation around what comes next, over its rate or itself."""
REFERENCE_PANELS = {
    "Ready Nodes": ("stat", "nodes_status"),
    "NotReady/Unknown Nodes": ("stat", "nodes_status"),
    "Active Workloads": ("stat", "workloads_status"),
    "Scheduler gRPC RPS (5m)": ("stat", "grpc_server_requests_total"),
    "Inbound gRPC Requests by Method/Code": ("timeseries", "grpc_server_requests_total"),
    "Inbound gRPC Latency (p95/p99)": ("timeseries", "grpc_server_request_duration_seconds_bucket"),
    "Scheduler -> Agent RPC Rate": ("timeseries", "agent_rpc_requests_total"),
    "Scheduler -> Agent RPC Latency (p95/p99)": ("timeseries", "agent_rpc_duration_seconds_bucket"),
    "Reconciliation Results": ("timeseries", "reconciliation_results_total"),
    "Reconciliation Cycle Duration": ("timeseries", "reconciliation_cycle_duration_seconds_bucket"),
    "Reconciliation Cycles": ("timeseries", "reconciliation_cycles_total"),
    "Workload Status vs Desired State": ("timeseries", "workloads_status"),
}
AT_NIGHT = {
    "FleetbeatNoLeader", "FleetbeatCyclesLate", "FleetbeatNodesNotReady", "FleetbeatBrakeHeld",
    "FleetbeatPendingTooLong", "FleetbeatWorkloadsFailed", "FleetbeatEtcdSlow", "FleetbeatEtcdUnavailable",
    "FleetbeatRedisDown", "FleetbeatFrontNotReady", "FleetbeatConflictStorm", "FleetbeatDriftOpen",
    "FleetbeatModeNotNormal",
}  # fmt: skip


def panels() -> list[dict[str, Any]]:
    """Return the panels that show something."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    """Return the alert rules."""
    groups = yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield every query: where it stands, itself, and the texts that show its labels."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"], target["legendFormat"]
    for rule in rules():
        yield rule["alert"], rule["expr"], " ".join(rule["annotations"].values())


QUERIES = list(queries())


def used(query: str) -> list[Row]:
    """Return the metrics of ours in a query; fail for one that does not exist."""
    return [BY_SERIES[name] for name in re.findall(r"persys_scheduler_\w+", query)]


@pytest.mark.parametrize(("query", "texts"), [q[1:] for q in QUERIES], ids=[q[0] for q in QUERIES])
def test_F89_every_query_asks_for_metrics_and_labels_that_exist(query: str, texts: str) -> None:
    """In selectors, in what is grouped by, in legends and in the texts of alerts."""
    known = {label for row in used(query) for label in row.labels} | OF_SCRAPES | {"le"}
    for name, selector in re.findall(r"(persys_scheduler_\w+)\{([^}]*)\}", query):
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        assert asked <= {*BY_SERIES[name].labels, *OF_SCRAPES, "le"}, name
    grouped = {label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in re.findall(r"\w+", group)}
    assert grouped <= known
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)", texts))
    assert shown <= known


@pytest.mark.parametrize("query", [q[1] for q in QUERIES], ids=[q[0] for q in QUERIES])
def test_F89_what_all_fronts_tell_alike_is_not_added_up(query: str) -> None:
    """Else two fronts would double the fleet, which the reference system does."""
    for name in re.findall(r"persys_scheduler_\w+", query):
        found = AGGREGATED.search(query[: query.index(name)])
        taken = found[0] if found else ""
        if BY_SERIES[name].is_alike:
            assert taken.startswith(("max", "sum by (job, instance) ")), name
        else:
            assert not taken.startswith("max"), name


def test_F89_the_dashboard_has_the_panels_of_the_reference_system() -> None:
    """Its uid, its title, its refresh, and its twelve panels by name, type and metric; ids and places are unique."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert (dashboard["uid"], dashboard["title"]) == ("persys_scheduler_monitoring", "Persys Scheduler Monitoring")
    assert dashboard["refresh"] == "10s"
    by_title = {panel["title"]: panel for panel in panels()}
    for title, (kind, metric) in REFERENCE_PANELS.items():
        assert by_title[title]["type"] == kind, title
        assert f"persys_scheduler_{metric}{{" in by_title[title]["targets"][0]["expr"], title
    everything = dashboard["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in everything}) == len(everything)


def test_F89_the_dashboard_chooses_its_job_and_its_data_source() -> None:
    """So that it serves any number of clusters, and any Grafana."""
    variables = {one["name"] for one in json.loads(DASHBOARD.read_text())["templating"]["list"]}
    assert variables == {"job", "datasource"}
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            asked = re.findall(r"persys_scheduler_\w+(\{[^}]*\})?", target["expr"])
            assert asked
            assert all('job=~"$job"' in selector for selector in asked), panel["title"]


def test_F89_the_dashboard_shows_every_metric() -> None:
    """What is measured and never looked at is measured in vain."""
    shown = {row.name for panel in panels() for target in panel["targets"] for row in used(target["expr"])}
    periods = {"persys_scheduler_cycle_period_seconds"}  # only the alert compares with it
    assert {row.name for row in rows()} - shown == periods


def test_the_alerts_say_what_happened_and_what_to_do() -> None:
    """Severity, patience, summary, description; and those that somebody must be woken for are there."""
    found = {rule["alert"]: rule for rule in rules()}
    assert len(found) == len(rules())
    assert found.keys() >= AT_NIGHT
    for name, rule in found.items():
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert re.fullmatch(r"\d+[sm]", rule["for"]), name
        assert len(rule["annotations"]["summary"]) < 120, name
        assert len(rule["annotations"]["description"]) > 60, name


def test_the_commands_and_pages_that_alerts_point_to_exist() -> None:
    """At night nobody wants to guess."""
    context = click.Context(cli)
    for rule in rules():
        text = rule["annotations"]["description"]
        for page in re.findall(r"docs/[\w/-]+\.md", text):
            assert (ROOT / page).is_file(), page
        for group, name in re.findall(r"\bfleetbeat ([a-z]+)(?: ([a-z]+))?", text):
            command = cli.get_command(context, group)
            assert command, group
            if isinstance(command, click.Group):
                assert command.get_command(context, name), f"{group} {name}"


def test_grafana_finds_its_dashboards_and_its_data_source() -> None:
    """The provisioning files fit the layout in which they are mounted."""
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "fleetbeat.yml").read_text())["providers"]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    services = yaml.safe_load((ROOT / "deploy" / "monitoring.yaml").read_text())["services"]
    mounts = dict(volume.split(":")[:2] for service in services.values() for volume in service["volumes"])
    assert mounts["./deploy/grafana/dashboards"] == provider["options"]["path"]
    assert source["url"] == "http://prometheus:9090"
    assert all((ROOT / path).exists() for path in mounts if path.startswith("./"))


def test_docker_compose_accepts_the_monitoring_beside_the_layout() -> None:
    """And insists on a password for Grafana."""
    docker = shutil.which("docker")
    present = (
        docker and subprocess.run([docker, "compose", "version"], check=False, capture_output=True).returncode == 0
    )
    beds.need("compose", present, "docker compose is not installed")
    check = ["docker", "compose", "--env-file", "/dev/null", "-f", "compose.yaml", "-f", "deploy/monitoring.yaml"]
    secrets = {"REDIS_PASSWORD": "r", "FLOWER_PASSWORD": "f", "GRAFANA_PASSWORD": "g"}
    bare = {name: value for name, value in os.environ.items() if name not in secrets}
    good = subprocess.run(
        [*check, "config", "-q"], cwd=ROOT, env=bare | secrets, capture_output=True, text=True, check=False
    )
    assert good.returncode == 0, good.stderr
    del secrets["GRAFANA_PASSWORD"]
    refused = subprocess.run([*check, "config", "-q"], cwd=ROOT, env=bare | secrets, capture_output=True, check=False)
    assert refused.returncode != 0


@pytest.mark.parametrize(
    "arguments",
    [("check", "rules", "alerts.yaml"), ("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yaml")],
    ids=["rules", "config", "tests"],
)
def test_promtool_accepts_the_rules_the_configuration_and_the_tests_of_the_rules(arguments: tuple[str, ...]) -> None:
    """The real judge; the tests say of each alert when it comes and when it does not."""
    promtool = shutil.which("promtool")
    beds.need("promtool", promtool, "promtool is not installed (Debian: prometheus)")
    ran = subprocess.run(["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_tests_of_the_rules_cover_what_wakes_people() -> None:
    """Each alert for the night has a time at which it fires and, in the same file, one at which it does not."""
    text = (PROMETHEUS / "alerts_test.yaml").read_text()
    tested = set(re.findall(r'alertname="(\w+)"', text)) | set(re.findall(r"alertname: (\w+)", text))
    assert tested >= AT_NIGHT - {"FleetbeatFrontNotReady"}
    assert tested <= {rule["alert"] for rule in rules()}
