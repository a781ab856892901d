"""Putting records into a real etcd from tests that have no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from scheduler.domain.node import Node
from scheduler.domain.record import Record
from scheduler.store.etcd import Etcd
from scheduler.store.keys import NODES, Table
from scheduler.store.kv import KV, Delete, Operation, Put
from scheduler.store.write import Versioned
from tests.support.servers import Server

T = TypeVar("T", bound=Record)


def put(server: Server, prefix: str, table: Table[T], identifier: str, record: T) -> int:
    """Store a record; return the revision."""
    return asyncio.run(_write(server, prefix, [Put(table.key(identifier), record.to_json())]))


def get(server: Server, prefix: str, table: Table[T], identifier: str) -> Versioned[T]:
    """Read a record."""

    async def read() -> Versioned[T]:
        etcd = Etcd([server.address], prefix=prefix)
        try:
            kv, _ = await etcd.get(table.key(identifier))
        finally:
            await etcd.close()
        if kv is None:
            return Versioned(identifier, None)
        return Versioned(identifier, table.model.from_json(kv.value), kv.mod_revision, kv.create_revision)

    return asyncio.run(read())


def scan(server: Server, prefix: str, key_prefix: str) -> list[KV]:
    """Read all keys under a prefix."""

    async def read() -> list[KV]:
        etcd = Etcd([server.address], prefix=prefix)
        try:
            return (await etcd.scan(key_prefix))[0]
        finally:
            await etcd.close()

    return asyncio.run(read())


def put_nodes(server: Server, prefix: str, node_ids: Sequence[str]) -> None:
    """Make these the only nodes."""

    async def replace() -> None:
        etcd = Etcd([server.address], prefix=prefix)
        try:
            present, _ = await etcd.scan(NODES.prefix)
            wanted = {NODES.key(node_id): Node(node_id=node_id).to_json() for node_id in node_ids}
            changes: list[Operation] = [Delete(kv.key) for kv in present if kv.key not in wanted]
            changes += [Put(key, value) for key, value in wanted.items()]
            for i in range(0, len(changes), 100):
                await etcd.txn([], changes[i : i + 100])
        finally:
            await etcd.close()

    asyncio.run(replace())


async def _write(server: Server, prefix: str, changes: Sequence[Operation]) -> int:
    etcd = Etcd([server.address], prefix=prefix)
    try:
        return (await etcd.txn([], changes)).revision
    finally:
        await etcd.close()
