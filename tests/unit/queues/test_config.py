"""Celery's configuration: each setting whose default is a trap."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from kombu import Connection

from scheduler.queues.app import make_app
from scheduler.queues.config import celery_config, route, shard_queue, transport_options
from scheduler.settings import Settings, SettingsError


def config(**settings: Any) -> dict[str, Any]:
    """The configuration of an app on a Redis broker."""
    return celery_config(Settings(**{"broker_url": "redis://h:6379/1", **settings}))


def test_a_broker_must_be_set() -> None:
    """Without REDIS_ADDR and broker URL, the message names both."""
    with pytest.raises(SettingsError, match=r"FLEETBEAT_BROKER_URL nor REDIS_ADDR"):
        celery_config(Settings())


def test_only_json_is_spoken_and_no_result_is_kept() -> None:
    """Pickle is refused on both ends, and no backend is written."""
    made = config()
    assert made["accept_content"] == ["json"]
    assert made["task_serializer"] == "json"
    assert made["result_backend"] is None
    assert made["task_ignore_result"] is True


def test_tasks_are_acknowledged_late_and_fetched_one_by_one() -> None:
    """An expired task cannot slip through an early acknowledgement, and a lost one does not come back."""
    made = config()
    assert made["task_acks_late"] is True
    assert made["task_reject_on_worker_lost"] is False
    assert made["worker_prefetch_multiplier"] == 1


def test_the_pool_spawns_its_children() -> None:
    """Forked children can hang in gRPC."""
    made = config()
    assert made["worker_pool_start_method"] == "spawn"
    assert made["worker_concurrency"] == 2


def test_every_socket_of_the_redis_transport_has_a_time_out() -> None:
    """Kombu passes socket_timeout=None unless told otherwise, and a half-open connection then lasts for ever."""
    options = config()["broker_transport_options"]
    assert 0 < options["socket_timeout"] <= 5
    assert 0 < options["socket_connect_timeout"] <= 5
    assert options["socket_keepalive"]
    assert options["health_check_interval"] > 0
    with Connection("redis://h:6379/1", transport_options=options) as connection:
        channel = connection.transport.Channel.__new__(connection.transport.Channel)
        assert "socket_timeout" in channel.from_transport_options


def test_publishing_fails_fast() -> None:
    """B8: one retry within a fraction of a second, on every broker."""
    for url in ("redis://h/0", "amqp://h//"):
        options = transport_options(url, visibility_seconds=80)
        assert options["max_retries"] == 1
        assert options["interval_max"] < 1


def test_no_priorities_multiply_the_keys_of_a_queue() -> None:
    """One Redis list a queue."""
    assert config()["broker_transport_options"]["priority_steps"] == [0]


def test_an_unacknowledged_message_is_not_sent_again_while_its_task_may_run() -> None:
    """B6: the visibility time-out is at least twice the hard limit, and the sweep comes every few seconds."""
    for limit in (1, 30, 600):
        made = config(cycle_time_limit_seconds=limit)
        options = made["broker_transport_options"]
        assert options["visibility_timeout"] >= 2 * made["task_time_limit"]
        assert options["unacked_restore_interval"] * options["unacked_restore_throttle"] <= 10


def test_limits_escalate_from_the_deadline_to_the_kill() -> None:
    """The task's own deadline comes first, then the soft limit, then the hard one."""
    made = config(cycle_time_limit_seconds=30)
    assert 30 < made["task_soft_time_limit"] < made["task_time_limit"]


def test_redis_options_do_not_leak_to_rabbitmq() -> None:
    """Unknown options make py-amqp fail."""
    options = transport_options("amqp://h//", visibility_seconds=80)
    assert "socket_timeout" not in options
    assert "visibility_timeout" not in options
    assert options["confirm_publish"] is True


def test_rediss_verifies_the_server() -> None:
    """Without ssl_cert_reqs kombu trusts any certificate."""
    assert config(broker_url="rediss://h:6379/0")["broker_use_ssl"] == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert "broker_use_ssl" not in config(broker_url="rediss://h:6379/0?ssl_cert_reqs=required")
    assert "broker_use_ssl" not in config()


def test_each_queue_has_an_exchange_and_a_routing_key_of_its_own() -> None:
    """A bare queue would be bound with the default queue's key, and one publish reach all shards."""
    queues = config(max_shards=4)["task_queues"]
    assert [(q.name, q.exchange.name, q.exchange.type, q.routing_key) for q in queues] == [
        (f"shard-{k}", "cycles", "direct", f"shard-{k}") for k in range(4)
    ]


def test_at_least_the_configured_shards_are_known() -> None:
    """SCHEDULER_SHARD_COUNT above FLEETBEAT_MAX_SHARDS is served all the same."""
    assert len(config(max_shards=4, shard_count=9, shard_index=0)["task_queues"]) == 9


def test_a_misspelt_queue_is_not_made() -> None:
    """task_create_missing_queues is off."""
    app = make_app(Settings(broker_url="memory://", max_shards=4))
    app.amqp.queues.select(["shard-3"])
    with pytest.raises(KeyError):
        app.amqp.queues.select(["shard-4"])


def test_a_task_goes_to_the_queue_of_the_shard_that_its_arguments_name() -> None:
    """Also beyond the declared queues, so that a publisher need not know the map."""
    assert route("tasks.reconcile", (), {"shard": 7}, {}) == {"queue": shard_queue(7)}
    assert route("tasks.other", (), {}, {}) is None
    assert route("tasks.other", (), None, {}) is None


def test_flower_sees_what_happens() -> None:
    """Worker events and task-sent events are on without flags."""
    made = config()
    assert made["worker_send_task_events"] is True
    assert made["task_send_sent_event"] is True


def test_beat_answers_inspect_ping_only_while_it_ticks() -> None:
    """The liveness probe of beat."""
    made = config()
    assert made["beat_enable_remote_control"] is True
    assert made["beat_max_loop_interval"] == 1.0
    assert 2 <= made["beat_remote_control_max_tick_age"] <= 60


def test_an_app_is_not_made_current() -> None:
    """Fronts make apps to publish with; they must not replace anybody's."""
    from celery import current_app  # noqa: PLC0415

    before = current_app._get_current_object()
    make_app(Settings(broker_url="memory://"))
    assert current_app._get_current_object() is before
