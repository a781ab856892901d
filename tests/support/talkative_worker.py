"""Run as a program: a worker's tasks over a cluster in memory, with secrets in everything, and its log on stderr.

A line "== name" on stderr begins each section.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import grpc

import tasks
from scheduler.domain.workload import CloudInit, VmSpec, WorkloadSpec
from scheduler.loops import reconcile, step
from scheduler.queues.admission import Verdict
from scheduler.settings import Settings
from tasks import runtime
from tests.support.loop_world import World, world

SECRET = "hunter2-is-not-to-be-seen"  # noqa: S105 - a secret of nobody
_CLOUD = CloudInit(user_data=SECRET, meta_data=SECRET, network_config=SECRET, vendor_data=SECRET)
_SPECS = (
    WorkloadSpec(id="web", type="container", image="nginx", env_vars={"TOKEN": SECRET}),
    WorkloadSpec(id="desk", type="vm", vm=VmSpec(vcpus=1, memory_mb=1, cloud_init=SECRET, cloud_init_config=_CLOUD)),
)
CHUNK = {
    "loop": "reconcile", "shard": 0, "slot": 7, "term": 1, "generation": 1, "expires": 2e9,
    "chunk": 0, "nodes": ["n-1"], "unassigned": True,
}  # fmt: skip
WAKE_UP = {"workload_id": "web", "shard": 0, "generation": 1}


opened: list[World] = []


class AdmitAll:
    """Admits everything; each chunk is the last."""

    async def admit_chunk(self, *_args: object) -> Verdict:
        """Admit."""
        return Verdict.OK

    async def finish_chunk(self, *_args: object, **_named: object) -> Verdict:
        """Say that it was the last."""
        return Verdict.DONE


async def open_parts(settings: Settings) -> Any:
    """Open the parts, in the runtime's own loop."""
    assert settings.redis_password.get_secret_value() == SECRET
    stack = AsyncExitStack()
    fleet = await stack.enter_async_context(world())
    await fleet.add_node("n-1", supported_workload_types=("container", "vm"))
    for spec in _SPECS:
        await fleet.apply(spec)
    await fleet.settle()
    opened.append(fleet)
    return SimpleNamespace(
        loop_context=fleet.ctx, admission=AdmitAll(), store=fleet.store, cache=fleet.cache, close=stack.aclose
    )


async def refuse() -> None:
    """Have the agent refuse what is ordered from now on, and something to order."""
    (fleet,) = opened
    fleet.fakes["n-1"].refuse = (grpc.StatusCode.INTERNAL, "the disk is full")
    for spec in _SPECS:
        await fleet.apply(spec.replace(env_vars={"OTHER": SECRET}))
    await fleet.settle()


async def broken(*args: object, **named: object) -> None:
    """Hit a defect, with secrets among the local variables."""
    local = (args, named)
    raise ZeroDivisionError(len(local))


def section(name: str, task: str, message: dict[str, Any]) -> None:
    """Run a task as Celery does."""
    print(f"== {name}", file=sys.stderr, flush=True)
    print(name, tasks.app.tasks[task].apply(kwargs=message).get(propagate=False), flush=True)


def main() -> None:
    """Run the sections."""
    runtime.open_parts = open_parts
    tasks._set_up_logs()
    tasks.app.finalize()
    section("wake-up", "tasks.reconcile_workload", WAKE_UP)
    section("cycle", "tasks.chunk", CHUNK)
    runtime.of_this_process(tasks.app, tasks.settings)._thread.call(refuse())
    section("refused", "tasks.chunk", CHUNK)
    reconcile.step = broken  # type: ignore[assignment]
    step.look = broken  # type: ignore[assignment]
    section("defect", "tasks.reconcile_workload", WAKE_UP)
    section("defects", "tasks.chunk", CHUNK)
    runtime.close()


if __name__ == "__main__":
    main()
