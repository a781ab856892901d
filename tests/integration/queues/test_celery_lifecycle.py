"""How workers start, refuse to start, stop, and die."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import psutil
import pytest
import redis

from scheduler.domain.shard import ClusterRecord, ShardMap
from scheduler.store.keys import CLUSTER, CLUSTER_ID, SHARD_MAP, SHARD_MAP_ID
from tests.support import servers
from tests.support.celery_processes import Bench, Process, a_cycle, bench, wait_for
from tests.support.etcd_cli import put, put_nodes


@pytest.fixture
def table(
    etcd_server: servers.Server, redis_server: servers.Server, etcd_prefix: str, tmp_path: pathlib.Path
) -> Iterator[Bench]:
    """A bench without workers; cycles fall silent after two seconds."""
    limits = {"FLEETBEAT_CYCLE_TIME_LIMIT": "20s", "FLEETBEAT_CYCLE_LEASE": "2s", "FLEETBEAT_CHUNK_NODES": "5"}
    with bench(etcd_server, redis_server, etcd_prefix, tmp_path, **limits) as made:
        yield made


def pool_of(worker: Process) -> list[psutil.Process]:
    """Return the processes that run tasks."""
    return [p for p in psutil.Process(worker.pid).children() if "spawn_main" in " ".join(p.cmdline())]


def test_the_real_worker_is_ready_without_flags(table: Bench) -> None:
    """Two spawned children, one queue, events on, late acks; no company with other workers."""
    worker = table.celery("worker", "-Q", "shard-0", app="tasks")
    worker.says("ready.")
    text = worker.text()
    assert "celery@" in text
    assert "concurrency: 2 (prefork)" in text
    assert "task events: ON" in text
    assert "shard-0          exchange=cycles(direct) key=shard-0" in text
    assert "mingle" not in text
    wait_for(lambda: len(pool_of(worker)) == 2)
    table.publisher.send([a_cycle(1)])
    worker.says("succeeded in")
    assert re.search(r"tasks\.reconcile\[.*\] succeeded in .*: 'ok", worker.text())
    assert worker.terminate() == 0


@pytest.mark.parametrize("pool", [(), ("-P", "threads")], ids=["prefork", "threads"])
def test_a_worker_ends_when_its_etcd_becomes_another_cluster(table: Bench, pool: tuple[str, ...]) -> None:
    """Whatever its pool: at once, with a message that names both, and an exit code that is not 0."""
    worker = table.celery("worker", "-Q", "shard-0", *pool, app="tasks")
    worker.says("ready.")
    table.publisher.send([a_cycle(1)])
    worker.says("succeeded in")
    put(table.etcd, table.prefix, CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="another"))
    assert worker.wait() == 70
    assert "etcd holds cluster another now, this process was started for" in worker.text()


def test_a_beat_ends_when_its_etcd_becomes_another_cluster(table: Bench) -> None:
    """The elected one, and with an exit code that is not 0."""
    beat = table.celery("beat", app="tasks")
    wait_for(lambda: table.publisher.backlog([0])[0] > 0, what="beat sends")
    put(table.etcd, table.prefix, CLUSTER, CLUSTER_ID, ClusterRecord(cluster_id="another"))
    assert beat.wait() != 0
    assert "etcd holds cluster another now, this process was started for" in beat.text()


def test_flower_shows_workers_and_cycles_by_name_and_shard(table: Bench) -> None:
    """`celery -A tasks flower`, and a worker whose events are on by themselves."""
    port = servers.free_port()
    flower = table.celery("flower", FLOWER_PORT=str(port), FLOWER_ADDRESS="127.0.0.1", FLOWER_UNAUTHENTICATED_API="1")
    wait_for(lambda: fetch(port, "/healthcheck"), what="flower answers")
    worker = table.worker("-n", "shard-0@here")
    wait_for(lambda: 'flower_worker_online{worker="shard-0@here"} 1.0' in fetch(port, "/metrics"))
    message = a_cycle(1)
    table.publisher.send([message])
    worker.says("succeeded in")
    wait_for(lambda: "SUCCESS" in fetch(port, "/api/tasks"))
    (task,) = json.loads(fetch(port, "/api/tasks")).values()
    assert task["name"] == "tasks.reconcile"
    assert task["kwargs"] == message.summary()
    assert task["result"] == "'ok'"
    assert task["worker"] == "shard-0@here"
    assert flower.terminate() == 0


def fetch(port: int, path: str) -> str:
    """GET a page; blank while nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ("shard-9", "nobody feeds shard-9: there are 2 shards, shard-0 to shard-1"),
        ("shard-0,shard-2", "nobody feeds shard-2"),
        ("shard-99", "shard-99"),
        ("shrad-0", "shrad-0"),
    ],
)
def test_a_queue_that_nobody_feeds_is_refused(table: Bench, queue: str, words: str) -> None:
    """A slip of the finger must not look like a healthy worker."""
    put(table.etcd, table.prefix, SHARD_MAP, SHARD_MAP_ID, ShardMap(generation=1, count=2))
    worker = table.celery("worker", "-Q", queue)
    assert worker.wait() != 0
    assert words in worker.text()
    assert "ready." not in worker.text()


def test_workers_of_shards_that_are_about_to_exist_may_start_first(table: Bench) -> None:
    """To grow a cluster: new workers with the new count, then the new map."""
    put(table.etcd, table.prefix, SHARD_MAP, SHARD_MAP_ID, ShardMap(generation=1, count=2))
    worker = table.worker(shards="shard-3", SCHEDULER_SHARD_COUNT="4")
    assert worker.terminate() == 0


def test_a_pool_that_forks_is_refused(table: Bench) -> None:
    """It says which flag to leave."""
    worker = table.celery("worker", "-Q", "shard-0", "--pool-start-method", "fork")
    assert worker.wait() != 0
    assert "leave --pool-start-method at spawn" in worker.text()


def test_wrong_settings_are_refused_by_name(table: Bench) -> None:
    """Variable, value, and what is allowed."""
    worker = table.celery("worker", "-Q", "shard-0", FLEETBEAT_CHUNK_NODES="many")
    assert worker.wait() != 0
    assert "FLEETBEAT_CHUNK_NODES" in worker.text()


def test_the_term_signal_waits_for_the_running_task_and_closes_what_is_open(table: Bench) -> None:
    """A warm stop: the cycle ends well, channels are closed, nobody is left."""
    worker = table.worker()
    table.order("reconcile", sleep=1)
    table.publisher.send([a_cycle(1)])
    wait_for(table.notes)
    children = pool_of(worker)
    assert worker.terminate() == 0
    assert len(table.notes("ends")) == 1
    assert str(table.notes()[0]["pid"]).encode() in table.redis.lrange("closed", 0, -1)
    assert not any(child.is_running() for child in children)


def test_the_term_signal_waits_for_a_task_that_has_not_said_yet_that_it_runs(table: Bench) -> None:
    """Celery would forget it: the process waits 30 s for somebody to read its result, and the task comes once more."""
    worker = table.worker()
    table.publisher.send([a_cycle(1)])
    wait_for(lambda: table.notes("ends"))
    wait_for(lambda: len(pool_of(worker)) == 2)
    broker = redis.Redis.from_url(f"redis://{table.redis_server.address}/1", socket_timeout=5)
    wait_for(lambda: broker.hlen("unacked") == 0)
    for child in pool_of(worker):
        child.suspend()
    # Once the second is taken from its queue, the first is written to its process.
    for count, loop in enumerate(("monitor_nodes", "detect_drift"), 1):
        table.publisher.send([a_cycle(100, loop=loop)])
        wait_for(lambda count=count: broker.hlen("unacked") == count)
    worker.signal(signal.SIGTERM)
    worker.says("Warm shutdown")
    time.sleep(1)  # it forgets when it closes its consumer, right after these words: only then the test can fail
    for child in pool_of(worker):
        child.resume()
    assert worker.wait() == 0
    assert "could not ensure" not in worker.text()
    assert "monitor_nodes" in [note["loop"] for note in table.notes("ends")]
    waiting = [json.loads(base64.b64decode(json.loads(text)["body"])) for text in broker.lrange("shard-0", 0, -1)]
    assert "monitor_nodes" not in [kwargs["loop"] for _, kwargs, _ in waiting]


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_the_term_signal_closes_what_other_pools_opened(table: Bench, pool: str) -> None:
    """There the main process itself runs the tasks."""
    worker = table.worker("-P", pool)
    table.publisher.send([a_cycle(1)])
    wait_for(lambda: table.notes("ends"))
    assert worker.terminate() == 0
    assert table.redis.lrange("closed", 0, -1) == [str(worker.pid).encode()]


def next_cycle_ends(table: Bench, slot: int) -> int:
    """Send slot after slot until one has run to its end; return which."""
    before = len(table.notes("ends"))
    while len(table.notes("ends")) == before:
        table.publisher.send([a_cycle(slot)])
        slot += 1
        time.sleep(0.2)
    return int(table.notes("ends")[-1]["slot"])


def test_a_child_that_dies_in_a_chunk_holds_its_shard_no_longer_than_the_lease(table: Bench) -> None:
    """Its message is not sent again; the next cycle gets through, in the same worker."""
    worker = table.worker()
    table.order("reconcile", die=True)
    table.publisher.send([a_cycle(1)])
    wait_for(table.notes)
    died = time.monotonic()
    table.order("reconcile")
    assert next_cycle_ends(table, 2) > 1
    assert time.monotonic() - died < 2 + 10
    assert [note["slot"] for note in table.notes()].count(1) == 1
    worker.says("Worker exited prematurely")


def test_a_worker_that_dies_in_a_chunk_is_replaced_by_another(table: Bench) -> None:
    """SIGKILL of the worker and its pool; a second worker of the shard goes on."""
    worker = table.worker()
    table.order("reconcile", sleep=60)
    table.publisher.send([a_cycle(1)])
    wait_for(table.notes)
    worker.kill()
    table.order("reconcile")
    table.worker()
    assert next_cycle_ends(table, 2) > 1


def test_all_workers_of_a_shard_share_its_chunks(table: Bench) -> None:
    """Six chunks that take a while are run by the children of both workers."""
    put_nodes(table.etcd, table.prefix, [f"n-{i}" for i in range(25)])
    workers = [table.worker(), table.worker()]
    table.order("reconcile", sleep=0.5)
    table.publisher.send([a_cycle(1)])
    wait_for(lambda: len(table.notes("ends")) == 6)
    pids = {int(note["pid"]) for note in table.notes()}
    for worker in workers:
        assert pids & {child.pid for child in pool_of(worker)}


def test_a_worker_starts_without_etcd_and_works_once_it_is_there(table: Bench, tmp_path: pathlib.Path) -> None:
    """Tasks say unavailable, in one log line, until then."""
    etcd = servers.etcd(tmp_path / "late")
    worker = table.worker(ETCD_ENDPOINTS=etcd.address, FLEETBEAT_ETCD_TIMEOUT="500ms")
    table.publisher.send([a_cycle(1)])
    worker.says("'unavailable'")
    with servers.running(etcd):
        assert next_cycle_ends(table, 2) > 1
    assert "Traceback" not in worker.text()


@pytest.mark.slow
def test_a_task_that_blocks_its_event_loop_is_killed_in_the_end(table: Bench) -> None:
    """Neither deadline nor soft limit can reach it; the hard limit ends its process, and a new one takes over."""
    table.worker(FLEETBEAT_CYCLE_TIME_LIMIT="1s")
    table.order("reconcile", block=60)
    table.publisher.send([a_cycle(1)])
    wait_for(table.notes)
    pid = int(table.notes()[0]["pid"])
    table.order("reconcile")
    wait_for(lambda: not psutil.pid_exists(pid), seconds=30)
    assert next_cycle_ends(table, 2) > 1


def test_the_quit_signal_does_not_wait(table: Bench) -> None:
    """Celery's cold stop: what runs is given up."""
    worker = table.worker()
    table.order("reconcile", sleep=60)
    table.publisher.send([a_cycle(1)])
    wait_for(table.notes)
    worker.signal(signal.SIGQUIT)
    worker.wait(20)
    assert table.notes("ends") == []


def test_F93_a_wrong_setting_is_told_without_a_traceback() -> None:
    """Of `celery -A tasks worker`: the variable, its value and what is allowed."""
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-Q", "shard-0"],
        env={**os.environ, "FLEETBEAT_NODE_LEASE": "soon"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "FLEETBEAT_NODE_LEASE=soon" in done.stderr
    assert "Traceback" not in done.stderr
