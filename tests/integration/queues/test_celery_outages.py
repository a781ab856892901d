"""B7: brokers that restart, freeze or vanish under a worker; B6: what comes twice."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest

from tests.support import servers
from tests.support.celery_processes import START_SECONDS, Bench, Process, a_cycle, bench, wait_for
from tests.support.proxied import proxied

RESUME_SECONDS = 30.0


@pytest.fixture
def redis_of_its_own(tmp_path: pathlib.Path) -> Iterator[servers.Server]:
    """A Redis that the test may kill."""
    with servers.running(servers.redis(tmp_path / "redis")) as server:
        yield server


@pytest.fixture
def table(
    etcd_server: servers.Server, redis_of_its_own: servers.Server, etcd_prefix: str, tmp_path: pathlib.Path
) -> Iterator[Bench]:
    """A bench on a Redis that may be killed."""
    with bench(etcd_server, redis_of_its_own, etcd_prefix, tmp_path, FLEETBEAT_CYCLE_LEASE="2s") as made:
        yield made


def working(table: Bench, *arguments: str, **env: str) -> Process:
    """Start a worker and wait until it has run a cycle."""
    worker = table.worker(*arguments, **env)
    table.publisher.send([a_cycle(1)])
    wait_for(lambda: table.notes("ends"), START_SECONDS)
    return worker


def resumes(table: Bench, slot: int) -> None:
    """Send a slot now and then, as beat does, until one runs; fail when that takes too long."""
    publisher, deadline = table.publisher, time.monotonic() + RESUME_SECONDS
    before = len(table.notes("ends"))
    while len(table.notes("ends")) == before:
        assert time.monotonic() < deadline, table.processes[0].text()[-3000:]
        publisher.send([a_cycle(slot)])
        slot += 1
        time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_B7_a_worker_resumes_after_redis_was_killed(table: Bench, pool: str) -> None:
    """Killed, away for some seconds, back with empty queues; and once more."""
    worker = working(table, "-P", pool)
    for slot in (100, 200):
        table.redis_server.kill()
        worker.says("Trying again")
        table.redis_server.start()
        resumes(table, slot)
    assert worker.terminate() == 0


@pytest.mark.slow
def test_B7_a_worker_resumes_after_redis_was_frozen(table: Bench) -> None:
    """For longer than the socket time-out, with a task on its way."""
    worker = working(table)
    table.redis_server.pause()
    time.sleep(4)
    table.redis_server.resume()
    resumes(table, 100)
    assert worker.terminate() == 0


@pytest.mark.slow
def test_B7_a_worker_notices_a_half_open_connection(table: Bench) -> None:
    """Nothing comes through any more, and no connection is reset: the socket time-out ends the silence."""
    with proxied(table.redis_server) as proxy:
        worker = working(table, FLEETBEAT_BROKER_URL=f"redis://{proxy.address}/1")
        proxy.mute = True
        before = proxy.connections
        wait_for(lambda: proxy.connections > before + 1, seconds=RESUME_SECONDS, what="the worker connects anew")
        proxy.mute = False
        resumes(table, 100)
        assert worker.terminate() == 0


def test_B7_a_worker_obeys_the_term_signal_while_redis_is_away(table: Bench) -> None:
    """Killed in the moment when an acknowledgement, an event and a heartbeat are on their way."""
    worker = working(table)
    table.redis_server.kill()
    worker.says("Trying again")
    assert worker.terminate() == 0


def test_B6_a_second_delivery_of_a_running_task_is_a_no_op(table: Bench) -> None:
    """As after a visibility time-out or a lost connection: the same message, twice at once."""
    worker = working(table)
    table.order("reconcile", sleep=1)
    message = a_cycle(50)
    table.publisher.send([message])
    wait_for(lambda: len(table.notes()) == 2)
    table.publisher.send([message])
    worker.says("'duplicate'")
    wait_for(lambda: len(table.notes("ends")) == 2)
    assert [note["slot"] for note in table.notes()] == [1, 50]
