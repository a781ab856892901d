"""Cycles without Celery: how they are cut, and what becomes of those that go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.domain.errors import Fenced, StoreUnavailable
from scheduler.domain.node import Node
from scheduler.domain.shard import Cycle, ShardMap, shard_of
from scheduler.loops import cycle as cycles
from scheduler.queues.admission import Verdict
from scheduler.queues.messages import CycleMessage, WorkloadMessage
from scheduler.settings import Settings
from scheduler.store.cache import Cache
from scheduler.store.keys import NODES, SHARD_MAP, SHARD_MAP_ID
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd
from scheduler.store.store import Store

NOW = 1_800_000_000.0
MAP = ShardMap(generation=1, count=2)


class Admitting:
    """Admits what the test says, and notes what it is told."""

    def __init__(self) -> None:
        """Admit everything."""
        self.verdict = Verdict.OK
        self.end = Verdict.OK
        self.told: list[str] = []

    async def admit_cycle(self, _cycle: Cycle, chunks: int, _lease_seconds: float) -> Verdict:
        """Note the number of chunks."""
        self.told.append(f"cycle of {chunks}")
        return self.verdict

    async def admit_chunk(self, _cycle: Cycle, chunk: int) -> Verdict:
        """Note the chunk."""
        self.told.append(f"chunk {chunk}")
        return self.verdict

    async def finish_chunk(self, _cycle: Cycle, *, failed: bool) -> Verdict:
        """Note the end."""
        self.told.append("failed" if failed else "done")
        return self.end

    async def renew(self, _cycle: Cycle) -> Verdict:
        """Note the sign of life."""
        self.told.append("renewed")
        return Verdict.OK

    async def release(self, _cycle: Cycle) -> Verdict:
        """Note it."""
        self.told.append("released")
        return Verdict.OK


class Loop:
    """Does what the test says."""

    def __init__(self) -> None:
        """Do nothing, quickly."""
        self.error: Exception | None = None
        self.seconds = 0.0
        self.seen: list[tuple[Sequence[str], bool]] = []

    async def run(self, _ctx: Any, _cycle: Cycle, nodes: Sequence[str], *, unassigned: bool, fence: Any) -> Any:  # noqa: ARG002
        """Note the chunk, take the time, fail or not."""
        self.seen.append((nodes, unassigned))
        await asyncio.sleep(self.seconds)
        if self.error:
            raise self.error
        return {"placed": 2, "applied": 0}

    async def reconcile_workload(self, _ctx: Any, workload_id: str, guards: Any) -> str:
        """Ask for guards; return the id."""
        await guards()
        return workload_id


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    """A loop in the place of all loops."""
    made = Loop()
    monkeypatch.setattr(cycles, "LOOPS", dict.fromkeys(cycles.LOOPS, made))
    monkeypatch.setattr(cycles, "reconcile", made)
    return made


@pytest.fixture
async def parts() -> AsyncIterator[Any]:
    """Parts of a worker on an etcd in memory, with 40 nodes."""
    etcd = MemoryEtcd()
    puts = [Put(NODES.key(f"n-{i:02}"), Node(node_id=f"n-{i:02}").to_json()) for i in range(40)]
    await etcd.txn([], [Put(SHARD_MAP.key(SHARD_MAP_ID), MAP.to_json()), *puts])
    cache = Cache(etcd, [NODES, SHARD_MAP])
    await cache.start()
    await cache.ready(5)
    settings = Settings(chunk_nodes=50, cycle_time_limit_seconds=1, cycle_lease_seconds=1)
    ended: list[tuple[str, bool, float]] = []
    context = SimpleNamespace(
        settings=settings,
        now=lambda: datetime.fromtimestamp(NOW, UTC),
        ended=ended,
        on_cycle=lambda *told: ended.append(told),
    )
    yield SimpleNamespace(loop_context=context, admission=Admitting(), cache=cache, store=Store(etcd))
    await cache.close()
    await etcd.close()


def opening(**changes: Any) -> CycleMessage:
    """The message that opens a cycle of shard 1."""
    fields = {"loop": "reconcile", "shard": 1, "slot": 7, "term": 3, "generation": 1, "expires": NOW + 5}
    return CycleMessage.model_validate(fields | changes)


async def send_nothing(_messages: Sequence[CycleMessage]) -> None:
    """Fail: nothing should be sent."""
    raise AssertionError


def mine() -> list[str]:
    """The nodes of shard 1."""
    return [f"n-{i:02}" for i in range(40) if shard_of(f"n-{i:02}", MAP) == 1]


async def test_a_small_shard_is_one_chunk_and_runs_at_once(parts: Any, loop: Loop) -> None:
    """No message for the way from here to here."""
    assert await cycles.open_cycle(parts, opening(), send_nothing) == "ok placed=2"
    assert loop.seen == [(tuple(mine()), True)]
    assert parts.admission.told == ["cycle of 1", "chunk 0", "done"]


async def test_a_larger_shard_is_cut_into_chunks(parts: Any, loop: Loop) -> None:
    """Every node of the shard in one of them, the unassigned workloads in a last one."""
    parts.loop_context.settings = Settings(chunk_nodes=5, cycle_lease_seconds=10)
    sent: list[CycleMessage] = []

    async def publish(messages: Sequence[CycleMessage]) -> None:
        sent.extend(messages)

    outcome = await cycles.open_cycle(parts, opening(), publish)
    assert outcome == f"ok chunks={len(sent)}"
    assert parts.admission.told == [f"cycle of {len(sent)}"]
    assert [node for chunk in sent for node in chunk.nodes] == mine()
    assert [chunk.chunk for chunk in sent] == list(range(len(sent)))
    assert [chunk.unassigned for chunk in sent] == [False] * (len(sent) - 1) + [True]
    assert {chunk.cycle for chunk in sent} == {opening().cycle}
    assert loop.seen == []


async def test_chunks_outlive_a_short_slot(parts: Any, loop: Loop) -> None:  # noqa: ARG001
    """If they expired with it, the cycle could not end, and would hold the shard until its lease ends."""
    parts.loop_context.settings = Settings(chunk_nodes=5, cycle_lease_seconds=10)
    sent: list[CycleMessage] = []

    async def publish(messages: Sequence[CycleMessage]) -> None:
        sent.extend(messages)

    await cycles.open_cycle(parts, opening(expires=NOW + 0.1), publish)
    assert {chunk.expires for chunk in sent} == {NOW + 10}
    sent.clear()
    await cycles.open_cycle(parts, opening(expires=NOW + 300), publish)
    assert {chunk.expires for chunk in sent} == {NOW + 300}


async def test_chunks_that_cannot_be_sent_free_the_shard(parts: Any, loop: Loop) -> None:  # noqa: ARG001
    """The error rises, and the next slot need not wait."""
    parts.loop_context.settings = Settings(chunk_nodes=5)

    async def publish(_messages: Sequence[CycleMessage]) -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await cycles.open_cycle(parts, opening(), publish)
    assert parts.admission.told[-1] == "released"


@pytest.mark.parametrize("verdict", [Verdict.STALE, Verdict.DUPLICATE, Verdict.BUSY])
async def test_what_is_not_admitted_does_not_run(parts: Any, loop: Loop, verdict: Verdict) -> None:
    """Neither a cycle nor a chunk."""
    parts.admission.verdict = verdict
    assert await cycles.open_cycle(parts, opening(), send_nothing) == verdict
    assert await cycles.run_chunk(parts, opening(chunk=0)) == verdict
    assert loop.seen == []
    assert "done" not in parts.admission.told


@pytest.mark.parametrize(("generation", "words"), [(0, "stale"), (2, "ahead")])
async def test_cycles_and_wake_ups_of_other_maps_do_not_run(
    parts: Any, loop: Loop, generation: int, words: str
) -> None:
    """Before any question to Redis."""
    assert await cycles.open_cycle(parts, opening(generation=generation), send_nothing) == words
    wake_up = WorkloadMessage(shard=1, generation=generation, workload_id="web")
    assert await cycles.reconcile_now(parts, wake_up) == words
    assert loop.seen == []
    assert parts.admission.told == []


async def test_a_wake_up_rests_on_the_map(parts: Any, loop: Loop) -> None:  # noqa: ARG001
    """Its guard is the map's revision."""
    assert await cycles.reconcile_now(parts, WorkloadMessage(shard=1, generation=1, workload_id="web")) == "web"


@pytest.mark.parametrize(
    ("error", "words"),
    [(Fenced(), "fenced"), (StoreUnavailable(), "unavailable"), (TimeoutError(), "timeout")],
)
async def test_outages_and_successors_are_outcomes_not_errors(
    parts: Any, loop: Loop, error: Exception, words: str
) -> None:
    """No traceback; the cycle is not a finished one, and the shard is free."""
    loop.error = error
    assert await cycles.run_chunk(parts, opening(chunk=0)) == words
    assert parts.admission.told == ["chunk 0", "failed"]


@pytest.mark.parametrize(
    ("end", "told"),
    [(Verdict.OK, []), (Verdict.DONE, [("reconcile", True, 2.5)]), (Verdict.FAILED, [("reconcile", False, 2.5)])],
)
async def test_F89_the_last_chunk_tells_how_the_cycle_ended(
    parts: Any, end: Verdict, told: list[tuple[str, bool, float]]
) -> None:
    """And how long after the begin of its slot."""
    parts.admission.end = end
    await cycles.run_chunk(parts, opening(chunk=0, due=NOW - 2.5))
    assert parts.loop_context.ended == told


async def test_a_defect_rises_and_frees_the_shard(parts: Any, loop: Loop) -> None:
    """Celery logs it."""
    loop.error = KeyError("defect")
    with pytest.raises(KeyError):
        await cycles.run_chunk(parts, opening(chunk=0))
    assert parts.admission.told == ["chunk 0", "failed"]


async def test_a_chunk_that_takes_too_long_is_ended(parts: Any, loop: Loop) -> None:
    """After it has given signs of life all the while."""
    loop.seconds = 60
    assert await cycles.run_chunk(parts, opening(chunk=0)) == "timeout"
    assert parts.admission.told.count("renewed") in (2, 3)
    assert parts.admission.told[-1] == "failed"


async def test_a_cancelled_chunk_frees_the_shard(parts: Any, loop: Loop) -> None:
    """Celery's soft limit, or the end of the worker."""
    loop.seconds = 60
    running = asyncio.create_task(cycles.run_chunk(parts, opening(chunk=0)))
    while not loop.seen:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert parts.admission.told == ["chunk 0", "failed"]


async def test_the_message_that_opens_a_cycle_is_no_chunk(parts: Any, loop: Loop) -> None:  # noqa: ARG001
    """A sender that mixes them up is told."""
    with pytest.raises(ValueError, match="not a chunk"):
        await cycles.run_chunk(parts, opening())
