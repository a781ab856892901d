"""Celery workers and beats as real processes, started the way a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis

from scheduler.queues.app import make_app
from scheduler.queues.messages import CycleMessage, WorkloadMessage
from scheduler.queues.publish import Publisher
from scheduler.settings import Settings
from tests.support.servers import Server

ROOT = pathlib.Path(__file__).parents[2]
TEST_APP = "tests.support.cycle_app"
START_SECONDS = 40.0
"""In which a process, and each child of its pool, has imported everything, on a busy machine."""


def wait_for(condition: Callable[[], object], seconds: float = 20.0, what: str = "") -> None:
    """Wait, without an event loop, until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.02)


@dataclass
class Process:
    """A child in a session of its own, and its log."""

    command: list[str]
    env: Mapping[str, str]
    log: pathlib.Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process
        return self.process.pid

    def start(self) -> Process:
        """Start it."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT, env=dict(self.env),
                start_new_session=True,
            )  # fmt: skip
        return self

    def text(self) -> str:
        """Return all it has said."""
        return self.log.read_text(errors="replace")

    def says(self, words: str, seconds: float = START_SECONDS) -> None:
        """Wait until these words are in the log; fail at once when it has ended without them."""
        deadline = time.monotonic() + seconds
        while words not in self.text():
            ended = self.process is not None and self.process.poll() is not None
            assert not (ended and words not in self.text()), f"ended without {words!r}:\n{self.text()[-4000:]}"
            assert time.monotonic() < deadline, f"does not say {words!r}:\n{self.text()[-4000:]}"
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> int:
        """Wait for the end; return the exit code."""
        assert self.process
        return self.process.wait(seconds)

    def terminate(self) -> int:
        """End it as a supervisor does; return the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it, and its children, at once."""
        assert self.process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(10)


@dataclass
class Bench:
    """An etcd prefix, a Redis, and Celery processes on them."""

    etcd: Server
    redis_server: Server
    prefix: str
    folder: pathlib.Path
    settings: dict[str, str] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        """The environment of each process, nothing of this one's but where programs lie."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "ETCD_ENDPOINTS": self.etcd.address,
            "FLEETBEAT_ETCD_PREFIX": self.prefix,
            "REDIS_ADDR": self.redis_server.address,
            "LOG_FORMAT": "text",
            "LOG_LEVEL": "info",
            **self.settings,
        }

    def read_settings(self) -> Settings:
        """Return the settings that the processes have, as far as publishing goes."""
        count = int(self.settings.get("SCHEDULER_SHARD_COUNT", "1"))
        return Settings(redis_addr=self.redis_server.address, shard_count=count)

    @property
    def redis(self) -> redis.Redis:
        """The telemetry database, where the obedient loops write."""
        return redis.Redis.from_url(f"redis://{self.redis_server.address}/0", socket_timeout=5)

    @property
    def publisher(self) -> Publisher:
        """Sends messages to the workers."""
        return Publisher(make_app(self.read_settings()))

    def celery(self, *arguments: str, app: str = TEST_APP, **env: str) -> Process:
        """Start `celery -A app …`."""
        command = [str(pathlib.Path(sys.executable).with_name("celery")), "-A", app, *arguments]
        log = self.folder / f"{arguments[0]}-{len(self.processes)}.log"
        process = Process(command, {**self.env, **env}, log).start()
        self.processes.append(process)
        return process

    def worker(self, *arguments: str, shards: str = "shard-0", **env: str) -> Process:
        """Start a worker and wait until it consumes."""
        process = self.celery("worker", "-Q", shards, "-n", f"w{len(self.processes)}@%h", *arguments, **env)
        process.says("ready.")
        return process

    def order(self, loop: str, **orders: object) -> None:
        """Tell a loop how to behave."""
        self.redis.hset("do", loop, json.dumps(orders))

    def notes(self, name: str = "runs") -> list[dict[str, Any]]:
        """Return what ran (or ended) so far."""
        found = self.redis.lrange(name, 0, -1)
        assert isinstance(found, list)
        return [json.loads(note) for note in found]

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()


@contextlib.contextmanager
def bench(etcd: Server, redis_server: Server, prefix: str, folder: pathlib.Path, **settings: str) -> Iterator[Bench]:
    """Clear the table, and clear it again."""
    made = Bench(etcd, redis_server, prefix, folder, settings)
    redis.Redis.from_url(f"redis://{redis_server.address}/0").flushall()
    try:
        yield made
    finally:
        made.close()


def a_cycle(
    slot: int, *, loop: str = "reconcile", shard: int = 0, term: int = 1, expires: float = 60.0
) -> CycleMessage:
    """Make the message that opens a cycle on a map of generation 1; `expires`: seconds from now."""
    fields = {"loop": loop, "shard": shard, "slot": slot, "term": term, "generation": 1}
    return CycleMessage.model_validate(fields | {"expires": time.time() + expires})


def a_wake_up(workload_id: str, *, shard: int = 0) -> WorkloadMessage:
    """Make a wake-up on a map of generation 1."""
    return WorkloadMessage(workload_id=workload_id, shard=shard, generation=1)
