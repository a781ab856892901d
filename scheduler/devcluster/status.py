"""Ask a front how the cluster is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from scheduler.pb import fleetbeat_pb2, fleetbeat_pb2_grpc

_ASK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One shard, for the live status."""

    shard: int
    nodes: int
    queue_length: int
    reconciled_seconds_ago: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """What the live status shows; blank while no front answers."""

    cluster_id: str = ""
    nodes: int = 0
    nodes_ready: int = 0
    leader: str = ""
    shards: tuple[ShardLine, ...] = ()
    workloads: dict[str, int] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


class StatusReader:
    """Reads GetClusterStatus from whichever front answers."""

    def __init__(self, servers: Sequence[str]) -> None:
        """Prepare a channel over all fronts; it connects when it is used."""
        options = [("grpc.lb_policy_name", "round_robin"), ("grpc.max_reconnect_backoff_ms", 500)]
        self._channel = grpc.aio.insecure_channel("ipv4:" + ",".join(servers), options=options)
        self._fleet = fleetbeat_pb2_grpc.FleetStub(self._channel)

    async def read(self) -> ClusterStatus | None:
        """Return the status, or None when no front answers in time."""
        try:
            answer = await self._fleet.GetClusterStatus(
                fleetbeat_pb2.GetClusterStatusRequest(), timeout=_ASK_SECONDS, wait_for_ready=True
            )
        except grpc.aio.AioRpcError:
            return None
        return _status_of(answer)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


def _status_of(answer: fleetbeat_pb2.GetClusterStatusResponse) -> ClusterStatus:
    return ClusterStatus(
        cluster_id=answer.cluster_id,
        nodes=answer.summary.total_nodes,
        nodes_ready=answer.summary.ready_nodes,
        leader=answer.leader.instance_id,
        shards=tuple(_line_of(shard) for shard in answer.shards),
        workloads={name: count for name, count in sorted(answer.summary.workloads_by_status.items()) if count},
        notices=tuple(answer.notices),
    )


def _line_of(shard: fleetbeat_pb2.ShardStatus) -> ShardLine:
    ages = [loop.age_seconds for loop in shard.loops if loop.loop == "reconcile"]
    return ShardLine(shard.shard, shard.nodes, shard.queue_length, ages[0] if ages else -1.0)
