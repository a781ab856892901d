"""Open findings of drift: written when first seen, with each further sighting that counts, and at their end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from scheduler.convergence.drift import Finding
from scheduler.domain.drift import DriftRecord, drift_id
from scheduler.store.keys import DRIFTS, SPECS
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write


async def see(
    store: Store, node_id: str, found: Finding, *, now: datetime, counts_to: int, guards: Sequence[Guard] = ()
) -> DriftRecord:
    """Record a sighting; one that is known with all that counts writes nothing. Return the finding as it is now."""
    identifier = drift_id(node_id, found.workload_id, found.kind)

    def decide(view: View) -> Write[DriftRecord]:
        known = view.get(DRIFTS, identifier).record
        after = after_sighting(known, node_id, found, now, counts_to)
        write = Write(after)
        if after != known:
            write.put(DRIFTS, identifier, after)
        return write

    return await store.transact([Ref(DRIFTS, identifier)], decide, guards=guards)


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
    return fresh.replace(detected_at=known.detected_at, sightings=counted, last_error=known.last_error)


async def resolve(store: Store, identifier: str, *, guards: Sequence[Guard] = ()) -> bool:
    """Remove a finding that is not true any more; return whether there was one."""

    def decide(view: View) -> Write[bool]:
        write = Write(view.get(DRIFTS, identifier).record is not None)
        if write.result:
            write.delete(DRIFTS, identifier)
        return write

    return await store.transact([Ref(DRIFTS, identifier)], decide, guards=guards)


async def resolve_deleted(store: Store, identifier: str, workload_id: str, *, guards: Sequence[Guard] = ()) -> bool:
    """Remove the finding of a copy that was deleted, if there still is no workload of that name."""

    def decide(view: View) -> Write[bool]:
        write = Write(view.get(SPECS, workload_id).record is None)
        if view.get(DRIFTS, identifier).record is not None:
            write.delete(DRIFTS, identifier)
        return write

    return await store.transact([Ref(DRIFTS, identifier), Ref(SPECS, workload_id)], decide, guards=guards)


async def note_error(store: Store, identifier: str, error: str, *, guards: Sequence[Guard] = ()) -> None:
    """Record why a finding could not be resolved, unless that is recorded."""

    def decide(view: View) -> Write[None]:
        known = view.get(DRIFTS, identifier).record
        write: Write[None] = Write(None)
        if known is not None and known.last_error != error:
            write.put(DRIFTS, identifier, known.replace(last_error=error))
        return write

    await store.transact([Ref(DRIFTS, identifier)], decide, guards=guards)
