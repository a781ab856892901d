"""Workers as real processes, on every pool: what a cycle's message does, and what no message may do."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from scheduler.domain.shard import FenceRecord
from scheduler.queues.messages import CycleMessage
from scheduler.store.keys import FENCES
from tests.support import servers
from tests.support.celery_processes import Bench, Process, a_cycle, a_wake_up, bench, wait_for
from tests.support.etcd_cli import put, put_nodes

_slots = itertools.count(1000)


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def table(
    request: pytest.FixtureRequest,
    etcd_server: servers.Server,
    redis_server: servers.Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    """A bench with one worker of the pool."""
    pool = str(request.param)
    folder = tmp_path_factory.mktemp(pool)
    limits = {"FLEETBEAT_CYCLE_TIME_LIMIT": "2s", "FLEETBEAT_CYCLE_LEASE": "1s", "FLEETBEAT_CHUNK_NODES": "50"}
    with bench(etcd_server, redis_server, f"/t/worker-{pool}", folder, **limits) as made:
        made.worker(*([] if pool == "prefork" else ["-P", pool]))
        yield made


@pytest.fixture
def worker(table: Bench) -> Process:
    """The worker, with nothing on its list and no orders."""
    table.redis.delete("runs", "ends", "do")
    return table.processes[0]


def outcomes(worker: Process, task: str) -> list[str]:
    """Return what the runs of a task said, so far."""
    return re.findall(rf"Task {re.escape(task)}\[[^]]*\] succeeded in [^:]*: '([^']*)'", worker.text())


def outcome(worker: Process, table: Bench, message: CycleMessage) -> str:
    """Send a cycle and return what its task said."""
    before = len(outcomes(worker, message.task))
    table.publisher.send([message])
    wait_for(lambda: len(outcomes(worker, message.task)) > before)
    return outcomes(worker, message.task)[-1]


def test_a_cycle_of_one_chunk_runs_at_once(table: Bench, worker: Process) -> None:
    """The opener runs it itself, unassigned workloads included."""
    message = a_cycle(next(_slots))
    assert outcome(worker, table, message) == "ok"
    (run,) = table.notes()
    assert (run["slot"], run["term"], run["shard"]) == (message.slot, 1, 0)
    assert (run["nodes"], run["unassigned"]) == ([], True)


def test_the_line_about_a_task_says_what_it_was_about(table: Bench, worker: Process) -> None:
    """Celery's own line carries loop, shard and cycle, and nothing of the task before."""
    message = a_cycle(next(_slots))
    assert outcome(worker, table, message) == "ok"
    woken = outcomes(worker, "tasks.reconcile_workload")
    table.publisher.send([a_wake_up("web")])
    wait_for(lambda: len(outcomes(worker, "tasks.reconcile_workload")) > len(woken))
    lines = [line for line in worker.text().splitlines() if "succeeded in" in line]
    cycle, wake_up = lines[-2:]
    assert {"loop=reconcile", "shard=0", f"cycle={message.slot}", "component=worker"} <= set(cycle.split())
    assert {"workload_id=web", "shard=0"} <= set(wake_up.split())
    assert "cycle=" not in wake_up


@pytest.mark.parametrize("loop", ["detect_drift", "monitor_nodes", "monitor_workloads"])
def test_every_loop_has_its_task(table: Bench, worker: Process, loop: str) -> None:
    """The names that beat sends are registered."""
    assert outcome(worker, table, a_cycle(next(_slots), loop=loop)) == "ok"
    assert table.notes()[0]["loop"] == loop


def test_a_cycle_that_comes_twice_runs_once(table: Bench, worker: Process) -> None:
    """The second is a duplicate."""
    message = a_cycle(next(_slots))
    outcome(worker, table, message)
    assert outcome(worker, table, message) == "duplicate"
    assert len(table.notes()) == 1


def test_an_older_term_is_stale(table: Bench, worker: Process) -> None:
    """A deposed beat is not obeyed."""
    outcome(worker, table, a_cycle(next(_slots), loop="detect_drift", term=9))
    assert outcome(worker, table, a_cycle(next(_slots), loop="detect_drift", term=8)) == "stale"
    assert len(table.notes()) == 1


def test_a_cycle_for_another_shard_map_is_not_run(table: Bench, worker: Process) -> None:
    """Older or newer than the one this worker knows."""
    message = a_cycle(next(_slots))
    assert outcome(worker, table, message.model_copy(update={"generation": 0})) == "stale"
    assert outcome(worker, table, message.model_copy(update={"generation": 2})) == "ahead"
    assert table.notes() == []


def test_a_wake_up_looks_at_its_workload(table: Bench, worker: Process) -> None:
    """Through its own task, guarded by the map."""
    table.order("workload", write=True)
    table.publisher.send([a_wake_up("web")])
    wait_for(table.notes)
    assert table.notes()[0]["workload_id"] == "web"
    worker.says("'applied'")


def test_a_fenced_cycle_says_so_without_a_traceback(table: Bench, worker: Process) -> None:
    """A newer cycle has begun to write; this one ends as an outcome, not as an error."""
    put(table.etcd, table.prefix, FENCES, "0/monitor_workloads", FenceRecord(term=10**6, slot=1))
    table.order("monitor_workloads", write=True)
    assert outcome(worker, table, a_cycle(next(_slots), loop="monitor_workloads")) == "fenced"
    assert "Traceback" not in worker.text()
    assert table.notes("ends") == []


def test_a_cycle_that_may_write_takes_the_fence(table: Bench, worker: Process) -> None:
    """Under its term and slot."""
    table.order("reconcile", write=True)
    assert outcome(worker, table, a_cycle(next(_slots))) == "ok"


def test_the_time_limit_holds_on_every_pool_and_what_follows_is_not_hurt(table: Bench, worker: Process) -> None:
    """The task ends, nothing of it goes on, and the same process with the same channels takes the next one."""
    opened = table.redis.lrange("opened", 0, -1)
    table.order("reconcile", sleep=60)
    assert outcome(worker, table, a_cycle(next(_slots))) == "timeout"
    table.order("reconcile")
    assert outcome(worker, table, a_cycle(next(_slots))) == "ok"
    assert len(table.notes("ends")) == 1
    assert {int(pid) for pid in table.redis.lrange("opened", 0, -1)} >= {int(pid) for pid in opened}
    assert all(psutil.pid_exists(int(pid)) for pid in opened)


def test_one_process_opens_its_parts_once(table: Bench, worker: Process) -> None:
    """Whatever the pool: one set of channels and caches a process."""
    for _ in range(6):
        assert outcome(worker, table, a_cycle(next(_slots))) == "ok"
    opened = table.redis.lrange("opened", 0, -1)
    assert len(opened) == len(set(opened))


def test_an_expired_message_does_not_run(table: Bench, worker: Process) -> None:
    """Also where the worker had no time for it before."""
    table.publisher.send([a_cycle(next(_slots), expires=-1)])
    assert outcome(worker, table, a_cycle(next(_slots))) == "ok"
    assert len(table.notes()) == 1


def test_pickle_is_refused_and_the_next_message_runs(table: Bench, worker: Process) -> None:
    """Nothing is unpickled, and the worker stays well."""
    from scheduler.queues.app import make_app  # noqa: PLC0415

    app = make_app(table.read_settings())
    app.send_task("tasks.reconcile", kwargs=a_cycle(next(_slots)).model_dump(), queue="shard-0", serializer="pickle")
    assert outcome(worker, table, a_cycle(next(_slots))) == "ok"
    assert len(table.notes()) == 1
    wait_for(lambda: "ContentDisallowed" in worker.text() or "Refusing to deserialize" in worker.text())


def test_nonsense_is_refused_and_the_next_message_runs(table: Bench, worker: Process) -> None:
    """Arguments that are no cycle."""
    from scheduler.queues.app import make_app  # noqa: PLC0415

    app = make_app(table.read_settings())
    app.send_task("tasks.chunk", kwargs={"shard": 0, "slot": "x"}, queue="shard-0")
    assert outcome(worker, table, a_cycle(next(_slots))) == "ok"
    worker.says("ValidationError")


def test_an_error_of_a_loop_frees_the_shard_and_is_not_a_finished_cycle(table: Bench, worker: Process) -> None:
    """The error is logged with its traceback; the next slot runs."""
    table.order("monitor_nodes", fail=True)
    table.publisher.send([a_cycle(next(_slots), loop="monitor_nodes")])
    worker.says("told to fail")
    table.order("monitor_nodes")
    assert outcome(worker, table, a_cycle(next(_slots), loop="monitor_nodes")) == "ok"


def test_nodes_are_cut_into_chunks_that_all_run(table: Bench, worker: Process) -> None:
    """Each node of the shard once, and the unassigned workloads in one chunk."""
    nodes = [f"n-{i:03}" for i in range(120)]
    put_nodes(table.etcd, table.prefix, nodes)
    try:
        slot = next(slot for slot in _slots if outcome(worker, table, a_cycle(slot)) == "ok chunks=4")
        wait_for(lambda: sum(note["slot"] == slot for note in table.notes("ends")) == 4)
        chunks = [note for note in table.notes() if note["slot"] == slot]
        assert sorted(node for chunk in chunks for node in chunk["nodes"]) == nodes
        assert [len(chunk["nodes"]) for chunk in chunks if chunk["unassigned"]] == [0]
    finally:
        put_nodes(table.etcd, table.prefix, [])


def test_overlapping_cycles_are_busy(table: Bench, worker: Process) -> None:
    """While one runs, the next slot of the same loop and shard is not admitted."""
    if "-P solo" in " ".join(worker.command):
        pytest.skip("one task at a time cannot overlap")
    table.order("reconcile", sleep=1.5)
    first = a_cycle(next(_slots))
    with ThreadPoolExecutor(1) as pool:
        table.publisher.send([first])
        wait_for(table.notes)
        assert pool.submit(outcome, worker, table, a_cycle(next(_slots))).result() == "busy"
    wait_for(lambda: table.notes("ends"))
    assert [n["slot"] for n in table.notes()] == [first.slot]


def test_flower_is_told_in_words(table: Bench, worker: Process) -> None:
    """Events carry the summary of the message and the outcome."""
    from scheduler.queues.app import make_app  # noqa: PLC0415

    app = make_app(table.read_settings())
    seen: list[dict[str, object]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        events = receiver.itercapture(limit=None, timeout=10, wakeup=False)
        next(events)
        message = a_cycle(next(_slots))
        outcome(worker, table, message)
        while not any(e["type"] == "task-succeeded" for e in seen):
            next(events)
    received = next(e for e in seen if e.get("kwargs") == message.summary() and e["type"] == "task-received")
    assert received["name"] == "tasks.reconcile"
    mine = [e for e in seen if e.get("uuid") == received["uuid"]]
    assert next(e for e in mine if e["type"] == "task-succeeded")["result"] == "'ok'"
    assert next(e for e in mine if e["type"] == "task-sent")["queue"] == "shard-0"
