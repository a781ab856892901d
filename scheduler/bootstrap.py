"""The only place that builds real parts from settings: one `open_…` a kind of process.

Everything opened here is closed in reverse order by the parts' `close`, also when opening
fails half-way.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import grpc
from redis.asyncio import Redis

from scheduler.agents.client import Agents
from scheduler.front.parts import TABLES, FrontParts
from scheduler.leadership.shards import current_map
from scheduler.loops.context import LoopContext
from scheduler.placement.capacity import Overcommit
from scheduler.queues.admission import Admission
from scheduler.queues.app import make_app
from scheduler.queues.publish import Publisher, WakeUps
from scheduler.settings import Settings, SettingsError
from scheduler.store.cache import Cache, Change
from scheduler.store.cluster import ensure_shard_map, join_cluster, refuse_another
from scheduler.store.endpoints import TlsFiles
from scheduler.store.etcd import Etcd
from scheduler.store.keys import CLUSTER, SHARD_MAP, Table
from scheduler.store.placements import Placer
from scheduler.store.pulses import PulsePages
from scheduler.store.store import Store
from scheduler.store.volumes import kept_volumes
from scheduler.telemetry.event_store import EventStore
from scheduler.telemetry.events import Events
from scheduler.telemetry.history import History
from scheduler.telemetry.history_store import HistoryStore
from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.pulses import Pulses
from scheduler.telemetry.redis import make_redis
from scheduler.telemetry.shared import SharedMetrics
from scheduler.telemetry.spare_pulses import SparedPulses
from scheduler.tls.credentials import ChannelCredentials
from scheduler.tls.files import BadFiles, FollowedFiles

_READY_SECONDS = 10.0
_GAPS_PER_LEASE = 3
"""A front that was silent for a third of a node's lease has not been listening without a gap."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class BeatParts:
    """etcd and what rests on it."""

    etcd: Etcd
    store: Store
    cache: Cache
    stack: AsyncExitStack = field(repr=False)
    cluster_id: str

    async def close(self) -> None:
        """Close everything, newest first."""
        await self.stack.aclose()


@dataclass
class WorkerParts(BeatParts):
    """What a process that runs tasks works with."""

    loop_context: LoopContext
    admission: Admission


def make_etcd(settings: Settings) -> Etcd:
    """Return a client of the configured etcd; it connects with its first call."""
    tls = TlsFiles(settings.etcd_ca, settings.etcd_cert, settings.etcd_key) if settings.etcd_ca else None
    return Etcd(
        settings.etcd_endpoints,
        timeout_seconds=settings.etcd_timeout_seconds,
        prefix=settings.etcd_prefix,
        user=settings.etcd_user,
        password=settings.etcd_password.get_secret_value(),
        tls=tls,
    )


async def open_map(settings: Settings) -> BeatParts:
    """Connect to etcd, join its cluster and follow the shard map. Raises StoreUnavailable, WrongCluster."""
    async with AsyncExitStack() as stack:
        parts = await _open_store(settings, stack, (SHARD_MAP,))
        parts.stack = stack.pop_all()
        return parts


async def open_beat(settings: Settings) -> BeatParts:
    """Open what a beat stands for election with; what it writes is counted. Raises StoreUnavailable, WrongCluster."""
    async with AsyncExitStack() as stack:
        parts = await _open_store(settings, stack, (SHARD_MAP,))
        refuse_another(parts.store, parts.cache, parts.cluster_id)
        _share(Metrics(process=False), parts, _closing(stack, make_redis(settings)), stack)
        parts.stack = stack.pop_all()
        return parts


async def open_worker(settings: Settings) -> WorkerParts:
    """Open what tasks need. Raises StoreUnavailable, WrongCluster."""
    async with AsyncExitStack() as stack:
        base = await _open_store(settings, stack, TABLES)
        refuse_another(base.store, base.cache, base.cluster_id)
        redis = _closing(stack, make_redis(settings))
        metrics = Metrics()
        events = _open_events(settings, base, redis, metrics, stack)
        _share(metrics, base, redis, stack)
        context = LoopContext(
            settings=settings,
            cache=base.cache,
            store=base.store,
            placer=_make_placer(settings, base, metrics),
            agents=_open_agents(settings, base.cache, metrics, stack),
            pulses=await _open_pulses(settings, base, redis, stack),
            wake=_open_wake_ups(settings, base.cache, stack)[0].wake,
            now=_utc_now,
            emit=events.emit,
            on_result=metrics.reconciled,
            record=_open_history(settings, base, redis, metrics, stack).record,
            on_cycle=metrics.cycle_ended,
        )
        return WorkerParts(
            base.etcd, base.store, base.cache, stack.pop_all(), base.cluster_id, context, Admission(redis)
        )


async def open_front(settings: Settings) -> FrontParts:
    """Open what a front serves with. Raises StoreUnavailable, WrongCluster."""
    async with AsyncExitStack() as stack:
        base = await _open_store(settings, stack, TABLES)
        redis = _closing(stack, make_redis(settings))
        metrics = Metrics()
        wake_ups, publisher = _open_wake_ups(settings, base.cache, stack)
        parts = FrontParts(
            settings=settings,
            front_id=settings.front_id or f"{socket.gethostname()}-{secrets.token_hex(4)}",
            cluster_id=base.cluster_id,
            etcd=base.etcd,
            store=base.store,
            cache=base.cache,
            placer=_make_placer(settings, base, metrics),
            agents=_open_agents(settings, base.cache, metrics, stack),
            pulses=await _open_pulses(settings, base, redis, stack),
            events=_open_events(settings, base, redis, metrics, stack),
            metrics=metrics,
            wake=wake_ups.wake,
            redis=redis,
            backlog=publisher.backlog,
            flower_url=settings.flower_url,
        )
        parts.close = stack.pop_all().aclose
        return parts


async def _open_store(settings: Settings, stack: AsyncExitStack, tables: tuple[Table[Any], ...]) -> BeatParts:
    etcd = make_etcd(settings)
    stack.push_async_callback(etcd.close)
    cache = Cache(etcd, tuple(dict.fromkeys((*tables, CLUSTER))))
    store = Store(etcd, cache=cache)
    cluster = await join_cluster(store, settings.cluster_id)
    await ensure_shard_map(store, settings.shard_count, settings.shard_hash)
    await cache.start()
    cache.subscribe(partial(_take_base, store))
    stack.push_async_callback(cache.close)
    await cache.ready(_READY_SECONDS)
    return BeatParts(etcd, store, cache, stack, cluster.cluster_id)


def _take_base(store: Store, changes: Sequence[Change]) -> None:
    """Have new epochs rest on the base of the cluster as it is now: a restore raises it."""
    for change in changes:
        if change.table is CLUSTER and change.after.record:
            store.epoch_base = change.after.record.epoch_base


def _share(metrics: Metrics, parts: BeatParts, redis: Redis | None, stack: AsyncExitStack) -> None:
    """Count the calls and writes of these parts, and add all that this process counts to the cluster's sums."""
    metrics.follow_store(parts.store)
    metrics.follow_etcd(parts.etcd)
    shared = SharedMetrics(redis, metrics)
    shared.start(show=False)
    stack.push_async_callback(shared.close)


def _make_placer(settings: Settings, parts: BeatParts, metrics: Metrics) -> Placer:
    return Placer(parts.store, parts.cache, overcommit_of(settings), on_outcome=metrics.place_attempted)


def overcommit_of(settings: Settings) -> Overcommit:
    """Return how much may be committed."""
    return Overcommit(settings.overcommit_cpu, settings.overcommit_memory, settings.overcommit_disk)


async def _open_pulses(settings: Settings, base: BeatParts, redis: Redis | None, stack: AsyncExitStack) -> Pulses:
    pages = PulsePages(base.etcd)
    await pages.start()
    stack.push_async_callback(pages.close)
    lease = settings.node_lease_seconds
    return SparedPulses(redis, pages, gap_limit_seconds=lease / _GAPS_PER_LEASE, lease_seconds=lease)


def _closing(stack: AsyncExitStack, redis: Redis | None) -> Redis | None:
    if redis is not None:
        stack.push_async_callback(redis.aclose)
    return redis


def _open_agents(settings: Settings, cache: Cache, metrics: Metrics, stack: AsyncExitStack) -> Agents:
    agents = Agents(
        timeout_seconds=settings.agent_rpc_timeout_seconds,
        in_flight=settings.reconcile_concurrency,
        per_node=settings.calls_per_node,
        credentials=_agent_credentials(settings),
        on_call=metrics.agent_call,
        on_breaker=metrics.breakers_opened.inc,
        on_dial=metrics.channels_opened.inc,
        stop_after_seconds=settings.exclusive_stop_after_seconds,
        lease_seconds=settings.node_lease_seconds,
        kept_volumes=partial(kept_volumes, cache),
    )
    stack.push_async_callback(agents.close)
    return agents


def _agent_credentials(settings: Settings) -> Callable[[], grpc.ChannelCredentials] | None:
    if not settings.agent_tls_enabled:
        return None
    try:
        return ChannelCredentials(FollowedFiles(settings.tls_files)).current
    except BadFiles as error:
        raise SettingsError(
            f"TLS towards agents is on, but {error}; PERSYS_TLS_CA, PERSYS_TLS_CERT and PERSYS_TLS_KEY name the files"
        ) from None


def _open_events(
    settings: Settings, base: BeatParts, redis: Redis | None, metrics: Metrics, stack: AsyncExitStack
) -> Events:
    most, ttl_seconds = settings.redis_event_max_entries, settings.redis_event_ttl_seconds
    events = Events(
        redis,
        max_entries=most,
        ttl_seconds=ttl_seconds,
        on_drop=metrics.dropped.labels("event").inc,
        store=EventStore(base.etcd, base.store, base.cache, max_entries=most, ttl_seconds=ttl_seconds),
    )
    stack.push_async_callback(events.close)
    return events


def _open_history(
    settings: Settings, base: BeatParts, redis: Redis | None, metrics: Metrics, stack: AsyncExitStack
) -> History:
    ttl_seconds = settings.redis_reconcile_ttl_seconds
    history = History(
        redis,
        max_entries=settings.redis_event_max_entries,
        ttl_seconds=ttl_seconds,
        on_drop=metrics.dropped.labels("reconciliation").inc,
        store=HistoryStore(base.etcd, base.store, ttl_seconds=ttl_seconds),
    )
    base.cache.subscribe(history.forget_gone)
    stack.push_async_callback(history.close)
    return history


def _open_wake_ups(settings: Settings, cache: Cache, stack: AsyncExitStack) -> tuple[WakeUps, Publisher]:
    publisher = Publisher(make_app(settings))
    wake_ups = WakeUps(publisher.send, lambda: current_map(cache))
    wake_ups.start()
    stack.push_async_callback(wake_ups.close)
    return wake_ups, publisher
