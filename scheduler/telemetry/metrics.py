"""Prometheus metrics: the reference system's names and labels, and what it did not measure.

Counters and histograms are updated where things happen. Gauges about the fleet are computed
from the caches at the moment of a scrape (`Metrics.observe_fleet`), so a state that no node
or workload is in any more goes back to 0 or vanishes instead of keeping its last value.
What workers and fronts do for the fleet (reconciling, calls to agents, placing, writes) is
counted in a registry of its own, `Metrics.work`: scheduler.telemetry.shared adds it up over all
processes, and every front shows the sums. Those, and the gauges about the fleet, are the same
on every front: query them with max, not sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from scheduler.placement.explain import Explanation
from scheduler.store import keys
from scheduler.store.assign import Placed
from scheduler.store.etcd import Etcd
from scheduler.store.placements import Outcome
from scheduler.store.store import Store

NAMESPACE = "persys_scheduler"
NODE_STATES = ("ready", "active", "notready", "unknown")
WORKLOAD_STATES = ("pending", "running", "stopped", "failed", "deleted", "updating", "unknown")
DESIRED_STATES = ("running", "stopped", "deleted", "unknown")
_CYCLE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_GO_CODES = {
    "OK": "OK",
    "CANCELLED": "Canceled",
    "DEADLINE_EXCEEDED": "DeadlineExceeded",
    "INVALID_ARGUMENT": "InvalidArgument",
    "NOT_FOUND": "NotFound",
    "ALREADY_EXISTS": "AlreadyExists",
    "PERMISSION_DENIED": "PermissionDenied",
    "RESOURCE_EXHAUSTED": "ResourceExhausted",
    "FAILED_PRECONDITION": "FailedPrecondition",
    "ABORTED": "Aborted",
    "OUT_OF_RANGE": "OutOfRange",
    "UNIMPLEMENTED": "Unimplemented",
    "INTERNAL": "Internal",
    "UNAVAILABLE": "Unavailable",
    "DATA_LOSS": "DataLoss",
    "UNAUTHENTICATED": "Unauthenticated",
}


def go_code(name: str) -> str:
    """Spell a gRPC status code's name (NOT_FOUND) as Go does (NotFound), which dashboards expect."""
    return _GO_CODES.get(name, "Unknown")


_CATEGORIES = {
    keys.SPECS.prefix: "spec",
    keys.STATUSES.prefix: "status",
    keys.ASSIGNMENTS.prefix: "assignment",
    keys.NODES.prefix: "node",
    keys.LEDGERS.prefix: "ledger",
    keys.TOMBSTONES.prefix: "tombstone",
    keys.VOLUMES.prefix: "volume",
    keys.ATTACHMENTS.prefix: "attachment",
    keys.BRAKES.prefix: "brake",
    keys.SUGGESTIONS.prefix: "suggestion",
    keys.FENCES.prefix: "shard",
    keys.SLOTS.prefix: "slot",
    keys.LEADER_PREFIX: "leader",
    keys.DNS.prefix: "dns",
    "/drifts/": "drift",
    "/events/": "event",
    "/pulses/": "pulse",
    keys.RECONCILIATIONS.prefix: "reconciliation",
    "/workloads/": "legacy",
}


def category_of(prefix: str) -> str:
    """Name what is stored under a prefix of etcd, as the reference system's metric does."""
    return _CATEGORIES.get(prefix) or prefix.strip("/").replace("/", "_") or "cluster"


@dataclass(frozen=True)
class FleetFigures:
    """What the caches say at the moment of a scrape. Names of states are lower-cased here, not by the caller."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    workloads: Mapping[str, int] = field(default_factory=dict)
    desired: Mapping[str, int] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)
    """One of GAUGES to its value; what is not known is left out."""
    labelled: Mapping[str, Mapping[tuple[str, ...], float]] = field(default_factory=dict)
    """One of LABELLED to its values, by the values of its labels."""


GAUGES = {
    "heartbeat_age_seconds_max": "The longest time since a Ready node was heard.",
    "pending_age_seconds_max": "How long the oldest workload without a node has waited.",
    "cache_synced": "1 while the watch cache follows etcd.",
    "cache_age_seconds": "Time since the last proof that the watch cache is current.",
    "redis_up": "1 while Redis answers.",
    "heartbeat_changes_waiting": "Reported changes not yet written to etcd.",
    "pulses_waiting": "Pulses not yet written to Redis.",
    "listening": "1 while this front counts itself as listening to agents.",
    "agent_channels": "Channels to agents that this front has open.",
    "certificate_expires_timestamp_seconds": "When the certificate of this front expires, in Unix seconds.",
    "leader_present": "1 while an elected beat sends cycles, 0 while none does.",
    "leader_term": "The term of the elected beat; grows with each hand-over.",
    "workloads_retrying": "Workloads that wait for another try, or are being tried again.",
}


LABELLED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "drifts_open": ("Open findings of drift.", ("type",)),
    "shard_nodes": ("Nodes of a shard.", ("shard",)),
    "shard_workloads": ("Workloads that a shard drives.", ("shard",)),
    "shard_queue_messages": ("Messages that wait in a shard's queue.", ("shard",)),
    "cycle_age_seconds": ("Time since a shard's loop finished a cycle.", ("loop", "shard")),
    "cycle_period_seconds": ("How often a loop's cycles are started.", ("loop",)),
    "brake_held_nodes": ("Nodes of a shard whose work the brake holds.", ("shard",)),
    "workloads_pending": ("Workloads that want a node and have none, by why.", ("reason",)),
    "mode": ("1 for the mode that this front is in.", ("mode",)),
}
"""Gauges with labels: what they mean, and their labels. A series vanishes with what it speaks of."""


class Metrics:
    """All metrics of one process, in a registry of their own."""

    def __init__(self, *, process: bool = True) -> None:
        """Create the metrics; `process` adds those of the process and of Python's collector."""
        self.registry = CollectorRegistry()
        """What this process alone can tell."""
        self.work = CollectorRegistry()
        """What all processes of the cluster add up."""
        self.sums: Callable[[], bytes] | None = None
        """Returns the sums of `work` over all processes, in the text format; None: this process counts for itself."""
        if process:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)
        own = _Maker(self.registry)
        self.grpc_requests = own.counter("grpc_server_requests", "Inbound calls.", "method", "code")
        self.grpc_duration = own.histogram(
            "grpc_server_request_duration_seconds", "Time of inbound calls.", "method", "code"
        )
        self.handler_errors = own.counter("grpc_server_unexpected_errors", "Calls that hit a defect.", "method")
        self.heartbeat_changes = own.counter("heartbeat_changes", "Reported changes.", "result")
        self.certificate_reads = own.counter("certificate_reads", "Changes of the certificate files.", "result")
        self.certificate_issues = own.counter("certificate_issues", "Certificates asked of Vault.", "result")
        cluster = _Maker(self.work)
        self.dropped = cluster.counter("dropped", "Thrown away because a bounded buffer was full.", "what")
        self.agent_requests = cluster.counter("agent_rpc_requests", "Calls to agents.", "rpc", "code")
        self.channels_opened = cluster.counter("agent_channels_opened", "Channels dialled to agents.")
        self.breakers_opened = cluster.counter("agent_breakers_opened", "Agents that ceased to answer.")
        self.agent_duration = cluster.histogram("agent_rpc_duration_seconds", "Time of calls to agents.", "rpc", "code")
        self.reconciliation_results = cluster.counter(
            "reconciliation_results", "What reconciling workloads did.", "action", "success"
        )
        self.reconciliation_duration = cluster.histogram(
            "reconciliation_cycle_duration_seconds", "Time of reconcile cycles.", buckets=_CYCLE_BUCKETS
        )
        self.reconciliation_cycles = cluster.counter("reconciliation_cycles", "Reconcile cycles.", "result")
        self.store_writes = cluster.counter("state_store_writes", "Records written.", "category")
        self.store_conflicts = cluster.counter(
            "state_store_conflicts", "Transactions that had to be decided again.", "category"
        )
        self.store_duration = cluster.histogram(
            "state_store_request_duration_seconds", "Time of calls to etcd.", "rpc", "code"
        )
        self.placement_duration = cluster.histogram("placement_duration_seconds", "Time to find a workload a node.")
        self.placements = cluster.counter("placements", "Attempts to place or move a workload.", "result")
        self.placement_rejections = cluster.counter(
            "placement_rejections", "Nodes rejected, by their first failing filter.", "filter"
        )

    def observe_fleet(self, figures: Callable[[], FleetFigures]) -> None:
        """Ask for these figures at each scrape."""
        self.registry.register(_FleetCollector(figures))

    def follow_store(self, store: Store) -> None:
        """Count what this store writes, and where it meets conflicts."""
        store.on_write = lambda prefix: self.store_writes.labels(category_of(prefix)).inc()
        store.on_conflict = lambda prefix: self.store_conflicts.labels(category_of(prefix)).inc()

    def follow_etcd(self, etcd: Etcd) -> None:
        """Time the calls of this client."""
        etcd.on_call = lambda rpc, code, seconds: self.store_duration.labels(rpc, code).observe(seconds)

    def agent_call(self, rpc: str, code: str, seconds: float) -> None:
        """Count a call to an agent; `code` is the name of its gRPC status code. Fits Agents(on_call=…)."""
        self.agent_requests.labels(rpc, go_code(code)).inc()
        self.agent_duration.labels(rpc, go_code(code)).observe(seconds)

    def place_attempted(self, outcome: Outcome | None, seconds: float) -> None:
        """Count an attempt to place or move a workload; None: it failed. Fits Placer(on_outcome=…)."""
        self.placement_duration.observe(seconds)
        if outcome is None:
            self.placements.labels("error").inc()
        elif isinstance(outcome, Placed):
            self.placements.labels("placed").inc()
        elif isinstance(outcome, Explanation):
            self.placements.labels("no_fit").inc()
            for rejection in outcome.rejections:
                self.placement_rejections.labels(rejection.filter).inc(rejection.nodes)
        else:
            self.placements.labels("vanished").inc()

    def reconciled(self, action: str, success: bool) -> None:
        """Count what reconciling one workload did. Fits LoopContext(on_result=…)."""
        self.reconciliation_results.labels(action, str(success).lower()).inc()

    def cycle_ended(self, loop: str, success: bool, seconds: float) -> None:
        """Count a reconcile cycle; `seconds` is from the begin of its slot. Fits LoopContext(on_cycle=…)."""
        if loop == "reconcile":
            self.reconciliation_cycles.labels("success" if success else "error").inc()
            self.reconciliation_duration.observe(seconds)

    def certificates_read(self, good: bool) -> None:
        """Count a change of the certificate files. Fits FollowedFiles(on_reload=…)."""
        self.certificate_reads.labels("used" if good else "refused").inc()

    def certificate_issued(self, good: bool) -> None:
        """Count an attempt to have a certificate issued. Fits Renewal.on_issue."""
        self.certificate_issues.labels("issued" if good else "failed").inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry) + (self.sums() if self.sums else generate_latest(self.work))


class _Maker:
    """Makes metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self._registry)

    def histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = Histogram.DEFAULT_BUCKETS
    ) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=self._registry, buckets=buckets)


class _FleetCollector(Collector):
    """Gauges computed when somebody looks."""

    def __init__(self, figures: Callable[[], FleetFigures]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Name nothing in advance, so that registering does not ask for figures."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the gauges as of now."""
        now = self._figures()
        yield _by_state("nodes_status", "Nodes by status.", "status", NODE_STATES, now.nodes)
        yield _by_state("workloads_status", "Workloads by status.", "status", WORKLOAD_STATES, now.workloads)
        yield _by_state(
            "workloads_desired_state", "Workloads by desired state.", "desired_state", DESIRED_STATES, now.desired
        )
        for name, text in GAUGES.items():
            if name in now.gauges:
                yield GaugeMetricFamily(f"{NAMESPACE}_{name}", text, value=now.gauges[name])
        for name, (text, labels) in LABELLED.items():
            family = GaugeMetricFamily(f"{NAMESPACE}_{name}", text, labels=labels)
            for values, value in now.labelled.get(name, {}).items():
                family.add_metric(values, value)
            yield family


def _by_state(
    name: str, text: str, label: str, always: tuple[str, ...], counts: Mapping[str, int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", text, labels=[label])
    values = dict.fromkeys(always, 0)
    for state, count in counts.items():
        key = state.lower() or "unknown"
        values[key] = values.get(key, 0) + count
    for state, count in values.items():
        family.add_metric([state], count)
    return family
