"""The reconcile loop: bring what runs in line with what is wanted.

A cycle first compares, in memory, what the caches know; only workloads that differ cost
anything. An idle cycle reads nothing, writes nothing and calls no agent that reports epochs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog
from structlog.contextvars import bound_contextvars

from scheduler.convergence.actions import Delete, Finalise, Nothing, Place, Stop
from scheduler.convergence.loss import Wait
from scheduler.domain.errors import Fenced, FleetbeatError, StoreUnavailable
from scheduler.domain.node import Drain
from scheduler.domain.shard import Cycle, shard_of
from scheduler.leadership.shards import current_map
from scheduler.loops.context import Fence, Guards, LoopContext
from scheduler.loops.done import Done
from scheduler.loops.drain_steps import look_at_drain
from scheduler.loops.drain_turns import nodes_owing_now, owed_now
from scheduler.loops.each import each
from scheduler.loops.holds import Holds
from scheduler.loops.look import glance, glimpse_action
from scheduler.loops.observe import observe
from scheduler.loops.replicas import keep_copies, keep_replicas
from scheduler.loops.step import settle_tombstone, step
from scheduler.loops.takeover import take_over_now, take_over_some
from scheduler.store.keys import NODES
from scheduler.store.kv import StoreRefused

log = structlog.get_logger(__name__)

MAX_STEPS = 5
"""Steps on one workload in one go: give up a node, place, apply, and two to spare."""
_FREES = (Delete, Finalise, Stop)
"""Actions that come before the others on a node: they make room."""


@dataclass
class _Pass:
    """One run over a chunk."""

    ctx: LoopContext
    guards: Guards
    holds: Holds
    tally: Counter[str] = field(default_factory=Counter)


async def run(
    ctx: LoopContext, cycle: Cycle, nodes: Sequence[str], *, unassigned: bool, fence: Fence
) -> dict[str, int]:
    """Look at the workloads and tombstones of these nodes, and at the shard's workloads without a node.

    Return how often what was done. Raises Fenced, StoreUnavailable; what goes wrong with one
    workload is logged and counted, and stops no other.
    """
    this = _Pass(ctx, fence.guards, Holds(ctx))
    await each(nodes, ctx.settings.reconcile_concurrency, lambda node_id: _look_at_node(this, node_id))
    if unassigned:
        await _guarded(this, {}, _take_over(this, cycle.shard))
        if changed := await keep_replicas(ctx, cycle.shard, fence.guards):
            this.tally["Replicas"] = changed
        await _look_at_homeless(this, cycle.shard)
    return dict(this.tally)


async def reconcile_workload(ctx: LoopContext, workload_id: str, guards: Guards) -> str:
    """Take the next steps on one workload now; return what they were. Raises Fenced, StoreUnavailable."""
    done: list[Done] = []
    try:
        if workload_id in ctx.foreign:
            done.append(Done((await take_over_now(ctx, workload_id, guards)).outcome))
        for node_id in nodes_owing_now(ctx, workload_id):
            done.append(await settle_tombstone(ctx, node_id, workload_id, guards))  # noqa: PERF401 - keeps what was done
        done += await _steps(ctx, workload_id, guards, Holds(ctx))
        if await keep_copies(ctx, workload_id, guards):
            done.append(Done("Replicas"))
    except (Fenced, StoreUnavailable):
        raise
    except FleetbeatError as error:
        log.warning("a look failed", workload_id=workload_id, reason=error.reason, error=str(error))
        done.append(Done(error.reason, success=False))
    return " ".join(one.what if one.success else f"{one.what}:failed" for one in done)


async def _take_over(this: _Pass, shard: int) -> None:
    if taken := await take_over_some(this.ctx, shard, this.guards):
        this.tally["TakeOver"] += taken


async def _look_at_node(this: _Pass, node_id: str) -> None:
    await asyncio.sleep(0)  # a node that is as it should be costs no other await, and others want their turn
    ctx = this.ctx
    node = ctx.cache.get(NODES, node_id).record
    urgent: set[str] = set()
    if node and node.is_ready:
        urgent = await _observed(this, node_id)
        owed = owed_now(ctx, node_id, ctx.index.owed_by(node_id))
        await _all(this, owed, lambda w: _settle(this, node_id, w))
    first, rest = _due(this, ctx.index.on_node(node_id), urgent)
    await _all(this, first, lambda w: _work(this, w))
    await _all(this, rest, lambda w: _work(this, w))
    if node and node.drain == Drain.DRAINING:
        await _guarded(this, {"node_id": node_id}, look_at_drain(ctx, node, this.guards))


async def _look_at_homeless(this: _Pass, shard: int) -> None:
    shards = current_map(this.ctx.cache)
    if shards is None:
        return
    found = this.ctx.index.homeless(lambda identifier: shard_of(identifier, shards) == shard)
    first, rest = _due(this, found, set())
    for part in (first, rest):
        await each(part, this.ctx.settings.reconcile_concurrency, lambda w: _work(this, w))


def _due(this: _Pass, workload_ids: Sequence[str], urgent: set[str]) -> tuple[list[str], list[str]]:
    """Return the workloads that call for an action: those whose action makes room, and the others."""
    first, rest = [], []
    for workload_id in workload_ids:
        seen = glance(this.ctx, workload_id)
        if seen is None:
            continue
        action = glimpse_action(this.ctx, seen, this.holds)
        if isinstance(action, Nothing | Wait) and workload_id not in urgent:
            this.tally[action.name if isinstance(action, Wait) else "NoAction"] += 1
        elif isinstance(action, _FREES):
            first.append(workload_id)
        elif isinstance(action, Place) and this.ctx.placer.stays_pending(workload_id):
            this.ctx.on_result("Assign", False)  # noqa: FBT003 - as for every step
            this.tally["Assign_failed"] += 1
        else:
            rest.append(workload_id)
    return first, rest


async def _all(this: _Pass, workload_ids: Sequence[str], work: Callable[[str], Awaitable[None]]) -> None:
    await each(workload_ids, this.ctx.settings.calls_per_node, work)


async def _observed(this: _Pass, node_id: str) -> set[str]:
    """Ask an agent that reports no epochs what it has; return the workloads that call for an action after that."""
    found: set[str] = set()

    async def ask(node_id: str) -> None:
        found.update((await observe(this.ctx, node_id, this.guards)).needs_action)

    await _guarded(this, {"node_id": node_id}, ask(node_id))
    return found


async def _settle(this: _Pass, node_id: str, workload_id: str) -> None:
    async def settle() -> None:
        _count(this, await settle_tombstone(this.ctx, node_id, workload_id, this.guards))

    await _guarded(this, {"workload_id": workload_id, "node_id": node_id}, settle())


async def _work(this: _Pass, workload_id: str) -> None:
    async def work() -> None:
        for done in await _steps(this.ctx, workload_id, this.guards, this.holds):
            _count(this, done)

    await _guarded(this, {"workload_id": workload_id}, work())


async def _steps(ctx: LoopContext, workload_id: str, guards: Guards, holds: Holds) -> list[Done]:
    taken: list[Done] = []
    while len(taken) < MAX_STEPS and (not taken or taken[-1].again):
        taken.append(await step(ctx, workload_id, guards, holds))
    return taken


def _count(this: _Pass, done: Done) -> None:
    this.tally[done.what if done.success else f"{done.what}_failed"] += 1


async def _guarded(this: _Pass, about: Mapping[str, str], work: Awaitable[None]) -> None:
    """Let one failure be one failure; only what concerns everybody rises: a fence, an etcd that does not answer.

    about: what each line that is logged meanwhile says of whom it is about.
    """
    with bound_contextvars(**about):
        try:
            await work
        except StoreRefused as error:
            _failed(this, error)
        except StoreUnavailable:
            raise
        except FleetbeatError as error:
            if isinstance(error, Fenced):
                raise
            _failed(this, error)
        except Exception:
            log.exception("a look failed")
            this.tally["error"] += 1


def _failed(this: _Pass, error: FleetbeatError) -> None:
    log.warning("a look failed", reason=error.reason, error=str(error))
    this.tally["error"] += 1
