"""Every environment variable: name, default, meaning and check.

`Settings()` reads the environment; a wrong value raises `SettingsError`, which names the
variable, the value and what is allowed. Names and defaults follow the reference system
except where docs/reference/settings.md says otherwise; ours begin with FLEETBEAT_.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


class SettingsError(Exception):
    """A setting has a value that is not allowed."""


def parse_duration(value: object) -> object:
    """Turn "15s", "1m30s", "250ms" or a bare number of seconds into seconds."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        msg = 'is not a duration; write it as "15s", "2m", "1m30s", "250ms" or a number of seconds'
        raise ValueError(msg)
    return sum(float(n) * _UNITS[u] for n, u in parts)


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


Seconds = Annotated[float, BeforeValidator(parse_duration)]
Csv = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
Port = Annotated[int, Field(ge=1, le=65535)]


def env(name: str, default: Any, meaning: str, **checks: Any) -> Any:
    """Declare a setting read from this environment variable."""
    return Field(default=default, validation_alias=AliasChoices(name), description=meaning, **checks)


class Settings(BaseSettings):
    """The effective configuration of one process."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, populate_by_name=True, str_strip_whitespace=True)

    # Front
    grpc_addr: str = env("PERSYS_GRPC_ADDR", "0.0.0.0", "Bind address of the gRPC and HTTP servers.")  # noqa: S104 - agents are on other hosts
    grpc_port: Port = env("GRPC_PORT", 8085, "Port of the gRPC front.")
    metrics_port: Port = env("METRICS_PORT", 8084, "Port of /metrics, /healthz and /readyz.")
    front_id: str = env("FLEETBEAT_FRONT_ID", "", "Name of this front; blank: host name and a random part.")

    # etcd
    etcd_endpoints: Csv = env(
        "ETCD_ENDPOINTS", ("localhost:2379",), "etcd members, host:port, comma-separated.", min_length=1
    )
    etcd_prefix: str = env(
        "FLEETBEAT_ETCD_PREFIX", "", "Root under which all keys lie; blank or /name.", pattern=r"^(/[A-Za-z0-9._-]+)*$"
    )
    etcd_timeout_seconds: Seconds = env("FLEETBEAT_ETCD_TIMEOUT", 3.0, "Deadline of one etcd call.", gt=0, le=60)
    etcd_user: str = env("FLEETBEAT_ETCD_USER", "", "etcd user; blank: no password login.")
    etcd_password: SecretStr = env("FLEETBEAT_ETCD_PASSWORD", SecretStr(""), "Password of the etcd user.")
    etcd_ca: str = env("FLEETBEAT_ETCD_CA", "", "CA file; set: TLS towards etcd.")
    etcd_cert: str = env("FLEETBEAT_ETCD_CERT", "", "Client certificate file for etcd.")
    etcd_key: str = env("FLEETBEAT_ETCD_KEY", "", "Key file of the client certificate.")

    # Broker and telemetry
    redis_addr: str = env(
        "REDIS_ADDR", "", "host:port of Redis for telemetry; blank: the broker's, when that is Redis."
    )
    redis_password: SecretStr = env("REDIS_PASSWORD", SecretStr(""), "Password of Redis.")
    redis_db: int = env("REDIS_DB", 0, "Database of the telemetry in Redis.", ge=0)
    broker_url: SecretStr = env("FLEETBEAT_BROKER_URL", SecretStr(""), "Celery broker; blank: redis://REDIS_ADDR/1.")
    redis_event_ttl_seconds: Seconds = env("REDIS_EVENT_TTL", 86400.0, "How long events stay.", gt=0)
    redis_event_max_entries: int = env("REDIS_EVENT_MAX_ENTRIES", 1000, "How many events stay.", ge=1, le=1_000_000)

    # Shards and cycles
    shard_count: int = env("SCHEDULER_SHARD_COUNT", 1, "First shard count of a new cluster.", ge=1, le=1024)
    shard_hash: Literal["jump", "crc32"] = env(
        "SCHEDULER_SHARD_HASH", "jump", "How nodes map to shards in a new cluster."
    )
    shard_key: str = env("SCHEDULER_SHARD_KEY", "genesis", "DNS path element and node label scheduler_shard.")
    reconcile_interval_seconds: Seconds = env(
        "SCHEDULER_RECONCILE_INTERVAL", 5.0, "Period of the reconcile cycle.", ge=0.2, le=3600
    )
    drift_interval_seconds: Seconds = env(
        "SCHEDULER_DRIFT_DETECT_INTERVAL", 300.0, "Period of drift detection.", ge=0.2, le=86400
    )
    monitor_nodes_interval_seconds: Seconds = env(
        "FLEETBEAT_MONITOR_NODES_INTERVAL", 5.0, "Period of the node monitor.", ge=0.2, le=3600
    )
    monitor_workloads_interval_seconds: Seconds = env(
        "FLEETBEAT_MONITOR_WORKLOADS_INTERVAL", 60.0, "Period of the workload monitor.", ge=0.2, le=3600
    )
    reconcile_concurrency: int = env(
        "SCHEDULER_RECONCILE_CONCURRENCY", 64, "Agent calls in flight in one process.", ge=1, le=1024
    )
    calls_per_node: int = env("FLEETBEAT_CALLS_PER_NODE", 4, "Agent calls in flight to one node.", ge=1, le=64)
    chunk_nodes: int = env("FLEETBEAT_CHUNK_NODES", 50, "Nodes in one chunk of a cycle.", ge=1, le=1000)
    leader_lease_seconds: Seconds = env("FLEETBEAT_LEADER_LEASE", 5.0, "Lease of the elected beat.", ge=2, le=60)

    # Liveness
    heartbeat_interval_seconds: Seconds = env(
        "FLEETBEAT_HEARTBEAT_INTERVAL", 10.0, "How often agents report.", ge=0.1, le=600
    )
    node_lease_seconds: Seconds = env(
        "FLEETBEAT_NODE_LEASE", 30.0, "Silence after which a node is NotReady.", ge=0.3, le=3600
    )
    node_grace_seconds: Seconds = env(
        "SCHEDULER_NODE_UNAVAILABLE_GRACE", 60.0, "NotReady time after which work moves.", ge=0, le=86400
    )
    brake_share: float = env(
        "FLEETBEAT_BRAKE_SHARE",
        1 / 3,
        "Share of a shard's nodes falling silent at once that holds all moves.",
        gt=0,
        le=1,
    )
    brake_min_nodes: int = env("FLEETBEAT_BRAKE_MIN_NODES", 3, "The brake needs at least this many silent nodes.", ge=1)

    # Agents
    agent_rpc_timeout_seconds: Seconds = env(
        "SCHEDULER_AGENT_RPC_TIMEOUT", 10.0, "Deadline of one call to an agent.", gt=0, le=300
    )
    reapply_guard_seconds: Seconds = env(
        "SCHEDULER_REAPPLY_GUARD", 45.0, "Base of the crash-loop guard; below 15 s counts as 15 s.", gt=0
    )
    agent_tls_enabled: bool = env("SCHEDULER_AGENT_TLS_ENABLED", default=False, meaning="mTLS towards agents.")

    # Placement
    overcommit_cpu: float = env(
        "FLEETBEAT_OVERCOMMIT_CPU", 1.0, "CPU that may be committed, as a multiple of capacity.", gt=0, le=100
    )
    overcommit_memory: float = env(
        "FLEETBEAT_OVERCOMMIT_MEMORY", 1.0, "Memory that may be committed, as a multiple of capacity.", gt=0, le=100
    )
    overcommit_disk: float = env(
        "FLEETBEAT_OVERCOMMIT_DISK", 1.0, "Disk that may be committed, as a multiple of capacity.", gt=0, le=100
    )

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = env("LOG_LEVEL", "info", "Least level that is logged.")
    log_format: Literal["json", "text"] = env("LOG_FORMAT", "json", "json or text.")

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.node_lease_seconds < 2 * self.heartbeat_interval_seconds:
            msg = (
                f"FLEETBEAT_NODE_LEASE={self.node_lease_seconds:g}s must be at least twice "
                f"FLEETBEAT_HEARTBEAT_INTERVAL={self.heartbeat_interval_seconds:g}s"
            )
            raise ValueError(msg)
        if bool(self.etcd_cert) != bool(self.etcd_key):
            msg = "FLEETBEAT_ETCD_CERT and FLEETBEAT_ETCD_KEY must be given together"
            raise ValueError(msg)
        return self

    @property
    def period_seconds(self) -> dict[str, float]:
        """The period of each loop."""
        return {
            "reconcile": self.reconcile_interval_seconds,
            "detect_drift": self.drift_interval_seconds,
            "monitor_nodes": self.monitor_nodes_interval_seconds,
            "monitor_workloads": self.monitor_workloads_interval_seconds,
        }


def load() -> Settings:
    """Read the environment; raises SettingsError that names each wrong variable, its value and what is allowed."""
    try:
        return Settings()
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(e) for e in error.errors())) from None


def _explain(error: Any) -> str:
    if not error["loc"]:
        return str(error["msg"]).removeprefix("Value error, ")
    name = error["loc"][0]
    secret = isinstance(error["input"], SecretStr) or "PASSWORD" in str(name) or "URL" in str(name)
    shown = "***" if secret else error["input"]
    return f"{name}={shown}: {str(error['msg']).removeprefix('Value error, ')}"
