"""The configuration of the Celery app: each value is there because its default hurts.

`celery -A tasks worker|beat|flower` needs no flags: everything stands here. Numbers and
findings come from measurements of celery 5.7 and kombu 5.7 on Redis 7 and RabbitMQ 3.10.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kombu import Exchange, Queue

from scheduler.domain.shard import queue_name
from scheduler.settings import Settings

SOFT_MARGIN_SECONDS = 5.0
"""Celery's soft limit backs up the deadline that tasks set themselves, on all pools, with asyncio.timeout."""
HARD_MARGIN_SECONDS = 10.0
CONCURRENCY = 2
_EXCHANGE = Exchange("cycles", type="direct")
_REDIS_SCHEMES = ("redis", "rediss", "sentinel")


def shard_queue(shard: int) -> Queue:
    """Describe the queue of a shard.

    A queue without an exchange and a routing key of its own would get the default queue's,
    and every publish through the exchange would be copied to all shards.
    """
    name = queue_name(shard)
    return Queue(name, _EXCHANGE, routing_key=name)


def known_shards(settings: Settings) -> int:
    """Return how many shard queues a worker knows; its -Q may name only these."""
    return max(settings.max_shards, settings.shard_count)


def route(
    _name: str,
    _args: Any,
    kwargs: Any,
    _options: Any,
    task: Any = None,  # noqa: ARG001 - Celery's signature
    **_more: Any,
) -> dict[str, Queue] | None:
    """Send a task to the queue of the shard that its arguments name."""
    if isinstance(kwargs, dict) and isinstance(kwargs.get("shard"), int):
        return {"queue": shard_queue(kwargs["shard"])}
    return None


def backlog(channel: Any, queues: Sequence[Queue]) -> list[int]:
    """Return how many messages wait in each of these queues, which are declared by that where need be."""
    if not hasattr(channel, "conn_or_acquire"):
        declared: list[Any] = [queue(channel).queue_declare() for queue in queues]
        return [answer.message_count for answer in declared]
    with channel.conn_or_acquire() as redis, redis.pipeline(transaction=False) as pipe:  # one round trip for all
        for queue in queues:
            pipe.llen(queue.name)
        return [int(length) for length in pipe.execute()]


def celery_config(settings: Settings) -> dict[str, Any]:
    """Return the whole configuration. Raises SettingsError when no broker is set."""
    return {**_broker(settings), **_messages(), **_queues(settings), **_worker(settings), **_beat()}


def _broker(settings: Settings) -> dict[str, Any]:
    url = settings.effective_broker_url
    config: dict[str, Any] = {
        "broker_url": url,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,  # a worker waits for its broker for ever; publishers fail fast (below)
        "broker_transport_options": transport_options(url, visibility_seconds=2 * hard_limit_seconds(settings)),
    }
    if urlsplit(url).scheme == "rediss" and "ssl_cert_reqs" not in parse_qs(urlsplit(url).query):
        # Without this, kombu connects to any server whatever its certificate.
        config["broker_use_ssl"] = {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    return config


def transport_options(url: str, *, visibility_seconds: float) -> dict[str, Any]:
    """Return kombu's options for this broker; `visibility_seconds`: when an unacknowledged task is sent again."""
    # How often and how long one publish may try: it fails within a second, callers decide what then.
    fail_fast = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.3}
    if urlsplit(url).scheme not in _REDIS_SCHEMES:
        return {**fail_fast, "confirm_publish": True}
    return {
        **fail_fast,
        # kombu passes None where this is not set, and a half-open connection leaves a worker deaf for ever.
        "socket_timeout": 3,
        "socket_connect_timeout": 1,
        "socket_keepalive": True,
        "health_check_interval": 5,
        # Shorter than a task, it would run the task twice at once.
        "visibility_timeout": max(60.0, visibility_seconds),
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "priority_steps": [0],  # no priorities: a quarter of the keys in each BRPOP
    }


def hard_limit_seconds(settings: Settings) -> float:
    """Return the time after which Celery kills the process of a task."""
    return settings.cycle_time_limit_seconds + HARD_MARGIN_SECONDS


def _messages() -> dict[str, Any]:
    return {
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_serializer": "json",
        "result_backend": None,
        "task_ignore_result": True,
        "task_send_sent_event": True,  # Flower's PENDING state and its column routing_key
    }


def _queues(settings: Settings) -> dict[str, Any]:
    return {
        "task_queues": [shard_queue(shard) for shard in range(known_shards(settings))],
        "task_default_queue": queue_name(0),
        "task_default_exchange": _EXCHANGE.name,
        "task_default_exchange_type": _EXCHANGE.type,
        "task_default_routing_key": queue_name(0),
        "task_create_missing_queues": False,  # else a misspelt -Q makes a queue that nobody feeds
        "task_routes": (route,),
    }


def _worker(settings: Settings) -> dict[str, Any]:
    return {
        # Late acknowledgement: with early ones, an expired task still runs on threads, and a crash loses more.
        "task_acks_late": True,
        "task_reject_on_worker_lost": False,  # the next cycle repairs; a task that kills its worker must not come back
        "task_soft_time_limit": settings.cycle_time_limit_seconds + SOFT_MARGIN_SECONDS,
        "task_time_limit": hard_limit_seconds(settings),
        "worker_prefetch_multiplier": 1,
        "worker_concurrency": CONCURRENCY,
        # Children that are forked would inherit what gRPC holds in the parent, and hang.
        "worker_pool_start_method": "spawn",
        "worker_proc_alive_timeout": 30.0,  # a spawned child imports everything anew, also on a busy machine
        "worker_lost_wait": 2.0,  # for so long, a child that died still counts as one that works
        "worker_consumer": "scheduler.queues.consumer:Consumer",
        "worker_send_task_events": True,
        "worker_cancel_long_running_tasks_on_connection_loss": False,  # it would kill the child with all its caches
    }


def _beat() -> dict[str, Any]:
    return {
        "beat_scheduler": "tasks.beat:Scheduler",
        "beat_max_loop_interval": 1.0,
        "beat_enable_remote_control": True,  # `celery inspect ping -d celerybeat@host` proves that beat ticks
        "beat_remote_control_max_tick_age": 15.0,
    }
