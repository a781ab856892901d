"""Reads for the API: from the cache, told when it is stale, and "not found" only on the word of etcd."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from scheduler.domain.errors import InvalidInput, NotFound, Refused, StoreUnavailable
from scheduler.domain.ledger import Ledger
from scheduler.domain.legacy import legacy_pair
from scheduler.domain.node import Node
from scheduler.domain.workload import Phase, WorkloadSpec, WorkloadStatus
from scheduler.front.index import FleetIndex
from scheduler.front.parts import FrontParts
from scheduler.front.views import node_view, workload_view
from scheduler.front.vitals import NOBODY, Vital, Vitals
from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import LEDGERS, LEGACY, NODES, SPECS, STATUSES
from scheduler.store.replica_index import ReplicaIndex
from scheduler.store.write import Ref
from scheduler.telemetry.pulses import Usage
from scheduler.telemetry.redis import TelemetryUnavailable

FRESH_SECONDS = 10.0
"""A cache that was current so lately is not called stale."""
OWN_WRITE_SECONDS = 0.5
"""How long a call waits for the cache to show what it wrote itself."""
SLICE = 200
"""Views built in one go, a few milliseconds, before other calls get their turn."""


class Reader:
    """Everything that is shown of nodes and workloads."""

    def __init__(self, parts: FrontParts, index: FleetIndex, vitals: Vitals) -> None:
        """Take the front's parts, its index, and who knows when nodes were heard."""
        self._parts = parts
        self._cache = parts.cache
        self.index = index
        self.vitals = vitals
        self.replicas = ReplicaIndex(parts.cache)

    @property
    def stale(self) -> bool:
        """Whether what is read now may be old."""
        freshness = self._cache.freshness()
        return not freshness.synced or freshness.age_seconds > FRESH_SECONDS or not self._parts.modes.writable

    async def see_own_writes(self) -> None:
        """Wait, for a moment, until the cache shows what this front has written."""
        with contextlib.suppress(
            StoreUnavailable
        ):  # then the next read is a little old, which is no error of the write
            await self._cache.wait_revision(self._parts.store.last_revision, OWN_WRITE_SECONDS)

    def require_listed(self) -> None:
        """Refuse to answer from a cache that has never held anything. Raises StoreUnavailable."""
        if self._cache.revision == 0:
            raise StoreUnavailable("etcd has not been read yet; try again in a moment")

    async def node(self, node_id: str) -> pb.NodeView:
        """Show a node. Raises NotFound."""
        node = self._cache.get(NODES, node_id).record
        ledger = self._cache.get(LEDGERS, node_id).record
        if node is None:
            view = await self._parts.store.read([Ref(NODES, node_id), Ref(LEDGERS, node_id)])
            node, ledger = view.get(NODES, node_id).record, view.get(LEDGERS, node_id).record
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        vitals = await self.vitals.of([node_id])
        return self._node(node, ledger, vitals)

    async def workload(self, workload_id: str) -> pb.WorkloadView:
        """Show a workload. Raises NotFound."""
        spec, status = await self.records(workload_id)
        usage = await self._usage([workload_id])
        return self._workload(spec, status, usage)

    async def records(self, workload_id: str) -> tuple[WorkloadSpec, WorkloadStatus]:
        """Return spec and status of a workload. Raises NotFound."""
        spec, status = self.index.spec(workload_id), self.index.status(workload_id)
        if spec is None:
            spec, status = await self._stored(workload_id)
        if spec is None:
            raise NotFound(f'there is no workload "{workload_id}"')
        return spec, status or WorkloadStatus(id=workload_id)

    async def _stored(self, workload_id: str) -> tuple[WorkloadSpec | None, WorkloadStatus | None]:
        """Return what etcd itself has of a workload, in whatever form. Raises Refused for what cannot be read."""
        refs: list[Ref[Any]] = [Ref(table, workload_id) for table in (SPECS, STATUSES, LEGACY)]
        view = await self._parts.store.read(refs)
        spec, legacy = view.get(SPECS, workload_id).record, view.get(LEGACY, workload_id).record
        if spec or legacy is None:
            return spec, view.get(STATUSES, workload_id).record
        try:
            return legacy_pair(workload_id, legacy)
        except InvalidInput as error:
            raise Refused(f"{LEGACY.key(workload_id)}: {error}; repair or delete the key") from None

    async def nodes(self, ids: Iterable[str], status: str) -> AsyncIterator[pb.NodeView]:
        """Show those of these nodes that have this status (any case; blank: all)."""
        vitals = await self.vitals.of()
        wanted = status.lower()
        for some in _slices(ids):
            for node_id in some:
                node = self._cache.get(NODES, node_id).record
                if node and wanted in ("", node.state_shown.lower()):
                    yield self._node(node, self._cache.get(LEDGERS, node_id).record, vitals)
            await asyncio.sleep(0)

    async def workloads(self, ids: Iterable[str], *, node_id: str, status: str) -> AsyncIterator[pb.WorkloadView]:
        """Show those of these workloads that are on this node and have this status (any case); blank: any."""
        wanted = status.lower()
        for some in _slices(ids):
            found = [pair for one in some if (pair := self._match(one, node_id, wanted))]
            usage = await self._usage([spec.id for spec, _ in found])
            for spec, stored in found:
                yield self._workload(spec, stored, usage)
            await asyncio.sleep(0)

    def _match(self, workload_id: str, node_id: str, wanted: str) -> tuple[WorkloadSpec, WorkloadStatus] | None:
        spec = self.index.spec(workload_id)
        if spec is None:
            return None
        status = self.index.status(workload_id) or WorkloadStatus(id=workload_id)
        if node_id and status.node_id != node_id:
            return None
        if wanted and self.index.shown(status)[0].lower() != wanted:
            return None
        return spec, status

    def _node(self, node: Node, ledger: Ledger | None, vitals: Mapping[str, Vital]) -> pb.NodeView:
        return node_view(
            node,
            vitals.get(node.node_id, NOBODY),
            ledger,
            shard=self._parts.shard_of(node.node_id),
            workloads=len(self.index.on_node(node.node_id)),
        )

    def _workload(self, spec: WorkloadSpec, status: WorkloadStatus, usage: Mapping[str, Usage]) -> pb.WorkloadView:
        shown, since = self.index.shown(status)
        view = workload_view(spec, status, shown=shown, since=since, usage=usage.get(spec.id))
        further = self.replicas.copies_of(spec.id)
        view.replicas, view.replicas_present = spec.replicas, 1 + len(further)
        view.replicas_running = (shown == Phase.RUNNING) + sum(map(self._is_running, further))
        view.replicas_updated = 1 + sum(self._has_revision(copy, spec.revision_id) for copy in further)
        return view

    def _is_running(self, copy: str) -> bool:
        status = self._cache.get(STATUSES, copy).record
        return status is not None and self.index.shown(status)[0] == Phase.RUNNING

    def _has_revision(self, copy: str, revision: str) -> bool:
        spec = self._cache.get(SPECS, copy).record
        return spec is not None and spec.replica_revision == revision

    async def _usage(self, workload_ids: Sequence[str]) -> Mapping[str, Usage]:
        try:
            return await self._parts.pulses.read_usage(workload_ids)
        except TelemetryUnavailable:
            return {}

    def summary(self) -> pb.GetClusterSummaryResponse:
        """Count nodes and workloads."""
        nodes, workloads = self.index.nodes(), self.index.workloads()
        ready = sum(count for status, count in nodes.items() if status.lower() == "ready")
        found = pb.GetClusterSummaryResponse(
            total_nodes=nodes.total(),
            ready_nodes=ready,
            not_ready_nodes=nodes.total() - ready,
            total_workloads=len(self.index.workload_ids),
            running_workloads=workloads["Running"],
            pending_workloads=workloads["Pending"] + workloads["Unknown"] + workloads["Updating"],
            failed_workloads=workloads["Failed"],
            deleted_workloads=self.index.deleted(),
            workloads_by_status=workloads,
            nodes_by_status=nodes,
        )
        found.generated_at.FromDatetime(self._parts.now())
        return found


def _slices(ids: Iterable[str]) -> Iterable[list[str]]:
    whole = list(ids)  # the index may change while we yield
    return (whole[i : i + SLICE] for i in range(0, len(whole), SLICE))
