"""Every environment variable: name, default, meaning and check.

`load()` reads the environment; wrong values raise one `SettingsError` that names each
variable, its value and what is allowed. Names and defaults follow the reference system
except where docs/reference/settings.md says otherwise; ours begin with FLEETBEAT_.

Blanks around a value are dropped, and a blank value counts as not set.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import BeforeValidator, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from scheduler.domain.drift import OrphanPolicy
from scheduler.settings_unread import unknown_variables, unread_variables
from scheduler.settings_values import (
    BindHost,
    BrokerUrl,
    Domain,
    Endpoints,
    Flag,
    GitOrigins,
    Names,
    Number,
    OptionalHostPort,
    OptionalIp,
    Port,
    Seconds,
    Whole,
    allowed_values,
    env,
    flag_or_auto,
    format_duration,
    level,
    lower,
    variable_of,
)
from scheduler.tls.files import TlsFiles

_log = logging.getLogger(__name__)
_DOMAIN = "a domain name, or - for none"


_MOUNT = r"^[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*$"


class SettingsError(Exception):
    """A setting has a value that is not allowed."""


class _Environment(PydanticBaseSettingsSource):
    """Reads exactly the declared names.

    The library's own source also takes the field's Python name in any case, so that a
    stray SHARD_COUNT or BROKER_URL of another program would change the configuration.
    """

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002 - the base's
        name = variable_of(field)
        return os.environ.get(name, "").strip() or None, name, False

    def __call__(self) -> dict[str, Any]:
        read = (self.get_field_value(f, n) for n, f in self.settings_cls.model_fields.items())
        return {name: value for value, name, _ in read if value is not None}


class Settings(BaseSettings):
    """The effective configuration of one process."""

    model_config = SettingsConfigDict(
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        str_strip_whitespace=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    sections: ClassVar[dict[str, str]] = {
        "grpc_addr": "Front",
        "tls": "TLS and authorisation",
        "etcd_endpoints": "etcd",
        "redis_addr": "Broker and telemetry",
        "shard_count": "Shards and cycles",
        "heartbeat_interval_seconds": "Liveness",
        "agent_rpc_timeout_seconds": "Agents",
        "overcommit_cpu": "Placement",
        "suggestion_max_age_seconds": "Automation",
        "otel_exporter_otlp_endpoint": "Traces",
        "log_level": "Logs",
    }
    """The first setting of each section, for people who read the configuration."""

    # Front
    grpc_addr: BindHost = env(
        "PERSYS_GRPC_ADDR",
        "0.0.0.0",  # noqa: S104 - agents are on other hosts
        "Bind address of the gRPC and HTTP servers.",
        allowed="a host name or an address",
    )
    grpc_port: Port = env("GRPC_PORT", 8085, "Port of the gRPC front.")
    metrics_port: Port = env(
        "METRICS_PORT", 8084, "Port of /metrics, /healthz and /readyz; must differ from GRPC_PORT."
    )
    domain: Domain = env(
        "DOMAIN",
        "persys.local",
        "Where the fronts' own DNS records are, _persys-scheduler and persys-scheduler; -: they write none.",
        allowed=_DOMAIN,
    )
    agents_domain: Domain = env(
        "AGENTS_DISCOVERY_DOMAIN",
        "agents.persys.cloud",
        "Where the DNS records of nodes are, {node}.{SCHEDULER_SHARD_KEY}.{domain}; -: they get none.",
        allowed=_DOMAIN,
    )
    advertise_ip: OptionalIp = env(
        "SCHEDULER_ADVERTISE_IP",
        "",
        "Where a front's DNS records lead to; blank: its bind address, or the machine's first that is not loopback.",
        allowed="an IP address",
    )
    advertise_port: Whole = env(
        "SCHEDULER_ADVERTISE_PORT", 0, "The port in a front's DNS records; 0: the one it listens on.", ge=0, le=65535
    )
    git_hosts: GitOrigins = env(
        "FLEETBEAT_GIT_HOSTS",
        (),
        "Hosts that compose files may be fetched from by git; blank: none.",
        allowed="comma-separated hosts (over https), or https://host, ssh://host, http://host, file:///folder",
    )
    git_timeout_seconds: Seconds = env(
        "FLEETBEAT_GIT_TIMEOUT", 10.0, "How long fetching a compose file by git may take.", ge=0.5, le=300
    )
    front_id: str = env(
        "FLEETBEAT_FRONT_ID",
        "",
        "Name of this front; blank: host name and a random part.",
        allowed="letters, digits, . _ -, at most 128",
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)?$",
    )

    flower_url: str = env(
        "FLEETBEAT_FLOWER_URL",
        "",
        "Where people find Flower; `fleetbeat status` shows it.",
        allowed="http://… or https://…",
        pattern=r"^(https?://[^\s@]+)?$",
    )

    # TLS and authorisation
    tls: Annotated[Literal["auto", "on", "off"], BeforeValidator(lower)] = env(
        "FLEETBEAT_TLS",
        "auto",
        "Whether the front speaks TLS, with certificates on both sides; auto: when a file of it is named.",
        reference="there: on unless started with -insecure",
    )
    tls_ca: str = env(
        "PERSYS_TLS_CA",
        "/etc/persys/certs/persys_scheduler/ca.pem",
        "CA file: of clients, of agents and of the front's own certificate.",
        allowed="a path",
    )
    tls_cert: str = env(
        "PERSYS_TLS_CERT",
        "/etc/persys/certs/persys_scheduler/persys_scheduler.crt",
        "Certificate file, towards clients and agents.",
        allowed="a path",
    )
    tls_key: str = env(
        "PERSYS_TLS_KEY",
        "/etc/persys/certs/persys_scheduler/persys_scheduler-key.key",
        "Key file of the certificate.",
        allowed="a path",
    )
    vault_enabled: Flag = env(
        "PERSYS_VAULT_ENABLED",
        default=False,
        meaning="Have a front issue and renew the certificate files from Vault; turns TLS on.",
        reference="there: true",
    )
    vault_addr: str = env(
        "PERSYS_VAULT_ADDR",
        "http://localhost:8200",
        "Where Vault answers.",
        allowed="http://host:port or https://host:port",
        pattern=r"^https?://[^\s@/?#]+/?$",
    )
    vault_ca: str = env(
        "FLEETBEAT_VAULT_CA", "", "CA file of Vault's own https; blank: the system's.", allowed="a path"
    )
    vault_auth_method: Annotated[Literal["token", "approle"], BeforeValidator(lower)] = env(
        "PERSYS_VAULT_AUTH_METHOD", "token", "How to sign in to Vault."
    )
    vault_token: SecretStr = env("PERSYS_VAULT_TOKEN", SecretStr(""), "Vault's token, for the method token.")
    vault_role_id: SecretStr = env("PERSYS_VAULT_APPROLE_ROLE_ID", SecretStr(""), "Role id, for the method approle.")
    vault_secret_id: SecretStr = env(
        "PERSYS_VAULT_APPROLE_SECRET_ID", SecretStr(""), "Secret id, for the method approle."
    )
    vault_approle_mount: str = env(
        "PERSYS_VAULT_APPROLE_MOUNT",
        "auth/approle",
        "Where AppRole is mounted.",
        allowed="a path without a slash at its ends",
        pattern=_MOUNT,
        reference="there: for buckets only",
    )
    vault_pki_mount: str = env(
        "PERSYS_VAULT_PKI_MOUNT",
        "pki",
        "Where the PKI is mounted.",
        allowed="a path without a slash at its ends",
        pattern=_MOUNT,
    )
    vault_pki_role: str = env(
        "PERSYS_VAULT_PKI_ROLE",
        "persys-scheduler",
        "The PKI's role.",
        allowed="letters, digits, . _ -",
        pattern=r"^[A-Za-z0-9._-]{1,128}$",
    )
    vault_cert_ttl_seconds: Seconds = env(
        "PERSYS_VAULT_CERT_TTL",
        86_400.0,
        "For how long to ask a certificate to be good; it is renewed after four fifths of what it is.",
        ge=60,
        le=315_360_000,
    )
    vault_service_name: str = env(
        "PERSYS_VAULT_SERVICE_NAME",
        "persys-scheduler",
        "Common name of the certificate.",
        allowed="a host name",
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$",
    )
    vault_service_domain: str = env(
        "PERSYS_VAULT_SERVICE_DOMAIN",
        "",
        "Domain of further DNS names in it; blank: none.",
        allowed="a host name",
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)?$",
    )
    vault_retry_seconds: Seconds = env(
        "PERSYS_VAULT_RETRY_INTERVAL", 60.0, "Pause after Vault issued nothing.", ge=1, le=86_400
    )
    external_ip: str = env(
        "PERSYS_EXTERNAL_IP",
        "",
        "An address more in the certificate from Vault.",
        allowed="an IP address",
        pattern=r"^([0-9A-Fa-f:.]{2,45})?$",
    )
    authorization: Annotated[Literal["none", "names"], BeforeValidator(lower)] = env(
        "FLEETBEAT_AUTHORIZATION",
        "none",
        "none: every certificate of the CA may call everything; names: what its names allow.",
    )
    operator_names: Names = env(
        "FLEETBEAT_OPERATOR_NAMES",
        (),
        "Names (common or DNS) in certificates of operators and gateways; FLEETBEAT_AUTHORIZATION=names needs some.",
        allowed="comma-separated names; *.example.org stands for any one label before the rest",
        max_length=64,
    )
    node_names: str = env(
        "FLEETBEAT_NODE_NAMES",
        "{node_id}.node.fleetbeat",
        "The name (common or DNS) that makes a certificate one of a node.",
        allowed="a name with {node_id} in it once, and something else beside it",
        pattern=r"^([A-Za-z0-9._:/-]+\{node_id\}[A-Za-z0-9._:/-]*|\{node_id\}[A-Za-z0-9._:/-]+)$",
        max_length=253,
    )

    # etcd
    etcd_endpoints: Endpoints = env(
        "ETCD_ENDPOINTS",
        ("localhost:2379",),
        "etcd members.",
        allowed="host:port, comma-separated, at least one",
        min_length=1,
        max_length=16,
    )
    etcd_prefix: str = env(
        "FLEETBEAT_ETCD_PREFIX",
        "",
        "Root under which all keys lie; blank: the root of etcd.",
        allowed="/name or /name/name of letters, digits, . _ -",
        pattern=r"^(/[A-Za-z0-9._-]+)*$",
        max_length=256,
    )
    cluster_id: str = env(
        "FLEETBEAT_CLUSTER_ID",
        "",
        "The cluster that etcd must hold, or the process does not start; blank: whichever it holds, or a new one.",
        allowed="letters, digits, . _ -, at most 128",
        pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?)?$",
    )
    etcd_timeout_seconds: Seconds = env("FLEETBEAT_ETCD_TIMEOUT", 3.0, "Deadline of one etcd call.", ge=0.01, le=60)
    store_probe_interval_seconds: Seconds = env(
        "FLEETBEAT_STORE_PROBE_INTERVAL", 1.0, "How often a front asks etcd whether it answers.", ge=0.05, le=60
    )
    store_patience_seconds: Seconds = env(
        "FLEETBEAT_STORE_PATIENCE",
        5.0,
        "Silence of etcd after which a front is degraded, at least two FLEETBEAT_STORE_PROBE_INTERVAL.",
        ge=0.1,
        le=600,
    )
    etcd_user: str = env("FLEETBEAT_ETCD_USER", "", "etcd user; blank: no password login.", max_length=256)
    etcd_password: SecretStr = env(
        "FLEETBEAT_ETCD_PASSWORD", SecretStr(""), "Password of the etcd user; given together with the user."
    )
    etcd_ca: str = env("FLEETBEAT_ETCD_CA", "", "CA file; set: TLS towards etcd.", allowed="a path")
    etcd_cert: str = env(
        "FLEETBEAT_ETCD_CERT", "", "Client certificate file for etcd; needs the CA and the key.", allowed="a path"
    )
    etcd_key: str = env("FLEETBEAT_ETCD_KEY", "", "Key file of the client certificate.", allowed="a path")

    # Broker and telemetry
    redis_addr: OptionalHostPort = env(
        "REDIS_ADDR",
        "",
        "Redis for telemetry; blank: the broker's, when that is Redis; neither: no telemetry.",
        allowed="host:port",
    )
    redis_password: SecretStr = env("REDIS_PASSWORD", SecretStr(""), "Password of Redis at REDIS_ADDR.")
    redis_db: Whole = env("REDIS_DB", 0, "Database of the telemetry in Redis.", ge=0, le=15)
    broker_url: BrokerUrl = env(
        "FLEETBEAT_BROKER_URL",
        SecretStr(""),
        "Celery broker; blank: Redis at REDIS_ADDR, database 1 (0 when REDIS_DB is 1).",
        allowed="redis://…, rediss://…, sentinel://… or amqp://…",
    )
    redis_reconcile_ttl_seconds: Seconds = env(
        "REDIS_RECONCILE_TTL", 86400.0, "How long outcomes of reconciling stay.", ge=1, le=31_536_000
    )
    redis_event_ttl_seconds: Seconds = env("REDIS_EVENT_TTL", 86400.0, "How long events stay.", ge=1, le=31_536_000)
    redis_event_max_entries: Whole = env(
        "REDIS_EVENT_MAX_ENTRIES",
        1000,
        "How many events stay, and how many outcomes of reconciling.",
        ge=1,
        le=1_000_000,
    )
    meter_enabled: Flag = env(
        "METER_REDIS_STREAM_ENABLED", default=True, meaning="Write each usage sample to a stream for meters."
    )
    meter_stream: str = env(
        "METER_REDIS_STREAM",
        "persys:usage:stream",
        "The name of that stream.",
        allowed="a Redis key of at most 256 characters without blanks",
        pattern=r"^\S{1,256}$",
    )
    meter_max_entries: Whole = env(
        "METER_REDIS_STREAM_MAXLEN", 100_000, "About how many samples it keeps.", ge=1, le=100_000_000
    )

    # Shards and cycles
    shard_count: Whole = env(
        "SCHEDULER_SHARD_COUNT",
        1,
        "First shard count of a new cluster; later the count in etcd decides.",
        reference="there: the count that every instance must be given alike",
        ge=1,
        le=1024,
    )
    shard_hash: Annotated[Literal["jump", "crc32"], BeforeValidator(lower)] = env(
        "SCHEDULER_SHARD_HASH",
        "jump",
        "How nodes map to shards in a new cluster.",
        reference="there: always crc32 modulo the count, which moves nearly all nodes when the count changes",
    )
    ha_mode: Annotated[Literal["failover", "active-active"], BeforeValidator(lower)] = env(
        "SCHEDULER_HA_MODE",
        "failover",
        "Checked and otherwise without effect: all shards are always driven, by any worker of their queue.",
        reference="there: chooses between one leader and one leader a shard",
    )
    shard_index: Whole = env(
        "SCHEDULER_SHARD_INDEX",
        0,
        "Checked to be below SCHEDULER_SHARD_COUNT and otherwise without effect: a worker's -Q chooses its shards.",
        reference="there: the shard of this instance",
        ge=0,
        le=1023,
    )
    shard_key: str = env(
        "SCHEDULER_SHARD_KEY",
        "genesis",
        "Value of the node label scheduler_shard.",
        allowed="letters, digits, . _ -, at most 63",
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    )
    reconcile_interval_seconds: Seconds = env(
        "SCHEDULER_RECONCILE_INTERVAL", 5.0, "Period of the reconcile cycle.", ge=0.2, le=3600
    )
    drift_interval_seconds: Seconds = env(
        "SCHEDULER_DRIFT_DETECT_INTERVAL", 300.0, "Period of drift detection.", ge=0.2, le=86400
    )
    drift_orphan_policy: Annotated[OrphanPolicy, BeforeValidator(lower)] = env(
        "FLEETBEAT_DRIFT_ORPHAN_POLICY",
        OrphanPolicy.KEEP,
        "What becomes of a copy on a node that no record speaks of; adopt keeps it for a workload of its name.",
        allowed="keep, adopt or delete",
    )
    drift_sightings: Whole = env(
        "FLEETBEAT_DRIFT_SIGHTINGS", 3, "In how many cycles it must be seen before it is deleted.", ge=1, le=1000
    )
    drift_grace_seconds: Seconds = env(
        "FLEETBEAT_DRIFT_GRACE", 600.0, "For how long it must be seen before it is deleted.", ge=0, le=31_536_000
    )
    drift_max_share: Number = env(
        "FLEETBEAT_DRIFT_MAX_SHARE",
        0.1,
        "The share of a node's copies that are deleted in one cycle at most; one always may be.",
        ge=0.0,
        le=1.0,
    )
    drift_dry_run: Flag = env("FLEETBEAT_DRIFT_DRY_RUN", default=False, meaning="Find and tell, and delete nothing.")
    monitor_nodes_interval_seconds: Seconds = env(
        "FLEETBEAT_MONITOR_NODES_INTERVAL", 5.0, "Period of the node monitor.", ge=0.2, le=3600
    )
    monitor_workloads_interval_seconds: Seconds = env(
        "FLEETBEAT_MONITOR_WORKLOADS_INTERVAL", 60.0, "Period of the workload monitor.", ge=0.2, le=3600
    )
    reconcile_concurrency: Whole = env(
        "SCHEDULER_RECONCILE_CONCURRENCY", 64, "Agent calls in flight in one process.", ge=1, le=1024
    )
    calls_per_node: Whole = env(
        "FLEETBEAT_CALLS_PER_NODE",
        4,
        "Agent calls in flight to one node; at most SCHEDULER_RECONCILE_CONCURRENCY.",
        ge=1,
        le=64,
    )
    chunk_nodes: Whole = env("FLEETBEAT_CHUNK_NODES", 50, "Nodes in one chunk of a cycle.", ge=1, le=1000)
    max_shards: Whole = env(
        "FLEETBEAT_MAX_SHARDS",
        64,
        "A worker knows queues shard-0 to shard-(n-1): so many shards the cluster may grow to without new workers.",
        ge=1,
        le=1024,
    )
    cycle_lease_seconds: Seconds = env(
        "FLEETBEAT_CYCLE_LEASE",
        10.0,
        "Silence of a cycle's workers after which the next cycle takes its place.",
        ge=1,
        le=600,
    )
    cycle_time_limit_seconds: Seconds = env(
        "FLEETBEAT_CYCLE_TIME_LIMIT", 30.0, "Longest run of one task of a cycle.", ge=1, le=600
    )
    leader_lease_seconds: Seconds = env(
        "FLEETBEAT_LEADER_LEASE",
        5.0,
        "Lease of the elected beat; at most 60 reconcile intervals, for so long nothing beats when it dies.",
        ge=2,
        le=60,
    )

    # Liveness
    heartbeat_interval_seconds: Seconds = env(
        "FLEETBEAT_HEARTBEAT_INTERVAL",
        10.0,
        "How often agents report.",
        reference="there: fixed at 60s",
        ge=0.1,
        le=600,
    )
    node_lease_seconds: Seconds = env(
        "FLEETBEAT_NODE_LEASE",
        30.0,
        "Silence after which a node is NotReady; at least two heartbeats.",
        reference="there: fixed at 3m, and nothing enforces it",
        ge=0.3,
        le=3600,
    )
    node_grace_seconds: Seconds = env(
        "SCHEDULER_NODE_UNAVAILABLE_GRACE",
        60.0,
        "NotReady time after which work moves; at least one heartbeat.",
        reference="there: 3m; zero or less meant 3m",
        ge=0.1,
        le=86400,
    )
    exclusive_stop_after_seconds: Seconds = env(
        "FLEETBEAT_EXCLUSIVE_STOP_AFTER",
        60.0,
        "Silence of the control plane after which a node has stopped its exclusive work; at least the lease.",
        ge=1,
        le=86400,
    )
    retry_grace_seconds: Seconds = env(
        "FLEETBEAT_RETRY_GRACE",
        120.0,
        "For how long after an agent first refused a workload no refusal is the last one.",
        ge=0,
        le=86_400,
    )
    orphan_after_seconds: Seconds = env(
        "FLEETBEAT_ORPHAN_AFTER",
        86400.0,
        "NotReady time after which what is committed on a node for work that stayed there is released; "
        "at least lease and grace.",
        ge=1,
        le=31_536_000,
    )
    brake_share: Number = env(
        "FLEETBEAT_BRAKE_SHARE",
        1 / 3,
        "When more than this share of a shard's nodes fall silent at once, nothing moves.",
        gt=0,
        le=1,
    )
    brake_min_nodes: Whole = env(
        "FLEETBEAT_BRAKE_MIN_NODES", 3, "The brake needs at least this many silent nodes.", ge=1, le=100_000
    )
    drain_max_parallel: Whole = env(
        "FLEETBEAT_DRAIN_MAX_PARALLEL",
        2,
        "Workloads of one node that may be on their way at once while it is drained or NoExecute drives them off.",
        ge=1,
        le=1000,
    )
    drain_min_healthy_seconds: Seconds = env(
        "FLEETBEAT_DRAIN_MIN_HEALTHY",
        0.0,
        "How long the new copy of such a workload must have run before its old one is stopped and the next one moves.",
        ge=0,
        le=86400,
    )

    # Agents
    agent_rpc_timeout_seconds: Seconds = env(
        "SCHEDULER_AGENT_RPC_TIMEOUT", 10.0, "Deadline of one call to an agent.", ge=0.05, le=300
    )
    reapply_guard_seconds: Seconds = env(
        "SCHEDULER_REAPPLY_GUARD",
        45.0,
        "First wait of the crash-loop guard; below 15s counts as 15s.",
        reference="there: zero or less meant the apply time-out",
        ge=0.1,
        le=900,
    )
    agent_tls: Annotated[Literal["auto", "true", "false"], BeforeValidator(flag_or_auto)] = env(
        "SCHEDULER_AGENT_TLS_ENABLED",
        "auto",
        "TLS towards agents, with the files of PERSYS_TLS_*; auto: when the front speaks it.",
        allowed="true, false, 1, 0, yes, no or auto",
    )

    # Placement
    overcommit_cpu: Number = env(
        "FLEETBEAT_OVERCOMMIT_CPU", 1.0, "CPU that may be committed, as a multiple of capacity.", ge=0.01, le=100
    )
    overcommit_memory: Number = env(
        "FLEETBEAT_OVERCOMMIT_MEMORY", 1.0, "Memory that may be committed, as a multiple of capacity.", ge=0.01, le=100
    )
    overcommit_disk: Number = env(
        "FLEETBEAT_OVERCOMMIT_DISK", 1.0, "Disk that may be committed, as a multiple of capacity.", ge=0.01, le=100
    )

    # Automation
    suggestion_max_age_seconds: Seconds = env(
        "FLEETBEAT_SUGGESTION_MAX_AGE",
        300.0,
        "A suggestion of automation that is older is rejected.",
        reference="there: none is too old",
        ge=1,
        le=86_400,
    )
    suggestion_tolerance_seconds: Seconds = env(
        "FLEETBEAT_SUGGESTION_CLOCK_TOLERANCE",
        30.0,
        "How far in the future the time of a suggestion may lie.",
        ge=0,
        le=3600,
    )
    suggestion_undated: Flag = env(
        "FLEETBEAT_SUGGESTION_UNDATED",
        default=True,
        meaning="Whether a suggestion that does not say when it was made is taken.",
    )
    suggestion_ttl_seconds: Seconds = env(
        "FLEETBEAT_SUGGESTION_TTL",
        86_400.0,
        "How long the decision on a suggestion is kept, so that the same one is not carried out twice; "
        "at least FLEETBEAT_SUGGESTION_MAX_AGE and FLEETBEAT_SUGGESTION_CLOCK_TOLERANCE together.",
        ge=5,
        le=31_536_000,
    )

    # Traces
    otel_exporter_otlp_endpoint: str = env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        "Where traces are sent, by OTLP over HTTP; blank: nowhere.",
        allowed="host:port, http://… or https://…",
        pattern=r"^((https?://)?[^\s@/]+(/\S*)?)?$",
    )
    jaeger_endpoint: str = env(
        "JAEGER_ENDPOINT",
        "",
        "Where traces are sent when OTEL_EXPORTER_OTLP_ENDPOINT is blank.",
        allowed="host:port, http://… or https://…",
        pattern=r"^((https?://)?[^\s@/]+(/\S*)?)?$",
    )
    otlp_insecure: Flag = env(
        "OTEL_EXPORTER_OTLP_INSECURE",
        default=True,
        meaning="Send traces without TLS to an endpoint that names no scheme; one that names it is taken at its word.",
        reference="there: true made even https:// plain",
    )
    trace_ratio: Number = env(
        "FLEETBEAT_TRACE_RATIO",
        1.0,
        "The share of traces that are kept, of those that begin here.",
        ge=0.0,
        le=1.0,
    )

    # Logs
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(level)] = env(
        "LOG_LEVEL",
        "info",
        "Least level that is logged.",
        allowed="debug, info, warning or error (also trace, warn, fatal, panic: the nearest of these)",
        reference="there: an unknown level meant info",
    )
    log_format: Annotated[Literal["json", "text"], BeforeValidator(lower)] = env(
        "LOG_FORMAT", "json", "One JSON object a line, or text for people."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the base's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let what code gives win over the environment; there is no other source."""
        return init_settings, _Environment(settings_cls)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        problems = list(_contradictions(self))
        if problems:
            raise ValueError("\n".join(problems))
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

    @property
    def tls_enabled(self) -> bool:
        """Whether the front speaks TLS."""
        if self.tls != "auto":
            return self.tls == "on"
        return bool(self.model_fields_set & {"tls_ca", "tls_cert", "tls_key"}) or self.vault_enabled

    @property
    def vault_in_use(self) -> bool:
        """Whether the certificate files come from Vault."""
        return self.vault_enabled and self.tls_enabled

    @property
    def agent_tls_enabled(self) -> bool:
        """Whether agents are called over TLS."""
        return self.tls_enabled if self.agent_tls == "auto" else self.agent_tls == "true"

    @property
    def tls_files(self) -> TlsFiles:
        """The files of both."""
        return TlsFiles(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def otlp_endpoint(self) -> str:
        """Where traces go; blank: nowhere."""
        return self.otel_exporter_otlp_endpoint or self.jaeger_endpoint

    @property
    def redis_url(self) -> str:
        """Where telemetry goes, password included; blank: nowhere."""
        if self.redis_addr:
            return self._redis_at_addr(self.redis_db)
        broker = urlsplit(self.broker_url.get_secret_value())
        if broker.scheme not in ("redis", "rediss"):
            return ""
        return urlunsplit(broker._replace(path=f"/{self.redis_db}"))

    @property
    def effective_broker_url(self) -> str:
        """The broker's URL, password included; SettingsError when neither it nor REDIS_ADDR is set."""
        if self.broker_url.get_secret_value():
            return self.broker_url.get_secret_value()
        if not self.redis_addr:
            raise SettingsError(
                "neither FLEETBEAT_BROKER_URL nor REDIS_ADDR is set: workers and beat need a broker; "
                "set one, for example REDIS_ADDR=localhost:6379"
            )
        return self._redis_at_addr(0 if self.redis_db == 1 else 1)

    def _redis_at_addr(self, database: int) -> str:
        password = self.redis_password.get_secret_value()
        login = f":{quote(password, safe='')}@" if password else ""
        return f"redis://{login}{self.redis_addr}/{database}"


def _contradictions(settings: Settings) -> Iterator[str]:
    """Say which values do not go together, one line each."""
    s = settings
    short = format_duration
    if s.node_lease_seconds < 2 * s.heartbeat_interval_seconds:
        yield (
            f"FLEETBEAT_NODE_LEASE={short(s.node_lease_seconds)} must be at least twice "
            f"FLEETBEAT_HEARTBEAT_INTERVAL={short(s.heartbeat_interval_seconds)}"
        )
    yield from _suggestion_contradictions(s)
    if s.node_grace_seconds < s.heartbeat_interval_seconds:
        yield (
            f"SCHEDULER_NODE_UNAVAILABLE_GRACE={short(s.node_grace_seconds)} must be at least "
            f"FLEETBEAT_HEARTBEAT_INTERVAL={short(s.heartbeat_interval_seconds)}, so that a node can come back in time"
        )
    if s.exclusive_stop_after_seconds < s.node_lease_seconds:
        yield (
            f"FLEETBEAT_EXCLUSIVE_STOP_AFTER={short(s.exclusive_stop_after_seconds)} must be at least "
            f"FLEETBEAT_NODE_LEASE={short(s.node_lease_seconds)}, or a node that is alive stops its exclusive work"
        )
    if s.orphan_after_seconds < s.node_lease_seconds + s.node_grace_seconds:
        yield (
            f"FLEETBEAT_ORPHAN_AFTER={short(s.orphan_after_seconds)} must be at least "
            f"FLEETBEAT_NODE_LEASE={short(s.node_lease_seconds)} and "
            f"SCHEDULER_NODE_UNAVAILABLE_GRACE={short(s.node_grace_seconds)} together"
        )
    if s.leader_lease_seconds > 60 * s.reconcile_interval_seconds:
        yield (
            f"FLEETBEAT_LEADER_LEASE={short(s.leader_lease_seconds)} must be at most 60 times "
            f"SCHEDULER_RECONCILE_INTERVAL={short(s.reconcile_interval_seconds)}"
        )
    if s.store_patience_seconds < 2 * s.store_probe_interval_seconds:
        yield (
            f"FLEETBEAT_STORE_PATIENCE={short(s.store_patience_seconds)} must be at least twice "
            f"FLEETBEAT_STORE_PROBE_INTERVAL={short(s.store_probe_interval_seconds)}, or one lost answer is an outage"
        )
    if s.grpc_port == s.metrics_port:
        yield f"GRPC_PORT={s.grpc_port} and METRICS_PORT={s.metrics_port} must differ"
    if s.calls_per_node > s.reconcile_concurrency:
        yield (
            f"FLEETBEAT_CALLS_PER_NODE={s.calls_per_node} must be at most "
            f"SCHEDULER_RECONCILE_CONCURRENCY={s.reconcile_concurrency}"
        )
    if s.shard_index >= s.shard_count:
        yield f"SCHEDULER_SHARD_INDEX={s.shard_index} must be below SCHEDULER_SHARD_COUNT={s.shard_count}"
    yield from _login_contradictions(s)


def _suggestion_contradictions(s: Settings) -> Iterator[str]:
    short = format_duration
    fresh = s.suggestion_max_age_seconds + s.suggestion_tolerance_seconds
    if s.suggestion_ttl_seconds < fresh:
        yield (
            f"FLEETBEAT_SUGGESTION_TTL={short(s.suggestion_ttl_seconds)} must be at least FLEETBEAT_SUGGESTION_MAX_AGE "
            f"and FLEETBEAT_SUGGESTION_CLOCK_TOLERANCE together ({short(fresh)}), or a suggestion is carried out again"
        )


def _login_contradictions(s: Settings) -> Iterator[str]:
    if bool(s.etcd_cert) != bool(s.etcd_key):
        yield "FLEETBEAT_ETCD_CERT and FLEETBEAT_ETCD_KEY must be given together"
    if s.etcd_cert and not s.etcd_ca:
        yield "FLEETBEAT_ETCD_CERT needs FLEETBEAT_ETCD_CA: without a CA there is no TLS"
    if bool(s.etcd_user) != bool(s.etcd_password.get_secret_value()):
        yield "FLEETBEAT_ETCD_USER and FLEETBEAT_ETCD_PASSWORD must be given together"
    yield from _vault_contradictions(s)
    if s.authorization == "names" and not s.tls_enabled:
        yield "FLEETBEAT_AUTHORIZATION=names needs TLS (FLEETBEAT_TLS=on): without it callers have no names"
    if s.authorization == "names" and not s.operator_names:
        yield "FLEETBEAT_AUTHORIZATION=names needs FLEETBEAT_OPERATOR_NAMES, or nobody may apply or read anything"


def _vault_contradictions(s: Settings) -> Iterator[str]:
    if not s.vault_in_use:
        return
    if s.vault_auth_method == "token" and not s.vault_token.get_secret_value():
        yield "PERSYS_VAULT_ENABLED=true with PERSYS_VAULT_AUTH_METHOD=token needs PERSYS_VAULT_TOKEN"
    secrets_given = s.vault_role_id.get_secret_value() and s.vault_secret_id.get_secret_value()
    if s.vault_auth_method == "approle" and not secrets_given:
        yield (
            "PERSYS_VAULT_ENABLED=true with PERSYS_VAULT_AUTH_METHOD=approle needs PERSYS_VAULT_APPROLE_ROLE_ID and "
            "PERSYS_VAULT_APPROLE_SECRET_ID"
        )
    paths = {path.rpartition("/")[0] for path in (s.tls_ca, s.tls_cert, s.tls_key)}
    names = {path.rpartition("/")[2] for path in (s.tls_ca, s.tls_cert, s.tls_key)}
    if len(paths) != 1 or len(names) != 3:  # noqa: PLR2004 - three files
        yield "PERSYS_TLS_CA, PERSYS_TLS_CERT and PERSYS_TLS_KEY must be three files in one folder for Vault"


_BROKERS = ("redis", "rediss", "sentinel", "amqp", "amqps", "memory", "filesystem")


def load() -> Settings:
    """Read the environment; raises SettingsError that names each wrong variable, its value and what is allowed."""
    known = {variable_of(f) for f in Settings.model_fields.values()}
    problems = list(unknown_variables(os.environ, known))
    try:
        settings = Settings()
    except ValidationError as error:
        problems = [_explain(e) for e in error.errors()] + problems
    if problems:
        raise SettingsError("\n".join(problems)) from None
    for line in unread_variables(os.environ):
        _log.warning(line)
    return settings


def _explain(error: Any) -> str:
    said = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        return said
    variable = str(error["loc"][0])
    field = next(f for n, f in Settings.model_fields.items() if variable in (n, variable_of(f)))
    value = "***" if field.annotation is SecretStr else os.environ.get(variable, str(error["input"])).strip()[:80]
    problem = f"{said}; " if error["type"] == "value_error" else ""
    return f"{variable_of(field)}={value}: {problem}allowed: {allowed_values(field)}"
