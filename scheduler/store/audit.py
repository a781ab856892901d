"""What is committed on nodes for nobody: found by a scan of all records, released in transactions that look again."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from scheduler.convergence.drain import is_vacating
from scheduler.domain.ledger import LEFT, LEFT_SUFFIX, Commitment, Ledger
from scheduler.domain.workload import WorkloadStatus
from scheduler.store.keys import LEDGERS, NODES, STATUSES, TOMBSTONES
from scheduler.store.store import Store
from scheduler.store.tombstones import tombstone_id
from scheduler.store.write import Ref, View, Write

WORKLOAD = "workload"
"""The kind of a commitment that a workload's status must stand behind."""


@dataclass(frozen=True, slots=True)
class Charge:
    """A commitment in the ledger of a node that nothing stands behind."""

    node_id: str
    holder: str
    why: str


def charges(
    nodes: AbstractSet[str],
    ledgers: Mapping[str, Ledger],
    statuses: Mapping[str, WorkloadStatus],
    tombstones: AbstractSet[str],
) -> list[Charge]:
    """Return the commitments for nobody, by node and holder; nodes and tombstones by their ids."""
    return [
        Charge(node_id, holder, why)
        for node_id, ledger in sorted(ledgers.items())
        for holder, commitment in sorted(ledger.commitments.items())
        if (why := _why(node_id in nodes, node_id, holder, commitment, statuses, tombstones))
    ]


def _why(  # noqa: PLR0917 - one row of the tables
    known: bool,
    node_id: str,
    holder: str,
    commitment: Commitment,
    statuses: Mapping[str, WorkloadStatus],
    tombstones: AbstractSet[str],
) -> str:
    """Say why nothing stands behind a commitment; blank when something does."""
    if not known:
        return "there is no such node"
    workload_id = holder.removesuffix(LEFT_SUFFIX)
    status = statuses.get(workload_id)
    here = status is not None and status.node_id == node_id
    if commitment.kind == LEFT:
        owed = tombstone_id(node_id, workload_id) in tombstones
        return "" if owed or (here and status is not None and is_vacating(status)) else "nothing is left to be stopped"
    if commitment.kind != WORKLOAD or here:
        return ""
    return "there is no such workload" if status is None else "the workload is not on this node"


async def find_charges(store: Store) -> list[Charge]:
    """Read all that concerns commitments, at one revision. Costs a scan of four tables."""
    found: list[dict[str, Any]] = []
    revision = 0
    for table in (NODES, LEDGERS, STATUSES, TOMBSTONES):
        values, revision = await store.etcd.scan(table.prefix, revision=revision)
        found.append({table.id_of(v.key): table.model.from_json(v.value) for v in values if table.owns(v.key)})
    nodes, ledgers, statuses, tombstones = found
    return charges(nodes.keys(), ledgers, statuses, tombstones.keys())


async def release(store: Store, charge: Charge) -> bool:
    """Release a commitment if still nothing stands behind it; return whether it was released now."""
    node_id, workload_id = charge.node_id, charge.holder.removesuffix(LEFT_SUFFIX)
    owed = tombstone_id(node_id, workload_id)
    refs: list[Ref[Any]] = [Ref(NODES, node_id), Ref(LEDGERS, node_id), Ref(STATUSES, workload_id)]

    def decide(view: View) -> Write[bool]:
        ledger, status = view.get(LEDGERS, node_id).record, view.get(STATUSES, workload_id).record
        commitment = ledger.commitments.get(charge.holder) if ledger else None
        if ledger is None or commitment is None:
            return Write(result=False)
        known = view.get(NODES, node_id).record is not None
        tombstones = {owed} if view.get(TOMBSTONES, owed).record else set()
        if not _why(known, node_id, charge.holder, commitment, {workload_id: status} if status else {}, tombstones):
            return Write(result=False)
        write = Write(result=True)
        left = {holder: c for holder, c in ledger.commitments.items() if holder != charge.holder}
        if left or known:
            write.put(LEDGERS, node_id, ledger.replace(commitments=left))
        else:
            write.delete(LEDGERS, node_id)
        return write

    return await store.transact([*refs, Ref(TOMBSTONES, owed)], decide)
