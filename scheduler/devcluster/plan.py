"""Which processes make an embedded cluster: their commands, order and environment. Pure."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from scheduler.devcluster import probes
from scheduler.devcluster.binaries import Binary
from scheduler.devcluster.folder import Folder

SERVERS, CONTROL, AGENTS = 0, 1, 2
"""The stages of a start, each awaited before the next; a stop goes the other way."""

AGENT_CPU_MILLICORES, AGENT_MEMORY_MB, AGENT_DISK_GB = 4000, 4096, 20
"""What each agent offers: make-believe on a small machine, but the same on every machine."""

FAST_SETTINGS: Mapping[str, str] = {
    "FLEETBEAT_HEARTBEAT_INTERVAL": "1s",
    "FLEETBEAT_NODE_LEASE": "3s",
    "SCHEDULER_NODE_UNAVAILABLE_GRACE": "5s",
    "FLEETBEAT_EXCLUSIVE_STOP_AFTER": "10s",
    "SCHEDULER_RECONCILE_INTERVAL": "1s",
    "FLEETBEAT_MONITOR_NODES_INTERVAL": "1s",
    "FLEETBEAT_MONITOR_WORKLOADS_INTERVAL": "5s",
    "FLEETBEAT_LEADER_LEASE": "3s",
    "FLEETBEAT_CYCLE_LEASE": "3s",
    "SCHEDULER_AGENT_RPC_TIMEOUT": "5s",
    "LOG_FORMAT": "text",
}
"""One machine can afford to be quick. What the user's environment says instead wins."""

_NOT_HANDED_ON = (
    "FLEETBEAT_SERVER", "FLEETBEAT_DATA", "FLEETBEAT_BROKER_URL", "FLEETBEAT_FRONT_ID", "FLEETBEAT_ETCD_PREFIX",
    "FLEETBEAT_ETCD_USER", "FLEETBEAT_ETCD_PASSWORD", "FLEETBEAT_ETCD_CA", "FLEETBEAT_ETCD_CERT", "FLEETBEAT_ETCD_KEY",
    "FLEETBEAT_CLUSTER_ID", "REDIS_PASSWORD", "REDIS_DB", "SCHEDULER_AGENT_TLS_ENABLED",
    "FLEETBEAT_TLS", "PERSYS_TLS_CA", "PERSYS_TLS_CERT", "PERSYS_TLS_KEY", "FLEETBEAT_AUTHORIZATION",
    "PERSYS_VAULT_ENABLED",
    "FLEETBEAT_CA", "FLEETBEAT_CERT", "FLEETBEAT_KEY", "FLEETBEAT_AGENT_CA", "FLEETBEAT_AGENT_CERT",
    "FLEETBEAT_AGENT_KEY", "FLEETBEAT_AGENT_CONTROL_PLANE_NAMES",
)  # fmt: skip
"""Settings that lead to some other cluster, or that a cluster on the loopback address has no use for."""

_PYTHON = (sys.executable, "-m")
_FLEETBEAT = (*_PYTHON, "scheduler.cli")
_CELERY = (*_PYTHON, "celery", "-A", "tasks")


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    agents: int = 3
    shards: int = 2
    workers_per_shard: int = 1
    fronts: int = 1


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process of the cluster: what to run, when, and how to know that it works."""

    name: str
    stage: int
    command: tuple[str, ...]
    works: Callable[[probes.Subject], Awaitable[bool]]
    environment: Mapping[str, str] = field(default_factory=dict)
    grace_seconds: float = 10.0
    blind_to: str = "\0"
    """Variables whose names begin so are kept from it."""


@dataclass(frozen=True, slots=True)
class Site:
    """What was asked for and where it lives: folder, servers and ports."""

    options: Options
    folder: Folder
    etcd: Binary
    redis: Binary
    ports: Mapping[str, int]
    has_docker: bool

    @property
    def redis_folder(self) -> pathlib.Path:
        """Data of the broker. Its name carries product and version: an older server cannot read a newer one's files."""
        return self.folder.path(f"{self.redis.product}-{self.redis.version[0]}.{self.redis.version[1]}")

    def address(self, name: str) -> str:
        """host:port of a named port."""
        return f"127.0.0.1:{self.ports[name]}"

    def url(self, name: str, path: str = "") -> str:
        """HTTP address of a named port."""
        return f"http://{self.address(name)}{path}"


def port_names(options: Options) -> list[str]:
    """Return the name of every port that the cluster listens on."""
    fronts = [name for front in _fronts(options) for name in (front, f"{front}-metrics")]
    return ["etcd", "etcd-peer", "redis", "flower", *fronts, *_agents(options)]


def plan(site: Site) -> list[ChildSpec]:
    """Return the children of the cluster in the order of their start."""
    options = site.options
    return [
        _etcd(site),
        _redis(site),
        *(_front(site, name) for name in _fronts(options)),
        *(_worker(shard, replica) for shard in range(options.shards) for replica in range(options.workers_per_shard)),
        _beat(),
        _flower(site),
        *(_agent(site, name) for name in _agents(options)),
    ]


def environment(site: Site, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment that all children share."""
    kept = {name: value for name, value in inherited.items() if name not in _NOT_HANDED_ON}
    fast = dict(FAST_SETTINGS)
    if "FLEETBEAT_NODE_LEASE" in kept:  # a longer lease needs a longer time than the fast one
        del fast["FLEETBEAT_EXCLUSIVE_STOP_AFTER"]
    return {
        **fast,
        **kept,
        "ETCD_ENDPOINTS": site.address("etcd"),
        "REDIS_ADDR": site.address("redis"),
        "PERSYS_GRPC_ADDR": "127.0.0.1",
        "SCHEDULER_SHARD_COUNT": str(site.options.shards),
        "FLEETBEAT_MAX_SHARDS": str(site.options.shards),
        "PYTHONUNBUFFERED": "1",
    }


def addresses(site: Site) -> dict[str, object]:
    """Return how to reach the cluster, for cluster.json."""
    return {
        "server": _servers(site),
        "metrics": site.url("front-1-metrics", "/metrics"),
        "flower": site.url("flower"),
        "etcd": site.address("etcd"),
        "redis": site.address("redis"),
        "shards": site.options.shards,
        "agents": site.options.agents,
    }


def _fronts(options: Options) -> list[str]:
    return [f"front-{number}" for number in range(1, options.fronts + 1)]


def _servers(site: Site) -> str:
    return ",".join(site.address(name) for name in _fronts(site.options))


def _agents(options: Options) -> list[str]:
    return [f"agent-{number}" for number in range(1, options.agents + 1)]


def _etcd(site: Site) -> ChildSpec:
    client, peer = site.url("etcd"), site.url("etcd-peer")
    command = (
        site.etcd.path, "--name", "m0", "--data-dir", str(site.folder.path("etcd")),
        "--logger", "zap", "--log-level", "warn",
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m0={peer}",
        "--heartbeat-interval", "10", "--election-timeout", "100",
        "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "10m",
    )  # fmt: skip
    # etcd takes every ETCD_… variable for a setting of its own.
    return ChildSpec("etcd", SERVERS, command, probes.etcd_works(site.ports["etcd"]), blind_to="ETCD_")


def _redis(site: Site) -> ChildSpec:
    command = (
        site.redis.path, "--port", str(site.ports["redis"]), "--bind", "127.0.0.1", "--dir", str(site.redis_folder),
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "",
        "--maxmemory", "512mb", "--maxmemory-policy", "noeviction", "--daemonize", "no",
    )  # fmt: skip
    return ChildSpec("redis", SERVERS, command, probes.redis_works(site.ports["redis"]))


def _front(site: Site, name: str) -> ChildSpec:
    metrics = site.ports[f"{name}-metrics"]
    settings = {
        "GRPC_PORT": str(site.ports[name]),
        "METRICS_PORT": str(metrics),
        "FLEETBEAT_FRONT_ID": name,
        "FLEETBEAT_FLOWER_URL": site.url("flower"),
    }
    works = probes.all_work(probes.http_works(metrics, "/readyz"), probes.listens(site.ports[name]))
    return ChildSpec(name, CONTROL, (*_FLEETBEAT, "front"), works, settings)


def _worker(shard: int, replica: int) -> ChildSpec:
    name = f"shard-{shard}-{chr(ord('a') + replica)}"
    command = (*_CELERY, "worker", "-Q", f"shard-{shard}", "-n", f"{name}@%h")
    return ChildSpec(name, CONTROL, command, probes.log_says(b" ready."), grace_seconds=20)


def shard_of(name: str) -> int | None:
    """Return the shard that a child works for; None when it is no worker."""
    word, _, rest = name.partition("-")
    return int(rest.partition("-")[0]) if word == "shard" else None


def _beat() -> ChildSpec:
    return ChildSpec("beat", CONTROL, (*_CELERY, "beat"), probes.log_says(b"beat: Starting..."), grace_seconds=5)


def _flower(site: Site) -> ChildSpec:
    """Describe Flower: its HTTP API is open on the loopback, so it must not be able to change anything."""
    port = site.ports["flower"]
    command = (
        *_CELERY, "flower", "--address=127.0.0.1", f"--port={port}", "--read_only=True", "--max_tasks=10000",
        "--purge_offline_workers=60", "--inspect_timeout=3000",
        "--tasks_columns=name,kwargs,state,received,started,runtime,worker,routing_key",
    )  # fmt: skip
    settings = {"FLOWER_UNAUTHENTICATED_API": "true"}
    return ChildSpec("flower", CONTROL, command, probes.http_works(port, "/healthcheck"), settings, grace_seconds=5)


def _agent(site: Site, name: str) -> ChildSpec:
    address = site.address(name)
    command = [
        *_PYTHON, "agent", "--node-id", name,
        "--server", _servers(site),
        "--listen", address, "--advertise", address, "--data", str(site.folder.path("agents", name)),
        "--cpu-millicores", str(AGENT_CPU_MILLICORES), "--memory-mb", str(AGENT_MEMORY_MB),
        "--disk-gb", str(AGENT_DISK_GB),
        "--allow-host-processes", "--stop-workloads-on-exit", "--stop-grace", "5",
    ]  # fmt: skip
    if not site.has_docker:
        command.append("--no-docker")
    return ChildSpec(name, AGENTS, tuple(command), probes.listens(site.ports[name]), grace_seconds=25)
