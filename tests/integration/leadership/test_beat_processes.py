"""Beats as real processes, started by plain `celery -A tasks beat`: who sends, when, and what happens when it dies."""

from __future__ import annotations

import base64
import json
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
import redis

from scheduler.domain.shard import ShardMap
from scheduler.store.keys import LEADER_PREFIX, SHARD_MAP, SHARD_MAP_ID, SLOTS
from tests.support import servers
from tests.support.celery_processes import ROOT, Bench, Process, bench, wait_for
from tests.support.etcd_cli import get, put, scan
from tests.support.proxied import proxied

SHARDS = 2


class Sent(NamedTuple):
    """A message as it lay in its queue."""

    slot: int
    term: int
    shard: int
    loop: str
    generation: int
    expires: float


class Queues:
    """Takes every message out of the shards' queues, as workers would."""

    def __init__(self, server: servers.Server) -> None:
        """Connect to the broker's database."""
        self._redis = redis.Redis.from_url(f"redis://{server.address}/1", socket_timeout=5)
        self.sent: list[Sent] = []

    def drain(self) -> list[Sent]:
        """Take what is there; return all that was taken so far."""
        for shard in range(4):
            while message := self._redis.rpop(f"shard-{shard}"):
                self.sent.append(parse(message))  # type: ignore[arg-type]
        return self.sent

    def reconcile(self) -> list[Sent]:
        """Return the cycles of reconcile so far."""
        return [m for m in self.drain() if m.loop == "reconcile"]

    def terms(self) -> set[int]:
        """Return the terms seen so far."""
        return {m.term for m in self.drain()}


def parse(raw: bytes) -> Sent:
    """Read a message of the Redis transport."""
    body = json.loads(base64.b64decode(json.loads(raw)["body"]))
    return Sent(**{name: body[1][name] for name in Sent._fields})


@pytest.fixture
def table(
    etcd_server: servers.Server, redis_server: servers.Server, etcd_prefix: str, tmp_path: pathlib.Path
) -> Iterator[Bench]:
    """A bench with a map of two shards and reconcile every second."""
    put(etcd_server, etcd_prefix, SHARD_MAP, SHARD_MAP_ID, ShardMap(generation=1, count=SHARDS))
    timing = {"SCHEDULER_RECONCILE_INTERVAL": "1s", "FLEETBEAT_LEADER_LEASE": "2s", "FLEETBEAT_ETCD_TIMEOUT": "1s"}
    with bench(etcd_server, redis_server, etcd_prefix, tmp_path, **timing) as made:
        yield made


@pytest.fixture
def queues(table: Bench) -> Queues:
    """The queues, empty."""
    return Queues(table.redis_server)


def beat(table: Bench, **env: str) -> Process:
    """Start a beat."""
    return table.celery("beat", app="tasks", **env)


def leader_and_follower(table: Bench, **env: str) -> tuple[Process, Process]:
    """Start two beats; the first leads."""
    first = beat(table, **env)
    first.says("leading")
    second = beat(table, **env)
    second.says("beat: Starting")
    wait_for(lambda: len(scan(table.etcd, table.prefix, LEADER_PREFIX)) == 2)
    return first, second


def assert_each_slot_once(sent: list[Sent]) -> None:
    """No slot goes to a shard twice, not even by two leaders."""
    assert len({(m.slot, m.shard) for m in sent}) == len(sent)


def assert_handed_over(sent: list[Sent]) -> None:
    """Each slot once a term; the successor repeats at most the one slot whose record its predecessor could not write.

    Workers drop that repetition: see test_B2 of the admission.
    """
    assert len({(m.slot, m.shard, m.term) for m in sent}) == len(sent)
    old, new = ({m.slot for m in sent if m.term == term} for term in sorted({m.term for m in sent}))
    assert min(new) >= max(old)


def test_F60_of_two_beats_one_sends(table: Bench, queues: Queues) -> None:
    """Each slot once to each shard, all in one term, with an expiry at the end of the slot, and recorded."""
    leader_and_follower(table)
    wait_for(lambda: len({m.slot for m in queues.reconcile()}) >= 3)
    sent = queues.reconcile()
    assert_each_slot_once(sent)
    slots = sorted({m.slot for m in sent})
    assert slots == list(range(slots[0], slots[-1] + 1))
    assert {m.shard for m in sent} == set(range(SHARDS))
    assert {m.generation for m in sent} == {1}
    assert all(m.expires == pytest.approx(m.slot + 1.25) for m in sent)
    (term,) = queues.terms()
    keys = scan(table.etcd, table.prefix, LEADER_PREFIX)
    assert term == min(kv.create_revision for kv in keys)
    wait_for(lambda: (r := get(table.etcd, table.prefix, SLOTS, "reconcile").record) and r.slot >= slots[-1])
    assert {m.loop for m in queues.sent} == {"reconcile", "monitor_nodes", "monitor_workloads", "detect_drift"}


def test_a_terminated_leader_hands_over_at_once(table: Bench, queues: Queues) -> None:
    """Its lease of a minute is given back; no slot twice."""
    first, _ = leader_and_follower(table, FLEETBEAT_LEADER_LEASE="60s")
    wait_for(queues.reconcile)
    assert first.terminate() == 0
    assert len(scan(table.etcd, table.prefix, LEADER_PREFIX)) == 1
    wait_for(lambda: len(queues.terms()) == 2, seconds=10)
    assert_each_slot_once(queues.reconcile())
    assert "Traceback" not in first.text()


def test_B5_F60_a_killed_leader_is_replaced_within_its_lease(table: Bench, queues: Queues) -> None:
    """Slots that passed in the gap are not sent afterwards; the one at hand is sent once."""
    first, _ = leader_and_follower(table)
    wait_for(queues.reconcile)
    first.kill()
    killed = time.time()
    wait_for(lambda: len(queues.terms()) == 2, seconds=15)
    time.sleep(1)
    sent = queues.reconcile()
    assert_handed_over(sent)
    successors = [m for m in sent if m.term == max(queues.terms())]
    assert min(m.slot for m in successors) >= int(killed - 0.25)
    assert all(m.slot + 1.25 >= killed for m in successors)


def test_B4_a_leader_that_slept_through_its_lease_sends_nothing(table: Bench, queues: Queues) -> None:
    """SIGSTOP, another leads, SIGCONT: no message of the old term appears any more."""
    first, second = leader_and_follower(table)
    wait_for(queues.reconcile)
    first.signal(signal.SIGSTOP)
    second.says("leading")
    wait_for(lambda: len(queues.terms()) == 2)
    old = min(queues.terms())
    before = [m for m in queues.drain() if m.term == old]
    first.signal(signal.SIGCONT)
    first.says("no longer leading")
    wait_for(lambda: len({m.slot for m in queues.reconcile() if m.term > old}) >= 3)
    assert [m for m in queues.drain() if m.term == old] == before
    assert_handed_over(queues.reconcile())


def test_K1_a_leader_cut_off_from_etcd_stops_within_its_lease(table: Bench, queues: Queues) -> None:
    """Half-open TCP: nothing comes back, nothing is reset. The other takes over; the terms never mix."""
    with proxied(table.etcd) as proxy:
        first = beat(table, ETCD_ENDPOINTS=proxy.address)
        first.says("leading")
        second = beat(table)
        wait_for(queues.reconcile)
        wait_for(lambda: len(scan(table.etcd, table.prefix, LEADER_PREFIX)) == 2)
        proxy.mute = True
        second.says("leading")
        first.says("no longer leading")
        wait_for(lambda: len(queues.terms()) == 2)
        wait_for(lambda: len({m.slot for m in queues.reconcile() if m.term == max(queues.terms())}) >= 3)
        assert len(queues.terms()) == 2
        assert_handed_over(queues.reconcile())
        proxy.mute = False


def test_B8_a_beat_without_a_broker_lives_on_and_sends_when_it_is_back(table: Bench, tmp_path: pathlib.Path) -> None:
    """Missed slots are not sent afterwards, and the log is not flooded."""
    broker = servers.redis(tmp_path / "broker")
    one = beat(table, REDIS_ADDR=broker.address)
    one.says("leading")
    one.says("is not sent")
    time.sleep(2)
    assert one.text().count("is not sent") == 1
    with servers.running(broker):
        back = time.time()
        queues = Queues(broker)
        wait_for(lambda: len({m.slot for m in queues.reconcile()}) >= 2)
        assert_each_slot_once(queues.reconcile())
        assert min(m.slot for m in queues.reconcile()) >= int(back - 0.25) - 1
        broker.pause()
        time.sleep(1)
        assert one.terminate() == 0
        broker.resume()


def test_a_beat_without_etcd_waits_and_stops_when_told(table: Bench, queues: Queues, tmp_path: pathlib.Path) -> None:
    """It never sends on its own, and starts to once etcd is there."""
    etcd = servers.etcd(tmp_path / "late")
    one = beat(table, ETCD_ENDPOINTS=etcd.address, SCHEDULER_SHARD_COUNT="2")
    one.says("beat waits for etcd")
    assert queues.drain() == []
    with servers.running(etcd):
        wait_for(lambda: {m.shard for m in queues.reconcile()} == {0, 1})
        assert one.terminate() == 0
    lonely = beat(table, ETCD_ENDPOINTS=etcd.address)
    lonely.says("beat waits for etcd")
    assert lonely.terminate() == 0


def test_beats_answer_a_ping_leader_or_not(table: Bench) -> None:
    """The probe of a supervisor."""
    leader_and_follower(table)
    command = [
        str(pathlib.Path(sys.executable).with_name("celery")),
        "-A",
        "tasks",
        "inspect",
        "ping",
        "--timeout",
        "2",
    ]
    answer = subprocess.run(command, env=table.env, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert answer.stdout.count("celerybeat@") == 2
    assert answer.returncode == 0
