"""Open findings of drift: written when first seen, with each further sighting that counts, and at their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.convergence.drift import Finding
from scheduler.domain.drift import DriftRecord, drift_id
from scheduler.domain.errors import Refused
from scheduler.domain.node import Node
from scheduler.store.cache import Cache
from scheduler.store.keys import CLUSTER, CLUSTER_ID, DRIFTS, LEGACY, NODES, SPECS, STATUSES, TOMBSTONES, Table
from scheduler.store.store import Store
from scheduler.store.tombstones import tombstone_id
from scheduler.store.write import NO_BASIS, Basis, Guard, Ref, View, Write


def id_of(found: DriftRecord) -> str:
    """Return the id of a finding in its table."""
    return drift_id(found.node_id, found.workload_id, found.drift_type)


MAX_ERROR = 512
"""Characters of an agent's error that a finding keeps."""
MAX_NAMED = 64
"""Findings about one workload that one transaction resolves; more nodes than that do not keep a copy of it."""


def findings_about(cache: Cache | None, workload_id: str) -> list[str]:
    """Return the ids of open findings about a workload, as the cache has them; they are few."""
    if cache is None or not cache.mirrors(DRIFTS):
        return []
    open_now = cache.all(DRIFTS).items()
    return [i for i, stored in open_now if stored.record and stored.record.workload_id == workload_id][:MAX_NAMED]


def basis_of(cache: Cache, node_id: str, workload_id: str) -> Basis:
    """Return what findings about a workload on a node rest on, as the cache has it."""
    return Basis({ref: cache.get(ref.table, ref.id).mod_revision for ref in _grounds(node_id, workload_id)})


def absent(node_id: str, workload_id: str) -> Basis:
    """Return what a finding rests on about a workload that no record speaks of."""
    return Basis(dict.fromkeys(_grounds(node_id, workload_id), 0))


def _grounds(node_id: str, workload_id: str) -> tuple[Ref[Any], ...]:
    owed = Ref(TOMBSTONES, tombstone_id(node_id, workload_id))
    return Ref(SPECS, workload_id), Ref(STATUSES, workload_id), Ref(LEGACY, workload_id), owed


@dataclass(frozen=True, slots=True)
class Sighting:
    """A finding after a sighting, and whether that is news: opened, of another copy, or to be treated anew."""

    record: DriftRecord
    is_news: bool


async def see(
    store: Store,
    node_id: str,
    found: Finding,
    *,
    basis: Basis,
    now: datetime,
    counts_to: int,
    guards: Sequence[Guard] = (),
) -> Sighting | None:
    """Record a sighting; one that is known with all that counts writes nothing.

    basis: what the finding rests on. Return the finding as it is now; None, and nothing is written, when
    that has changed since, or the node is gone.
    """
    identifier = drift_id(node_id, found.workload_id, found.kind)

    def decide(view: View) -> Write[Sighting | None]:
        if not basis.holds(view) or view.get(NODES, node_id).record is None:
            return Write(None)
        known = view.get(DRIFTS, identifier).record
        after = after_sighting(known, node_id, found, now, counts_to)
        is_news = known is None or (known.action, known.epoch) != (after.action, after.epoch)
        write: Write[Sighting | None] = Write(Sighting(after, is_news))
        if after != known:
            write.put(DRIFTS, identifier, after)
        return write

    return await store.transact([Ref(DRIFTS, identifier), Ref(NODES, node_id), *basis.refs], decide, guards=guards)


def after_sighting(
    known: DriftRecord | None, node_id: str, found: Finding, now: datetime, counts_to: int
) -> DriftRecord:
    """Return a finding after one more sighting; another copy of the same name begins anew."""
    fresh = DriftRecord(
        node_id=node_id,
        workload_id=found.workload_id,
        drift_type=found.kind,
        detected_at=now,
        scheduler_status=found.scheduler_status,
        agent_status=found.agent_status,
        action=found.action,
        epoch=found.epoch,
    )
    if known is None or known.epoch != found.epoch:
        return fresh
    counted = min(known.sightings + 1, max(known.sightings, counts_to))
    return fresh.replace(
        detected_at=known.detected_at, sightings=counted, last_error=known.last_error, attempts=known.attempts
    )


async def resolve(store: Store, seen: DriftRecord, *, basis: Basis = NO_BASIS, guards: Sequence[Guard] = ()) -> bool:
    """Remove a finding that is not true any more, if it and what that rests on are as seen; return whether it was."""
    identifier = id_of(seen)

    def decide(view: View) -> Write[bool]:
        write = Write(view.get(DRIFTS, identifier).record == seen and basis.holds(view))
        if write.result:
            write.delete(DRIFTS, identifier)
        return write

    return await store.transact([Ref(DRIFTS, identifier), *basis.refs], decide, guards=guards)


async def claim_deletion(
    store: Store, seen: DriftRecord, node: Node, cluster_id: str, *, guards: Sequence[Guard] = ()
) -> DriftRecord:
    """Note that an unknown copy is being deleted, if all that allows it holds in etcd itself; return the finding.

    seen: the finding as it was judged; node: its node as its agent is about to be called; cluster_id: of
    the cluster whose records are known here. Each try is noted, so that each is compared. Raises Refused with
    what does not hold.
    """
    identifier, workload_id = id_of(seen), seen.workload_id

    def decide(view: View) -> Write[DriftRecord]:
        if why := _why_not(view, seen, node, cluster_id):
            raise Refused(why)
        after = seen.replace(attempts=seen.attempts + 1)
        write = Write(after)
        write.put(DRIFTS, identifier, after)
        return write

    refs: list[Ref[Any]] = [Ref(DRIFTS, identifier), Ref(NODES, seen.node_id), Ref(CLUSTER, CLUSTER_ID)]
    return await store.transact([*refs, *_grounds(seen.node_id, workload_id)], decide, guards=guards)


def _why_not(view: View, seen: DriftRecord, node: Node, cluster_id: str) -> str:
    """Say why a copy may not be deleted as unknown; blank when it may."""
    node_id, workload_id = seen.node_id, seen.workload_id
    cluster, there = view.get(CLUSTER, CLUSTER_ID).record, view.get(NODES, node_id).record
    if cluster is None or cluster.cluster_id != cluster_id or (there and there.cluster_id not in {"", cluster_id}):
        return f'etcd or node "{node_id}" is of another cluster'
    if there is None or (there.agent_endpoint, there.instance_id) != (node.agent_endpoint, node.instance_id):
        return f'node "{node_id}" was registered anew or removed'
    tables: tuple[Table[Any], ...] = (SPECS, STATUSES, LEGACY)
    if any(view.get(table, workload_id).record for table in tables):
        return f'workload "{workload_id}" has a record: delete the workload itself'
    if view.get(TOMBSTONES, tombstone_id(node_id, workload_id)).record:
        return f'node "{node_id}" is removing "{workload_id}" already'
    if view.get(DRIFTS, id_of(seen)).record != seen:
        return f'the finding of "{workload_id}" on node "{node_id}" has changed'
    return ""


async def resolve_deleted(store: Store, seen: DriftRecord, *, guards: Sequence[Guard] = ()) -> bool:
    """Remove the finding of a copy that was deleted; return whether it was there, for the same copy."""
    identifier = id_of(seen)

    def decide(view: View) -> Write[bool]:
        known = view.get(DRIFTS, identifier).record
        write = Write(known is not None and known.epoch == seen.epoch)
        if write.result:
            write.delete(DRIFTS, identifier)
        return write

    return await store.transact([Ref(DRIFTS, identifier)], decide, guards=guards)


async def note_error(store: Store, identifier: str, error: str, *, guards: Sequence[Guard] = ()) -> bool:
    """Record why a finding could not be resolved; return whether that is news."""

    def decide(view: View) -> Write[bool]:
        known = view.get(DRIFTS, identifier).record
        write = Write(result=False)
        if known is not None and known.last_error != error:
            write.result = True
            write.put(DRIFTS, identifier, known.replace(last_error=error))
        return write

    return await store.transact([Ref(DRIFTS, identifier)], decide, guards=guards)
