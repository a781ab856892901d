"""B7: brokers that restart, freeze or vanish under a worker; B6: what comes twice."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator

import pytest

from tests.support import servers
from tests.support.celery_processes import Bench, Process, a_cycle, bench, wait_for
from tests.support.proxied import proxied

RESUME_SECONDS = 30.0


@pytest.fixture
def redis_of_its_own(tmp_path: pathlib.Path) -> Iterator[servers.Server]:
    """A Redis that the test may kill."""
    with servers.running(servers.redis(tmp_path / "redis")) as server:
        yield server


@pytest.fixture(params=["prefork", "threads"])
def table(
    request: pytest.FixtureRequest,
    etcd_server: servers.Server,
    redis_of_its_own: servers.Server,
    etcd_prefix: str,
    tmp_path: pathlib.Path,
) -> Iterator[Bench]:
    """A bench with one worker, which has run a cycle."""
    limits = {"FLEETBEAT_CYCLE_LEASE": "2s"}
    with bench(etcd_server, redis_of_its_own, etcd_prefix, tmp_path, **limits) as made:
        made.worker(*([] if request.param == "prefork" else ["-P", "threads"]))
        made.publisher.send([a_cycle(1)])
        wait_for(lambda: made.notes("ends"))
        yield made


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
def test_B7_a_worker_resumes_after_redis_was_killed(table: Bench) -> None:  # noqa: N802
    """Killed, away for some seconds, back with empty queues; three times in a row."""
    for turn in range(3):
        table.redis_server.kill()
        time.sleep(2.5)
        table.redis_server.start()
        resumes(table, 100 * (turn + 1))
    assert table.processes[0].terminate() == 0


@pytest.mark.slow
def test_B7_a_worker_resumes_after_redis_was_frozen(table: Bench) -> None:  # noqa: N802
    """Longer than the socket time-out."""
    table.redis_server.pause()
    time.sleep(5)
    table.redis_server.resume()
    resumes(table, 100)
    assert table.processes[0].terminate() == 0


@pytest.mark.slow
def test_B7_a_worker_notices_a_half_open_connection(  # noqa: N802
    etcd_server: servers.Server, redis_of_its_own: servers.Server, etcd_prefix: str, tmp_path: pathlib.Path
) -> None:
    """Nothing comes through any more, and no connection is reset: the socket time-out ends the silence."""
    with bench(etcd_server, redis_of_its_own, etcd_prefix, tmp_path) as table, proxied(redis_of_its_own) as proxy:
        worker = table.worker(REDIS_ADDR=redis_of_its_own.address, FLEETBEAT_BROKER_URL=f"redis://{proxy.address}/1")
        table.publisher.send([a_cycle(1)])
        wait_for(lambda: table.notes("ends"))
        proxy.mute = True
        time.sleep(1)
        deaf_since = proxy.connections
        wait_for(lambda: proxy.connections > deaf_since + 1, seconds=20, what="the worker connects anew")
        proxy.mute = False
        resumes(table, 100)
        assert worker.terminate() == 0


def test_B6_a_second_delivery_of_a_running_task_is_a_no_op(table: Bench) -> None:  # noqa: N802
    """As after a visibility time-out or a lost connection: the same message, twice at once."""
    worker: Process = table.processes[0]
    table.order("reconcile", sleep=1)
    message = a_cycle(50)
    table.publisher.send([message])
    wait_for(lambda: len(table.notes()) == 2)
    table.publisher.send([message])
    worker.says("'duplicate'")
    wait_for(lambda: len(table.notes("ends")) == 2)
    assert [note["slot"] for note in table.notes()] == [1, 50]
