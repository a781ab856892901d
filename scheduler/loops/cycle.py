"""One cycle of a loop over a shard: admitted, cut into chunks, run by every worker of the shard.

The message that opens a cycle is turned into one message a chunk, on the same queue. A
cycle with a single chunk runs at once. What a task returns is a few words for Flower: "ok"
and what was done, or why nothing was: stale, duplicate, busy, ahead, fenced, unavailable, timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from scheduler.domain.errors import Fenced, StoreUnavailable
from scheduler.domain.shard import Cycle
from scheduler.leadership.fence import CycleFence
from scheduler.leadership.shards import current_map, map_guard, members_of
from scheduler.loops import detect_drift, monitor_nodes, monitor_workloads, reconcile
from scheduler.loops.context import Fence, LoopContext
from scheduler.queues.admission import Admission, Verdict
from scheduler.queues.messages import CycleMessage, WorkloadMessage
from scheduler.queues.seldom import Seldom
from scheduler.store.cache import Cache
from scheduler.store.keys import NODES
from scheduler.store.store import Store
from scheduler.store.write import Guard

_log = logging.getLogger(__name__)
_seldom = Seldom(_log)
_RENEWALS_PER_LEASE = 3


class Loop(Protocol):
    """A module that runs one kind of cycle."""

    async def run(
        self, ctx: LoopContext, cycle: Cycle, nodes: Sequence[str], *, unassigned: bool, fence: Fence
    ) -> dict[str, int]:
        """Look at these nodes, and at the unassigned workloads of the shard; return how often what was done."""
        ...


LOOPS: Mapping[str, Loop] = {
    "reconcile": reconcile,
    "detect_drift": detect_drift,
    "monitor_nodes": monitor_nodes,
    "monitor_workloads": monitor_workloads,
}


class CycleParts(Protocol):
    """What a worker needs to run cycles."""

    @property
    def loop_context(self) -> LoopContext:
        """What the loops work with."""
        ...

    @property
    def admission(self) -> Admission:
        """Who may run now."""
        ...

    @property
    def store(self) -> Store:
        """For the fence."""
        ...

    @property
    def cache(self) -> Cache:
        """Holds nodes and the shard map."""
        ...


async def open_cycle(
    parts: CycleParts, message: CycleMessage, publish: Callable[[Sequence[CycleMessage]], Awaitable[None]]
) -> str:
    """Admit a cycle and cut it; run it when it is one chunk, else send its chunks. Raises what `publish` raises."""
    shards = current_map(parts.cache)
    if shards is None or shards.generation != message.generation:
        return _out_of_step(parts.cache, message.generation)
    chunks = _cut(parts.loop_context, message, members_of(message.shard, parts.cache.all(NODES), shards))
    lease_seconds = parts.loop_context.settings.cycle_lease_seconds
    verdict = await parts.admission.admit_cycle(message.cycle, len(chunks), lease_seconds)
    if verdict is not Verdict.OK:
        return verdict
    if len(chunks) == 1:
        return await run_chunk(parts, chunks[0])
    try:
        await publish(chunks)
    except BaseException:
        await parts.admission.release(message.cycle)
        raise
    return f"ok chunks={len(chunks)}"


async def run_chunk(parts: CycleParts, message: CycleMessage) -> str:
    """Run one chunk of a cycle, unless it is late or was run before. Errors that nobody foresaw rise."""
    if message.chunk is None:
        raise ValueError(f"not a chunk: {message.summary()}")
    verdict = await parts.admission.admit_chunk(message.cycle, message.chunk)
    if verdict is not Verdict.OK:
        return verdict
    outcome = "failed"
    try:
        outcome = await _attempt(parts.loop_context, _run(parts, message))
    finally:
        end = await parts.admission.finish_chunk(message.cycle, failed=not outcome.startswith("ok"))
        _tell_of_end(parts.loop_context, message, end)
    return outcome


def _tell_of_end(context: LoopContext, message: CycleMessage, end: Verdict) -> None:
    if end in (Verdict.DONE, Verdict.FAILED):
        took_seconds = max(0.0, context.now().timestamp() - message.due)
        context.on_cycle(message.loop, end is Verdict.DONE, took_seconds)


async def reconcile_now(parts: CycleParts, message: WorkloadMessage) -> str:
    """Look at one workload because something happened to it."""
    shards = current_map(parts.cache)
    if shards is None or shards.generation != message.generation:
        return _out_of_step(parts.cache, message.generation)

    async def guards() -> Sequence[Guard]:
        return (map_guard(parts.cache, message.generation),)

    context = parts.loop_context
    return await _attempt(context, reconcile.reconcile_workload(context, message.workload_id, guards))


def _out_of_step(cache: Cache, generation: int) -> str:
    """Say whether a message is older than the shard map here, or this process has yet to hear of a newer map."""
    shards = current_map(cache)
    return "ahead" if shards is None or shards.generation < generation else "stale"


def _cut(context: LoopContext, message: CycleMessage, nodes: Sequence[str]) -> list[CycleMessage]:
    """Cut a cycle into chunks: batches of nodes, and one for the workloads without a node."""
    size = context.settings.chunk_nodes
    pieces: list[Sequence[str]] = [nodes[i : i + size] for i in range(0, len(nodes), size)]
    if len(pieces) > 1:
        pieces.append(())
    # A chunk may wait beyond the end of the slot, as long as its cycle still holds the shard. If it
    # expired with the slot, the cycle could not end, and would hold up the next ones.
    expires = max(message.expires, context.now().timestamp() + context.settings.cycle_lease_seconds)
    last = max(0, len(pieces) - 1)
    return [
        message.model_copy(
            update={"chunk": i, "nodes": tuple(piece), "unassigned": i == last, "expires": expires},
        )
        for i, piece in enumerate(pieces or [()])
    ]


async def _run(parts: CycleParts, message: CycleMessage) -> str:
    cycle = message.cycle
    fence = CycleFence(parts.store, cycle)
    async with _holding(parts, cycle):
        done = await LOOPS[cycle.loop].run(
            parts.loop_context, cycle, message.nodes, unassigned=message.unassigned, fence=fence
        )
    return " ".join(["ok", *(f"{what}={count}" for what, count in done.items() if count)])


@contextlib.asynccontextmanager
async def _holding(parts: CycleParts, cycle: Cycle) -> AsyncIterator[None]:
    """Keep the cycle admitted while the block runs; when this process dies, the next cycle need not wait long."""
    pause = parts.loop_context.settings.cycle_lease_seconds / _RENEWALS_PER_LEASE

    async def renew() -> None:
        while True:
            await asyncio.sleep(pause)
            await parts.admission.renew(cycle)

    keeper = asyncio.create_task(renew(), name=f"hold {cycle.loop} {cycle.shard}")
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.wait([keeper])


async def _attempt(context: LoopContext, work: Awaitable[str]) -> str:
    """Do the work within the time limit; what outages and successors do to it is an outcome, not an error."""
    limit = context.settings.cycle_time_limit_seconds
    try:
        # Celery's own limits do nothing on threads; this one holds on every pool.
        async with asyncio.timeout(limit):
            return await work
    except Fenced as error:
        _log.warning("fenced: %s", error)
        return "fenced"
    except StoreUnavailable as error:
        _seldom.warning("etcd does not answer, left to the next cycle: %s", error)
        return "unavailable"
    except TimeoutError:
        _log.warning("not done within %g s, left to the next cycle", limit)
        return "timeout"
