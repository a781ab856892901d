"""What operators vouch for: that a node is off, and that work may move although many nodes are lost."""

from __future__ import annotations

from datetime import datetime, timedelta

from scheduler.domain.brake import BrakeRelease
from scheduler.domain.errors import NotFound, Refused
from scheduler.domain.node import Health, Node
from scheduler.store.keys import BRAKES, NODES
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write

BY = "operator"


async def fence_node(store: Store, node_id: str, reason: str, *, force: bool, now: datetime) -> tuple[Node, bool]:
    """Record that an operator has made sure that a node is off; return it, and whether that was news.

    It counts until the node is heard again. Raises NotFound; Refused for a node that is heard,
    unless forced: then it is NotReady from now on, until its next heartbeat.
    """

    def decide(view: View) -> Write[tuple[Node, bool]]:
        node = view.get(NODES, node_id).record
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        if node.is_ready and not force:
            raise Refused(f'node "{node_id}" is {node.status}: turn it off first, and wait until it is not heard')
        if node.is_fenced and node.fenced_by == reason:
            return Write((node, False))
        fenced = _fenced(node, reason, now)
        write = Write((fenced, True))
        write.put(NODES, node_id, fenced)
        return write

    return await store.transact([Ref(NODES, node_id)], decide)


def _fenced(node: Node, reason: str, now: datetime) -> Node:
    if node.is_ready:
        node = node.replace(
            status=Health.NOT_READY, status_reason=f"fenced: {reason}", status_updated_by=BY, status_updated_at=now
        )
    since = node.status_updated_at
    return node.replace(fenced_at=max(now, since) if since else now, fenced_by=reason)


async def release_brake(store: Store, shard: int, *, seconds: float, reason: str, now: datetime) -> BrakeRelease:
    """Let work of a shard move for so long, whatever fell silent together; zero or less: hold again."""
    release = BrakeRelease(shard=shard, until=now + timedelta(seconds=seconds), released_at=now, reason=reason)

    def decide(view: View) -> Write[BrakeRelease]:
        standing = view.get(BRAKES, str(shard)).record
        write = Write(release)
        if seconds > 0:
            write.put(BRAKES, str(shard), release)
        elif standing:
            write.delete(BRAKES, str(shard))
        return write

    return await store.transact([Ref(BRAKES, str(shard))], decide)
