"""A front for tests: the real gRPC server in this process, on whatever etcd and Redis the test gives it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc import aio
from grpc_status import rpc_status
from redis.asyncio import Redis

from scheduler.domain.node import Node
from scheduler.domain.record import Record
from scheduler.front.parts import TABLES, FrontParts
from scheduler.front.server import Front
from scheduler.pb import control_pb2 as pb
from scheduler.pb.control_pb2_grpc import AgentControlStub
from scheduler.pb.fleetbeat_pb2_grpc import FleetStub
from scheduler.placement.capacity import Overcommit
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.cluster import ensure_shard_map
from scheduler.store.keys import EVENTS, Table
from scheduler.store.kv import EtcdApi, Put
from scheduler.store.memory import MemoryEtcd
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from scheduler.telemetry.event_store import EventStore
from scheduler.telemetry.events import Events
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.pulses import Pulses
from tests.support.servers import free_port

Heartbeat = pb.HeartbeatRequest


class FakeAgents:
    """Agents whose logs the test writes."""

    open_channels = 0

    def __init__(self) -> None:
        """Start without output."""
        self.output: list[bytes] = []
        self.error: Exception | None = None
        self.asked: list[tuple[str, str, int, bool]] = []
        self.go_on = asyncio.Event()
        self.deleted: list[tuple[str, str, int]] = []
        self.deletes = True
        """Whether a copy is gone by the time a delete is answered."""

    async def logs(self, node: Node, workload_id: str, *, tail_bytes: int, follow: bool) -> AsyncIterator[bytes]:
        """Yield the output; with follow, wait for more."""
        self.asked.append((node.node_id, workload_id, tail_bytes, follow))
        for data in self.output:
            yield data
        if self.error:
            raise self.error
        if follow:
            await self.go_on.wait()

    async def delete(self, node: Node, workload_id: str, *, epoch: int) -> bool:
        """Note the order."""
        self.deleted.append((node.node_id, workload_id, epoch))
        if self.error:
            raise self.error
        return self.deletes


@dataclass
class Rig:
    """A running front and its clients."""

    parts: FrontParts
    front: Front
    channel: aio.Channel
    agents: FakeAgents
    woken: list[tuple[str, str]] = field(default_factory=list)

    @property
    def control(self) -> Any:
        """The client of persys.control.v1.AgentControl."""
        return AgentControlStub(self.channel)

    @property
    def fleet(self) -> Any:
        """The client of fleetbeat.v1.Fleet."""
        return FleetStub(self.channel)

    async def stored(self) -> dict[str, bytes]:
        """Return everything that etcd holds, but for events, which are written in the background."""
        found, _ = await self.parts.etcd.scan("/")
        return {kv.key: kv.value for kv in found if not kv.key.startswith(EVENTS.prefix)}

    async def put(self, table: Table[Any], identifier: str, record: Record) -> None:
        """Store a record behind the front's back, and wait until it sees it."""
        revision = await self.put_key(table.key(identifier), record.to_json())
        await self.parts.cache.wait_revision(revision, 5)

    async def put_key(self, key: str, value: bytes) -> int:
        """Store any value behind the front's back; return the revision."""
        result = await self.parts.etcd.txn((), [Put(key, value)])
        return result.revision

    async def register(
        self, node_id: str = "n1", endpoint: str = "127.0.0.1:50051", **capabilities: Any
    ) -> pb.RegisterNodeResponse:
        """Register a node of 2 cores and 4 GB, unless told otherwise."""
        offered = {"cpu_total_millicores": 2000, "memory_total_mb": 4096} | capabilities
        request = pb.RegisterNodeRequest(
            node_id=node_id, grpc_endpoint=endpoint, capabilities=pb.NodeCapabilities(**offered)
        )
        answer: pb.RegisterNodeResponse = await self.control.RegisterNode(request)
        await self.settled()
        return answer

    async def apply(self, workload_id: str = "web", **fields: Any) -> pb.ApplyWorkloadResponse:
        """Apply a small container, unless told otherwise."""
        spec = fields.pop("spec", None) or container()
        request = pb.ApplyWorkloadRequest(workload_id=workload_id, spec=spec, **fields)
        answer: pb.ApplyWorkloadResponse = await self.control.ApplyWorkload(request)
        return answer

    async def workload(self, workload_id: str = "web") -> pb.WorkloadView:
        """Read a workload."""
        answer = await self.control.GetWorkload(pb.GetWorkloadRequest(workload_id=workload_id))
        view: pb.WorkloadView = answer.workload
        return view

    async def node(self, node_id: str = "n1") -> pb.NodeView:
        """Read a node."""
        answer = await self.control.GetNode(pb.GetNodeRequest(node_id=node_id))
        view: pb.NodeView = answer.node
        return view

    async def settled(self) -> None:
        """Wait until all reported changes are written and the cache shows them."""
        await eventually(lambda: len(self.front.heartbeats.reports.pump) == 0)
        await self.parts.cache.wait_revision(self.parts.store.last_revision, 5)

    async def told(self) -> None:
        """Wait until all events so far are sent: to etcd, which takes a batch every half second, without Redis."""
        await eventually(lambda: not self.parts.events._waiting)


async def eventually(condition: Callable[[], bool | Awaitable[bool]], seconds: float = 10.0) -> None:
    """Wait until the condition holds; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        assert time.monotonic() < deadline, "the condition does not come true"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def front_on(
    etcd: EtcdApi | None = None,
    *,
    redis: Redis | None = None,
    wait: bool = True,
    backlog: Callable[[Sequence[int]], Sequence[int]] | None = None,
    front_id: str = "front-1",
    **settings: Any,
) -> AsyncIterator[Rig]:
    """Run a front for a block; on an etcd in memory when none is given."""
    etcd = etcd or MemoryEtcd()
    effective = Settings(**{"domain": "", **settings})  # its own DNS records come in their own time
    cache = Cache(etcd, TABLES)
    store = Store(etcd, cache=cache)
    await cache.start()
    if wait:
        await cache.ready(10)
        await ensure_shard_map(store, effective.shard_count, effective.shard_hash)
    metrics = Metrics(process=False)
    agents = FakeAgents()
    woken: list[tuple[str, str]] = []
    parts = FrontParts(
        settings=effective,
        front_id=front_id,
        cluster_id="test",
        etcd=etcd,
        store=store,
        cache=cache,
        placer=Placer(store, cache, Overcommit(1.0, 1.0, 1.0), on_outcome=metrics.place_attempted),
        agents=agents,
        pulses=Pulses(redis, gap_limit_seconds=5),
        events=Events(
            redis,
            max_entries=100,
            ttl_seconds=60,
            store=EventStore(etcd, store, cache, max_entries=100, ttl_seconds=60),
        ),
        metrics=metrics,
        wake=lambda workload_id, node_id: woken.append((workload_id, node_id)),
        redis=redis,
        backlog=backlog,
    )
    front = Front(parts)
    await front.start("127.0.0.1", free_port(), free_port())
    async with aio.insecure_channel(f"127.0.0.1:{front.grpc_port}") as channel:
        try:
            yield Rig(parts, front, channel, agents, woken)
        finally:
            await front.stop()
            await parts.events.close()
            await cache.close()


def container(**fields: Any) -> pb.WorkloadSpec:
    """Describe a container of a tenth of a core and 64 MB."""
    wanted = {"image": "nginx:1", "command": ["serve"]} | fields
    return pb.WorkloadSpec(
        type="container",
        resources=pb.ResourceRequirements(cpu_millicores=100, memory_mb=64),
        container=pb.ContainerSpec(**wanted),
    )


def status(workload_id: str, state: str, *, epoch: int = 0, revision: str = "", **fields: Any) -> pb.WorkloadStatus:
    """Describe what an agent says about a workload."""
    return pb.WorkloadStatus(
        workload_id=workload_id, state=state, assignment_epoch=epoch, revision_id=revision, **fields
    )


def error_info(error: aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """Return the ErrorInfo of a failed call."""
    rich = rpc_status.from_call(error)
    assert rich is not None, error
    info = error_details_pb2.ErrorInfo()
    assert rich.details[0].Unpack(info)
    return info


@contextlib.contextmanager
def refused(code: grpc.StatusCode, *words: str) -> Iterator[None]:
    """Expect the call in the block to end with this code and a message that has these words."""
    with pytest.raises(aio.AioRpcError) as caught:
        yield
    assert caught.value.code() is code, caught.value
    for word in words:
        assert word in (caught.value.details() or ""), caught.value
