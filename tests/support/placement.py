"""Nodes, specs and invariants for the tests of placement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from scheduler.domain.ledger import LEFT, Ledger
from scheduler.domain.node import Node
from scheduler.domain.record import Record
from scheduler.domain.workload import Assignment, Desired, Resources, Tombstone, WorkloadSpec, WorkloadStatus
from scheduler.placement.capacity import Overcommit, allocatable, committed
from scheduler.store.cache import Cache
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES, VOLUMES, Table
from scheduler.store.kv import EtcdApi
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

TABLES = (NODES, LEDGERS, SPECS, STATUSES, ASSIGNMENTS, TOMBSTONES)
EXACT = Overcommit()


def node(node_id: str = "n-1", **changes: Any) -> Node:
    """Describe a node that takes anything: 2 cores, 2048 MB."""
    return Node(**{"node_id": node_id, "total_cpu": 2.0, "total_memory": 2048, **changes})


def spec(
    workload_id: str = "web", *, cpu: float = 0.1, memory: int = 64, disk: int = 0, **changes: Any
) -> WorkloadSpec:
    """Describe a container that asks for a tenth of a core and 64 MB."""
    resources = Resources(cpu_usage=cpu, memory_usage=memory, disk_usage=disk)
    return WorkloadSpec(**{"id": workload_id, "type": "container", "resources": resources, **changes})


async def put(store: Store, table: Table[Any], identifier: str, record: Record) -> None:
    """Store a record, whatever was there."""

    def decide(_view: View) -> Write[None]:
        write: Write[None] = Write(None)
        write.put(table, identifier, record)
        return write

    await store.transact([Ref(table, identifier)], decide)


async def put_nodes(store: Store, nodes: Iterable[Node]) -> None:
    """Store nodes."""
    for each in nodes:
        await put(store, NODES, each.node_id, each)


async def put_workload(store: Store, workload: WorkloadSpec) -> None:
    """Store a spec and the status of a workload that has no node, as the API does; leave one that is there."""

    def decide(view: View) -> Write[None]:
        write: Write[None] = Write(None)
        if view.get(STATUSES, workload.id).record:
            return write
        write.put(SPECS, workload.id, workload)
        write.put(STATUSES, workload.id, WorkloadStatus(id=workload.id))
        return write

    await store.transact([Ref(SPECS, workload.id), Ref(STATUSES, workload.id)], decide)


async def delete_workload(store: Store, workload_id: str) -> None:
    """Remove a workload with its commitment in one transaction, as the end of a delete does."""
    while True:
        status = (await store.get(STATUSES, workload_id)).record
        if status is None:
            return
        if await _delete_from(store, workload_id, status.node_id):
            return


async def _delete_from(store: Store, workload_id: str, node_id: str) -> bool:
    refs: list[Ref[Any]] = [Ref(table, workload_id) for table in (SPECS, STATUSES, ASSIGNMENTS)]
    if node_id:
        refs.append(Ref(LEDGERS, node_id))

    def decide(view: View) -> Write[bool]:
        status = view.get(STATUSES, workload_id).record
        if status and status.node_id != node_id:
            return Write(result=False)
        write = Write(result=True)
        for table in (SPECS, STATUSES, ASSIGNMENTS):
            write.delete(table, workload_id)
        ledger = view.get(LEDGERS, node_id).record if node_id else None
        if ledger:
            write.put(LEDGERS, node_id, ledger.without(workload_id))
        return write

    return await store.transact(refs, decide)


@asynccontextmanager
async def placer_on(etcd: EtcdApi, overcommit: Overcommit = EXACT) -> AsyncIterator[tuple[Placer, Store, Cache]]:
    """Run a placer with a cache of its own, as a process of its own would have."""
    cache = Cache(etcd, (*TABLES, VOLUMES))
    await cache.start()
    try:
        await cache.ready(10)
        store = Store(etcd, cache=cache)
        yield Placer(store, cache, overcommit), store, cache
    finally:
        await cache.close()


@asynccontextmanager
async def placers_on(etcds: Sequence[EtcdApi]) -> AsyncIterator[list[tuple[Placer, Store, Cache]]]:
    """Run one placer for each of the clients."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(placer_on(etcd)) for etcd in etcds]


async def records(etcd: EtcdApi, table: Table[Any], revision: int = 0) -> dict[str, Any]:
    """Return a table as it was at a revision (0: now)."""
    found, _ = await etcd.scan(table.prefix, revision=revision)
    return {table.id_of(kv.key): table.model.from_json(kv.value) for kv in found}


async def check_history(etcd: EtcdApi, first_revision: int = 2, overcommit: Overcommit = EXACT) -> int:
    """Check the invariants at every revision from the first to now; return how many were checked."""
    _, last = await etcd.get("/none")
    epochs: dict[str, int] = {}
    before: dict[str, WorkloadStatus] = {}
    for revision in range(first_revision, last + 1):
        tables = await asyncio.gather(*(records(etcd, table, revision) for table in TABLES))
        now = dict(zip(TABLES, tables, strict=True))
        check_capacity(now[NODES], now[LEDGERS], overcommit)
        check_agreement(now[LEDGERS], now[STATUSES], now[ASSIGNMENTS])
        check_epochs(epochs, before, now[STATUSES], now[TOMBSTONES])
        before = now[STATUSES]
    return last - first_revision + 1


def check_capacity(nodes: dict[str, Node], ledgers: dict[str, Ledger], overcommit: Overcommit) -> None:
    """Check that no node has promised more than it has, and no port twice."""
    for node_id, ledger in ledgers.items():
        limits = allocatable(nodes[node_id], overcommit)
        assert all(c <= limit for c, limit in zip(committed(ledger), limits, strict=True)), ledger
        ports = [port for c in ledger.commitments.values() for port in c.ports]
        assert len(ports) == len(set(ports)), ledger


def check_agreement(
    ledgers: dict[str, Ledger], statuses: dict[str, WorkloadStatus], assignments: dict[str, Assignment]
) -> None:
    """Check that ledgers, statuses and assignments tell the same story: one node for each workload."""
    by_status = sorted((s.id, s.node_id, s.epoch) for s in statuses.values() if s.node_id)
    assert by_status == sorted((a.workload_id, a.node_id, a.epoch) for a in assignments.values())
    assert by_status == commitments(ledgers.values())


def check_epochs(
    epochs: dict[str, int],
    before: dict[str, WorkloadStatus],
    now: dict[str, WorkloadStatus],
    tombstones: dict[str, Tombstone],
) -> None:
    """Check that each assignment has an epoch above all earlier ones of its workload, and that a move owes a stop."""
    for status in now.values():
        last = before.get(status.id, WorkloadStatus(id=status.id))
        if not status.node_id or (status.node_id, status.epoch) == (last.node_id, last.epoch):
            continue
        assert status.epoch > epochs.get(status.id, 0), (status, epochs)
        epochs[status.id] = status.epoch
        assert f"{status.node_id}/{status.id}" not in tombstones
        if last.node_id and last.node_id != status.node_id:  # else the same node has it by a newer epoch
            assert status.previous_node == last.node_id
            assert tombstones[f"{last.node_id}/{status.id}"].epoch >= last.epoch


def commitments(ledgers: Iterable[Ledger]) -> list[tuple[str, str, int]]:
    """Return (workload, node, epoch) of every commitment, but of what is left on an old node."""
    found = [(holder, ledger.node_id, c) for ledger in ledgers for holder, c in ledger.commitments.items()]
    return sorted((holder, node_id, c.epoch) for holder, node_id, c in found if c.kind != LEFT)


async def mark_deleted(store: Store, workload_id: str) -> None:
    """Ask for the deletion of a workload, as the API does."""

    def decide(view: View) -> Write[None]:
        write: Write[None] = Write(None)
        known = view.get(SPECS, workload_id).record
        if known:
            write.put(SPECS, workload_id, known.replace(desired_state=Desired.DELETED))
        return write

    await store.transact([Ref(SPECS, workload_id)], decide)
