"""The plan of an embedded cluster: which processes, with which settings, in which order."""

from __future__ import annotations

import pathlib
import re

import pytest

from scheduler import settings
from scheduler.devcluster.binaries import Binary
from scheduler.devcluster.folder import Folder
from scheduler.devcluster.plan import (
    AGENTS,
    CONTROL,
    FAST_SETTINGS,
    SERVERS,
    Options,
    Site,
    addresses,
    environment,
    plan,
    port_names,
)


def site(folder: pathlib.Path, options: Options | None = None, *, has_docker: bool = False) -> Site:
    """Describe a cluster on made-up ports."""
    options = options or Options()
    ports = {name: 12000 + number for number, name in enumerate(port_names(options))}
    etcd = Binary("/usr/bin/etcd", "etcd", (3, 4, 23))
    return Site(options, Folder(folder), etcd, Binary("/r", "redis", (7, 0, 15)), ports, has_docker)


def test_the_default_is_what_the_tutorial_shows(tmp_path: pathlib.Path) -> None:
    """etcd, Redis, one front, a worker for each of two shards, beat, Flower, three agents; in stages."""
    specs = plan(site(tmp_path))
    assert [(s.name, s.stage) for s in specs] == [
        ("etcd", SERVERS),
        ("redis", SERVERS),
        ("front-1", CONTROL),
        ("shard-0-a", CONTROL),
        ("shard-1-a", CONTROL),
        ("beat", CONTROL),
        ("flower", CONTROL),
        ("agent-1", AGENTS),
        ("agent-2", AGENTS),
        ("agent-3", AGENTS),
    ]


def test_workers_and_fronts_scale_and_have_names_of_their_own(tmp_path: pathlib.Path) -> None:
    """Two workers of one shard must not share a name, or Celery takes them for one."""
    options = Options(agents=0, shards=3, workers_per_shard=2, fronts=2)
    specs = plan(site(tmp_path, options))
    workers = [s for s in specs if "worker" in s.command]
    assert [s.name for s in workers] == [f"shard-{k}-{r}" for k in range(3) for r in "ab"]
    assert all(f"{s.name}@%h" in s.command for s in workers)
    assert len({s.name for s in specs}) == len(specs)
    assert str(addresses(site(tmp_path, options))["server"]).count(",") == 1


def test_every_process_listens_on_the_loopback_only(tmp_path: pathlib.Path) -> None:
    """Nothing of an embedded cluster is reachable from outside: no command names another address."""
    place = site(tmp_path)
    for spec in plan(place):
        for word in spec.command:
            assert "0.0.0.0" not in word, spec.name  # noqa: S104 - looking for it
    by_name = {s.name: s.command for s in plan(place)}
    assert "127.0.0.1" in by_name["redis"][by_name["redis"].index("--bind") + 1]
    assert "--address=127.0.0.1" in by_name["flower"]
    assert environment(place, {})["PERSYS_GRPC_ADDR"] == "127.0.0.1"


def test_an_open_flower_api_is_read_only(tmp_path: pathlib.Path) -> None:
    """Without a login Flower's API could shut workers down; it is only open together with --read_only."""
    flower = next(s for s in plan(site(tmp_path)) if s.name == "flower")
    assert flower.environment["FLOWER_UNAUTHENTICATED_API"] == "true"
    assert "--read_only=True" in flower.command


def test_agents_look_for_docker_only_where_an_engine_answered(tmp_path: pathlib.Path) -> None:
    """The flag --no-docker spares each agent the search."""
    without = next(s for s in plan(site(tmp_path)) if s.name == "agent-1")
    having = next(s for s in plan(site(tmp_path, has_docker=True)) if s.name == "agent-1")
    assert "--no-docker" in without.command
    assert "--no-docker" not in having.command


def test_settings_that_lead_to_another_cluster_are_not_handed_on(tmp_path: pathlib.Path) -> None:
    """Addresses and passwords of another cluster in the user's shell must not reach this one's processes."""
    shell = {
        "ETCD_ENDPOINTS": "prod:2379",
        "REDIS_ADDR": "prod:6379",
        "REDIS_PASSWORD": "x",
        "FLEETBEAT_BROKER_URL": "amqp://prod",
        "FLEETBEAT_ETCD_PREFIX": "/prod",
        "FLEETBEAT_SERVER": "prod:8085",
        "FLEETBEAT_TLS": "x",
        "PERSYS_TLS_CERT": "/etc/prod.crt",
        "PERSYS_VAULT_ENABLED": "x",
        "FLEETBEAT_AUTHORIZATION": "x",
        "FLEETBEAT_AGENT_CA": "/etc/prod.pem",
        "PATH": "/bin",
    }
    given = environment(site(tmp_path), shell)
    assert not [name for name, value in given.items() if "prod" in value or value == "x"]
    assert given["PATH"] == "/bin"


def test_the_users_own_settings_win_over_the_fast_ones(tmp_path: pathlib.Path) -> None:
    """`FLEETBEAT_NODE_LEASE=30s fleetbeat up` means what it says."""
    given = environment(site(tmp_path), {"FLEETBEAT_NODE_LEASE": "30s"})
    assert given["FLEETBEAT_NODE_LEASE"] == "30s"
    assert given["FLEETBEAT_HEARTBEAT_INTERVAL"] == "1s"


def test_the_fast_settings_are_allowed_together(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process checks its settings at its start; these pass."""
    for name in ("ETCD_ENDPOINTS", "REDIS_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment(site(tmp_path), {}).items():
        monkeypatch.setenv(name, value)
    found = settings.load()
    assert (found.heartbeat_interval_seconds, found.node_lease_seconds, found.node_grace_seconds) == (1, 3, 5)
    assert found.shard_count == 2


def test_the_reference_lists_the_fast_settings() -> None:
    """docs/reference/embedded-cluster.md says what `up` sets, no more and no less."""
    page = pathlib.Path(__file__).parents[3] / "docs/reference/embedded-cluster.md"
    listed = dict(re.findall(r"^\| `([A-Z_]+)` \| (\S+) \|$", page.read_text(), re.MULTILINE))
    assert listed == dict(FAST_SETTINGS)
