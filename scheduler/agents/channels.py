"""One channel a node, kept while its agent stays the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio

from scheduler.agents.breaker import Breaker
from scheduler.domain.node import Node
from scheduler.pb import agent_pb2_grpc, fleetbeat_pb2_grpc

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""A roster of some 10,000 workloads."""
CLOSE_SECONDS = 2.0
_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Agents with grpc's default policy answer pings on an idle connection with GOAWAY too_many_pings.
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # The breaker paces attempts; the channel's own back-off, up to two minutes, would hide a restarted agent.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


@dataclass
class Peer:
    """How to talk to one node's agent."""

    address: tuple[str, str]
    """Endpoint and instance: a new one of either is another agent, with nothing held against it."""
    channel: grpc.aio.Channel
    slots: asyncio.Semaphore
    streams: asyncio.Semaphore
    breaker: Breaker = field(default_factory=Breaker)
    replaced: bool = False
    """A new agent has taken its place, or the node is gone: do not call it any more."""
    credentials: grpc.ChannelCredentials | None = None

    def __post_init__(self) -> None:
        """Make the stubs."""
        self.talk_by(self.channel, self.credentials)

    def talk_by(self, channel: grpc.aio.Channel, credentials: grpc.ChannelCredentials | None) -> None:
        """Take a channel, and build the stubs once: they cost more than a call's own bookkeeping."""
        self.channel, self.credentials = channel, credentials
        self.service: agent_pb2_grpc.AgentServiceAsyncStub = agent_pb2_grpc.AgentServiceStub(self.channel)
        self.node_agent: fleetbeat_pb2_grpc.NodeAgentAsyncStub = fleetbeat_pb2_grpc.NodeAgentStub(self.channel)


class Channels:
    """Dials lazily, redials when the endpoint or the agent's instance changes. For one event loop."""

    def __init__(
        self,
        *,
        per_node: int,
        grace_seconds: float,
        credentials: Callable[[], grpc.ChannelCredentials] | None = None,
        on_dial: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the limit of calls to one node, how long those to a replaced agent may take, and credentials.

        credentials: returns another object when the certificate has changed; None: no TLS.
        on_dial: told of each new channel.
        """
        self._per_node = per_node
        self._grace = grace_seconds
        self._credentials = credentials
        self._on_dial = on_dial
        self._peers: dict[str, Peer] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """Return the number of channels in use."""
        return len(self._peers)

    def peer(self, node: Node) -> Peer:
        """Return the peer of a node."""
        address = (node.agent_endpoint, node.instance_id)
        known = self._peers.get(node.node_id)
        if known and known.address == address:
            self._renew(known)
            return known
        self._drop(node.node_id, self._grace)
        credentials = self._credentials() if self._credentials else None
        peer = Peer(
            address=address,
            channel=self._dial(node.agent_endpoint, credentials),
            credentials=credentials,
            slots=asyncio.Semaphore(self._per_node),
            streams=asyncio.Semaphore(self._per_node),
        )
        self._peers[node.node_id] = peer
        return peer

    def forget(self, node_id: str) -> None:
        """Close the channel of a node that is gone, once the calls in flight have ended."""
        self._drop(node_id, self._grace)

    async def close(self) -> None:
        """Close all channels; calls in flight end."""
        for node_id in list(self._peers):
            self._drop(node_id, None)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS)

    def _renew(self, peer: Peer) -> None:
        """Dial anew when the certificate has changed; a connection that stands goes on with the old one."""
        if self._credentials is None or peer.channel.get_state() is grpc.ChannelConnectivity.READY:
            return
        if (credentials := self._credentials()) is not peer.credentials:
            self._close(peer.channel, self._grace)
            peer.talk_by(self._dial(peer.address[0], credentials), credentials)

    def _dial(self, endpoint: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        self._on_dial()
        if credentials:
            return grpc.aio.secure_channel(endpoint, credentials, options=_OPTIONS)
        return grpc.aio.insecure_channel(endpoint, options=_OPTIONS)

    def _drop(self, node_id: str, grace: float | None) -> None:
        peer = self._peers.pop(node_id, None)
        if peer is None:
            return
        peer.replaced = True
        self._close(peer.channel, grace)

    def _close(self, channel: grpc.aio.Channel, grace: float | None) -> None:
        task = asyncio.ensure_future(channel.close(grace))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
