"""What operators vouch for: a node is off; work may move although many nodes are lost."""

from __future__ import annotations

from typing import Any

from scheduler.domain.brake import MAX_REASON, MAX_RELEASE_SECONDS, BrakeRelease
from scheduler.domain.errors import InvalidInput, NotFound, Refused
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.node import Node
from scheduler.domain.policy import is_exclusive
from scheduler.front import fields
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.leadership.brakes import held_in, release_of
from scheduler.pb import fleetbeat_pb2 as pb
from scheduler.store.fences import fence_node, release_brake
from scheduler.store.keys import NODES
from scheduler.store.volumes import free_claims

DEFAULT_RELEASE_SECONDS = 600.0
MAX_WOKEN = 1000
"""Workloads that are looked at right after a fence; the rest follows in the next cycle."""


class Fencing:
    """Some methods of fleetbeat.v1.Fleet, named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and who reads."""
        self._parts = parts
        self._reader = reader

    async def FenceNode(self, request: pb.FenceNodeRequest, _context: Any) -> pb.FenceNodeResponse:  # noqa: N802 - the wire's name
        """Take an operator's word that a node is off."""
        node_id = check_id("node_id", request.node_id)
        reason = fields.line("reason", request.reason, MAX_REASON).strip() or "confirmed by an operator"
        self._reader.require_listed()
        if request.validate_only:
            return self._fenced(await self._checked(node_id, force=request.force))
        node, news = await fence_node(self._parts.store, node_id, reason, force=request.force, now=self._parts.now())
        if news:
            self._parts.events.emit(EventType.NODE_FENCED, node_id=node_id, reason=reason)
        await free_claims(self._parts.store, self._parts.cache, node_id)
        await self._reader.see_own_writes()
        for workload_id in sorted(self._reader.index.on_node(node_id))[:MAX_WOKEN]:
            self._parts.wake(workload_id, node_id)
        return self._fenced(node)

    async def _checked(self, node_id: str, *, force: bool) -> Node:
        node = (await self._parts.store.get(NODES, node_id)).record
        if node is None:
            raise NotFound(f'there is no node "{node_id}"')
        if node.is_ready and not force:
            raise Refused(f'node "{node_id}" is {node.status}: turn it off first, and wait until it is not heard')
        return node

    def _fenced(self, node: Node) -> pb.FenceNodeResponse:
        there = self._reader.index.on_node(node.node_id)
        specs = (self._reader.index.spec(workload_id) for workload_id in there)
        answer = pb.FenceNodeResponse(
            node_id=node.node_id,
            status=node.status,
            workloads=len(there),
            exclusive=sum(1 for spec in specs if spec and is_exclusive(spec)),
        )
        if node.fenced_at:
            answer.fenced_at.FromDatetime(node.fenced_at)
        return answer

    async def ReleaseBrake(self, request: pb.ReleaseBrakeRequest, _context: Any) -> pb.ReleaseBrakeResponse:  # noqa: N802
        """Let the work of lost nodes of a shard move for a while, or hold it again."""
        fields.number("shard", request.shard, 0, self._parts.shards.count - 1)
        reason = fields.line("reason", request.reason, MAX_REASON).strip()
        seconds = request.seconds or DEFAULT_RELEASE_SECONDS
        if not 1 <= seconds <= MAX_RELEASE_SECONDS:
            raise InvalidInput("seconds", f"{seconds:g} is not allowed; it must be 1 to {MAX_RELEASE_SECONDS}")
        self._reader.require_listed()
        release = await release_brake(
            self._parts.store,
            request.shard,
            seconds=0.0 if request.hold_again else seconds,
            reason=reason,
            now=self._parts.now(),
        )
        if not request.hold_again:
            until = release.until.isoformat(timespec="seconds")
            self._parts.events.emit(
                EventType.BRAKE_RELEASED, reason=reason, details={"shard": str(request.shard), "until": until}
            )
        await self._reader.see_own_writes()
        self._wake_lost(request.shard)
        return pb.ReleaseBrakeResponse(brake=self._brake(request.shard))

    def _wake_lost(self, shard: int) -> None:
        """Have the work of the shard's lost nodes looked at now."""
        lost = [i for i, node in self._parts.cache.all(NODES).items() if node.record and not node.record.is_ready]
        woken = 0
        for node_id in lost:
            if self._parts.shard_of(node_id) != shard:
                continue
            for workload_id in sorted(self._reader.index.on_node(node_id)):
                if woken >= MAX_WOKEN:
                    return
                self._parts.wake(workload_id, node_id)
                woken += 1

    async def ListBrakes(self, _request: pb.ListBrakesRequest, _context: Any) -> pb.ListBrakesResponse:  # noqa: N802
        """Show the shards that hold something, or whose brake is released."""
        self._reader.require_listed()
        found = [self._brake(shard) for shard in range(self._parts.shards.count)]
        brakes = [one for one in found if one.reason or one.HasField("released_until")]
        return pb.ListBrakesResponse(brakes=brakes, stale=self._reader.stale)

    def _brake(self, shard: int) -> pb.Brake:
        now = self._parts.now()
        held = held_in(self._parts.cache, self._parts.settings, shard, now)
        brake = pb.Brake(shard=shard, nodes=len(held.held), reason=held.reason)
        release: BrakeRelease | None = release_of(self._parts.cache, shard, now)
        if release:
            brake.released_until.FromDatetime(release.until)
            brake.release_reason = release.reason
        return brake
