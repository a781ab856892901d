"""Drift detection: compare what nodes have with what the records say, tell of it, and mend it.

Agents that report no epochs are listed once a cycle. Ours tell fronts of every change, and with each
whole roster of copies that nobody knows; so they are listed only while such a finding is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice

import structlog

from scheduler.convergence.drift import UNKNOWN, Finding, Known, Quarantine, findings, may_delete
from scheduler.domain.drift import DriftAction, DriftRecord, DriftType, drift_id, event_details
from scheduler.domain.errors import AgentRejected, AgentUnreachable, Refused
from scheduler.domain.event import EventType
from scheduler.domain.node import Node
from scheduler.domain.report import Report
from scheduler.domain.shard import Cycle
from scheduler.leadership.shards import current_map, members_of
from scheduler.loops.context import Fence, Guards, LoopContext
from scheduler.loops.each import each
from scheduler.store.drifts import (
    MAX_ERROR,
    after_sighting,
    basis_of,
    claim_deletion,
    id_of,
    note_error,
    resolve,
    resolve_deleted,
    see,
)
from scheduler.store.keys import CLUSTER, CLUSTER_ID, DRIFTS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.observations import record_missing, record_report
from scheduler.store.tombstones import add_tombstone, tombstone_id
from scheduler.store.write import Basis, Ref

log = structlog.get_logger(__name__)

MAX_FORGOTTEN = 100
"""Findings on nodes that are gone, resolved in one cycle of a shard; the rest in the next."""
_DUPLICATES = (DriftAction.DELETE_DUPLICATE, DriftAction.DELETE_RESIDUAL)


async def run(
    ctx: LoopContext,
    cycle: Cycle,
    nodes: Sequence[str],
    *,
    unassigned: bool,
    fence: Fence,
) -> dict[str, int]:
    """Return how many nodes were compared, how many differences of each kind were found, and what was deleted.

    Raises Fenced, StoreUnavailable.
    """
    tally: Counter[str] = Counter()
    open_by_node = _open_findings(ctx)

    async def compare(node_id: str) -> None:
        node = ctx.cache.get(NODES, node_id).record
        known = open_by_node.get(node_id, {})
        if node is None or not node.is_ready or (node.reports_epochs and not known):
            return
        left = await look(node, known, None)
        if left:  # a list of now, for what has changed since the first one was asked for
            await look(node, known, left)

    async def look(node: Node, known: Mapping[str, DriftRecord], only: AbstractSet[str] | None) -> AbstractSet[str]:
        asked = _Asked(ctx)
        try:
            reports = {report.workload_id: report for report in await ctx.agents.list(node)}
        except (AgentUnreachable, AgentRejected) as error:
            log.info("a node could not be compared", node=node.node_id, error=str(error))
            tally["unreachable"] += 1
            return frozenset()
        tally["compared"] += only is None
        return await _Comparison(ctx, node, asked, reports, known, fence.guards, tally).run(only)

    await each(nodes, ctx.settings.reconcile_concurrency, compare)
    if unassigned and (orphaned := _of_no_node(ctx, cycle.shard, open_by_node)):
        await _forget(ctx, orphaned, fence)
    return dict(tally)


def _of_no_node(
    ctx: LoopContext, shard: int, open_by_node: Mapping[str, Mapping[str, DriftRecord]]
) -> list[DriftRecord]:
    """Return findings on nodes of the shard that are gone, or whose agent serves another node now."""
    shards = current_map(ctx.cache)
    if shards is None or not open_by_node or not ctx.cache.freshness().synced:
        return []
    ours = members_of(shard, [n for n in open_by_node if _is_gone(ctx, n)], shards)
    return list(islice((record for n in ours for record in open_by_node[n].values()), MAX_FORGOTTEN))


def _is_gone(ctx: LoopContext, node_id: str) -> bool:
    node = ctx.cache.get(NODES, node_id).record
    if node is None:
        return True
    if node.is_ready or not node.agent_endpoint:
        return False
    others = (stored.record for stored in ctx.cache.all(NODES).values())
    return any(other and other.is_ready and other.agent_endpoint == node.agent_endpoint for other in others)


async def _forget(ctx: LoopContext, orphaned: Sequence[DriftRecord], fence: Fence) -> None:
    for record in orphaned:
        node = Ref(NODES, record.node_id)
        basis = Basis({node: ctx.cache.get(NODES, record.node_id).mod_revision})
        if await resolve(ctx.store, record, basis=basis, guards=await fence.guards()):
            tell(ctx, record, resolved=True)


def _open_findings(ctx: LoopContext) -> dict[str, dict[str, DriftRecord]]:
    found: dict[str, dict[str, DriftRecord]] = {}
    for identifier, stored in ctx.cache.all(DRIFTS).items():
        if stored.record:
            found.setdefault(stored.record.node_id, {})[identifier] = stored.record
    return found


def quarantine_of(ctx: LoopContext) -> Quarantine:
    """Return when a copy that nobody knows may be deleted, by the settings."""
    s = ctx.settings
    return Quarantine(
        s.drift_orphan_policy, s.drift_sightings, s.drift_grace_seconds, s.drift_max_share, s.drift_dry_run
    )


class _Asked:
    """When a node was asked for its list: what has changed since, the list cannot be compared with."""

    def __init__(self, ctx: LoopContext) -> None:
        """Note it; call this before the agent is asked."""
        self._ctx = ctx
        self._revision, self._rewinds = ctx.cache.revision, ctx.cache.rewinds

    def was_before(self, node_id: str, workload_id: str) -> bool:
        """Tell whether a record of the workload has changed since, or may have gone."""
        cache = self._ctx.cache
        if cache.rewinds != self._rewinds or self._ctx.gone.since(workload_id, self._revision):
            return True
        changed = basis_of(cache, node_id, workload_id).revisions.values()
        return any(revision > self._revision for revision in changed)


class _Comparison:
    """One node, as it was just listed."""

    def __init__(  # noqa: PLR0917 - what one comparison rests on
        self,
        ctx: LoopContext,
        node: Node,
        asked: _Asked,
        reports: Mapping[str, Report],
        before: Mapping[str, DriftRecord],
        guards: Guards,
        tally: Counter[str],
    ) -> None:
        self._ctx = ctx
        self._node = node
        self._asked = asked
        self._reports = reports
        self._before = before
        self._guards = guards
        self._tally = tally
        self._rules = quarantine_of(ctx)
        self._bases: dict[str, Basis] = {}
        self._left: set[str] = set()
        """Workloads that have changed since the node was asked."""

    async def run(self, only: AbstractSet[str] | None) -> AbstractSet[str]:
        """Record what is open, mend what can be mended, forget what is over.

        only: the workloads to look at, in a second look, which removes nothing; None: all. Return those whose
        records have changed since the node was asked: this list tells nothing of them.
        """
        known = self._known(only)
        self._bases = {w: basis_of(self._ctx.cache, self._node.node_id, w) for w in known}
        found = findings(self._node.node_id, self._reports, known, self._ctx.now(), self._rules.policy)
        unknown = [one for one in found if one.scheduler_status == UNKNOWN]
        for one in found:
            if one not in unknown and not self._rules.dry_run:
                await self._mend(one)
        sighted = [record for one in unknown if (record := await self._see(one))]
        trusted = only is None and self._is_trusted()
        for record in may_delete(sighted, len(self._reports), self._ctx.now(), self._rules, trusted=trusted):
            await self._delete(record)
        now_open = {drift_id(self._node.node_id, one.workload_id, one.kind) for one in unknown}
        await self._resolve_all_but(now_open, only)
        self._tally.update(str(one.kind) for one in found if one.workload_id not in self._left)
        return self._left

    async def _resolve_all_but(self, now_open: AbstractSet[str], only: AbstractSet[str] | None) -> None:
        for identifier, record in self._before.items():
            if only is not None and record.workload_id not in only:
                continue
            if identifier in now_open or self._asked.was_before(record.node_id, record.workload_id):
                continue
            basis = basis_of(self._ctx.cache, record.node_id, record.workload_id)
            if await resolve(self._ctx.store, record, basis=basis, guards=await self._guards()):
                tell(self._ctx, record, resolved=True)

    def _known(self, only: AbstractSet[str] | None) -> dict[str, Known]:
        cache, node_id = self._ctx.cache, self._node.node_id
        ids = {*self._reports, *self._ctx.index.on_node(node_id)}
        if only is not None:
            ids &= only
        # What another scheduler has stored is known, though not ours yet.
        ids = {w for w in ids if not self._ctx.foreign.is_not_ours(w)}
        self._left = {w for w in ids if self._asked.was_before(node_id, w)}
        return {
            w: Known(
                cache.get(SPECS, w).record,
                cache.get(STATUSES, w).record,
                cache.get(TOMBSTONES, tombstone_id(node_id, w)).record,
            )
            for w in ids - self._left
        }

    async def _mend(self, one: Finding) -> None:
        """Take the news over, or have the copy removed; the reconcile loop does the rest."""
        ctx, node_id, workload_id = self._ctx, self._node.node_id, one.workload_id
        basis = self._bases[workload_id]
        seen = basis.revisions[Ref(STATUSES, workload_id)]
        held, now = await self._guards(), ctx.now()
        if one.kind is DriftType.MISSING:
            taken = await record_missing(
                ctx.store, node_id, workload_id, one.epoch, now=now, guards=held, seen_revision=seen
            )
            changed = taken.changed
        elif one.action in _DUPLICATES:
            changed = await add_tombstone(ctx.store, node_id, workload_id, one.epoch, now=now, guards=held, basis=basis)
        else:
            report = self._reports[workload_id]
            taken = await record_report(ctx.store, node_id, report, now=now, guards=held, seen_revision=seen)
            changed = taken.changed
        if not changed:  # something else has changed meanwhile
            self._left.add(workload_id)
            return
        if ctx.told.is_news((node_id, workload_id, one.kind, one.action), now):
            tell(ctx, after_sighting(None, node_id, one, now, 1), resolved=True)
        ctx.wake(workload_id, node_id)

    async def _see(self, one: Finding) -> DriftRecord | None:
        """Record a sighting of a copy that nobody knows."""
        counts_to = self._rules.sightings
        known = self._before.get(drift_id(self._node.node_id, one.workload_id, one.kind))
        if known and known.sightings >= counts_to and (known.action, known.epoch) == (one.action, one.epoch):
            return known
        sighting = await see(
            self._ctx.store,
            self._node.node_id,
            one,
            basis=self._bases[one.workload_id],
            now=self._ctx.now(),
            counts_to=counts_to,
            guards=await self._guards(),
        )
        if sighting is None:
            self._left.add(one.workload_id)
            return None
        if sighting.is_news:
            tell(self._ctx, sighting.record, resolved=False)
        return sighting.record

    def _is_trusted(self) -> bool:
        """Whether the node is this cluster's, and what is known here is whole: else nothing is deleted."""
        ctx = self._ctx
        freshness = ctx.cache.freshness()
        if not freshness.synced or not any(stored.record for stored in ctx.cache.all(SPECS).values()):
            return False
        cluster = ctx.cache.get(CLUSTER, CLUSTER_ID).record
        return cluster is not None and self._node.cluster_id in ("", cluster.cluster_id)

    async def _delete(self, record: DriftRecord) -> None:
        """Remove a copy that nobody knows, if etcd itself still knows nothing of it."""
        ctx, node_id, workload_id = self._ctx, record.node_id, record.workload_id
        cluster = ctx.cache.get(CLUSTER, CLUSTER_ID).record
        held = await self._guards()
        try:
            claimed = await claim_deletion(
                ctx.store, record, self._node, cluster.cluster_id if cluster else "", guards=held
            )
        except Refused as error:
            log.info("a copy is not removed", node=node_id, workload=workload_id, why=str(error))
            return
        try:
            removed = await ctx.agents.delete(self._node, workload_id, epoch=record.epoch)
        except (AgentUnreachable, AgentRejected) as error:
            said = str(error)[:MAX_ERROR]
            if await note_error(ctx.store, id_of(record), said, guards=held):
                tell(ctx, claimed.replace(last_error=said), resolved=False)
            return
        if removed:
            await resolve_deleted(ctx.store, claimed, guards=held)
            self._tally["deleted"] += 1
            log.warning("a copy that no record speaks of was removed", node=node_id, workload=workload_id)
            tell(ctx, claimed, resolved=True)


def tell(ctx: LoopContext, found: DriftRecord, *, resolved: bool) -> None:
    """Tell of a finding that is open, or was resolved."""
    details = event_details(found, resolved=resolved)
    if not resolved:
        log.warning("a node differs from the records", node=found.node_id, workload=found.workload_id, **details)
    ctx.emit(EventType.DRIFT_DETECTED, workload_id=found.workload_id, node_id=found.node_id, details=details)
