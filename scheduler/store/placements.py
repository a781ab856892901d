"""Placing workloads: choose from the fleet as known here, commit against the records as they are.

The choice may rest on old news; the transaction may not. When it finds that the chosen node has
changed, its row is brought up to date and the choice is made again. While tries last, that goes also
for a node that still fits but has been given something that the choice did not know of: so placers
in different processes spread work as one would.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from weakref import WeakValueDictionary

import structlog

from scheduler.domain.errors import Conflict, NotFound
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.placement.capacity import Overcommit, commitment_of
from scheduler.placement.choose import Choice, choose
from scheduler.placement.explain import Explanation, without_figures
from scheduler.placement.fleet import Measured
from scheduler.placement.request import request_of
from scheduler.store.assign import Assign, Committed, Outdated, Placed, Vanished, settled_already
from scheduler.store.cache import Cache
from scheduler.store.keys import ASSIGNMENTS, SPECS, STATUSES
from scheduler.store.live_fleet import LiveFleet
from scheduler.store.store import Store
from scheduler.store.write import Guard, Ref, View, Write

log = structlog.get_logger(__name__)

Outcome = Placed | Explanation | Vanished

_TRIES = 16
_CHOOSY_TRIES = 8
"""After so many tries a node that fits will do, even when it may not be the best any more."""
_REFUSALS = 2
"""A node whose row said yes and whose record said no this often is left out of this placement and reported."""
_READY_SECONDS = 5.0
_BACKOFF_SECONDS = 0.02


def _now() -> datetime:
    return datetime.now(UTC)


class Placer:
    """Places and moves workloads. One for each event loop; any number of them may work at once."""

    def __init__(
        self, store: Store, cache: Cache, overcommit: Overcommit, *, now: Callable[[], datetime] = _now
    ) -> None:
        """Take a cache that mirrors NODES, LEDGERS, SPECS, STATUSES and ASSIGNMENTS, and how much may be committed."""
        self._store = store
        self._cache = cache
        self._overcommit = overcommit
        self._now = now
        self._live = LiveFleet(cache, overcommit)
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def place(self, workload_id: str, *, guards: Sequence[Guard] = ()) -> Outcome:
        """Give a workload without a node the best one, or note in its status why there is none.

        A workload that has a node keeps it. Raises Fenced, StoreUnavailable, and Conflict when the
        nodes kept changing under every try; nothing is written then.
        """
        return await self._assign(workload_id, "", guards)

    async def move(self, workload_id: str, *, from_node: str, guards: Sequence[Guard] = ()) -> Outcome:
        """Move a workload off a node that is lost or draining; when there is no other, it stays where it is.

        It also stays when that node has come back, or another has moved it already. Nothing is
        written unless it moves. Raises as `place` does.
        """
        return await self._assign(workload_id, from_node, guards)

    def explain(self, workload_id: str) -> Explanation | Placed:
        """Say where a workload is and why; or, from what is known now, where it would go (epoch 0) or why nowhere.

        Raises NotFound.
        """
        spec, status = self._cache.get(SPECS, workload_id).record, self._cache.get(STATUSES, workload_id).record
        if spec is None:
            raise NotFound(f'workload "{workload_id}" does not exist')
        if status and status.node_id:
            assignment = self._cache.get(ASSIGNMENTS, workload_id).record
            why = (assignment.score, assignment.reason) if assignment else (0.0, "")
            return Placed(status.node_id, status.epoch, *why)
        choice = choose(self._live.fleet, request_of(spec))
        return choice if isinstance(choice, Explanation) else Placed(choice.node_id, 0, choice.score, choice.reason)

    def measure(self, measured: Mapping[str, Measured]) -> None:
        """Take the measured use of some nodes, by node id; it only bends the score. Some 10 µs a node."""
        self._live.measure(measured)

    async def _assign(self, workload_id: str, from_node: str, guards: Sequence[Guard]) -> Outcome:
        await self._cache.ready(_READY_SECONDS)
        # Two who place one workload here would take each other's assumption for a rival.
        async with self._turn("workload", workload_id):
            return await self._take_tries(workload_id, from_node, guards)

    async def _take_tries(self, workload_id: str, from_node: str, guards: Sequence[Guard]) -> Outcome:
        spec = await self._spec(workload_id)
        if spec is None:
            return Vanished(workload_id, f'workload "{workload_id}" does not exist')
        refusals: Counter[str] = Counter()
        for attempt in range(_TRIES):
            excluded = {node_id for node_id, count in refusals.items() if count >= _REFUSALS} | {from_node}
            outcome = await self._try(spec, from_node, guards, excluded - {""}, choosy=attempt < _CHOOSY_TRIES)
            if not isinstance(outcome, Outdated):
                return outcome
            spec = outcome.spec
            self._refused(spec.id, outcome, refusals)
            await asyncio.sleep(random.uniform(0, _BACKOFF_SECONDS * attempt))  # noqa: S311 - jitter, not a secret
        raise Conflict(f'workload "{workload_id}": the nodes chosen for it kept changing, {_TRIES} times in a row')

    async def _spec(self, workload_id: str) -> WorkloadSpec | None:
        cached = self._cache.get(SPECS, workload_id).record
        return cached or (await self._store.get(SPECS, workload_id)).record

    async def _try(
        self, spec: WorkloadSpec, from_node: str, guards: Sequence[Guard], excluded: set[str], *, choosy: bool
    ) -> Outcome | Outdated:
        request = request_of(spec)
        choice = choose(self._live.fleet, request, excluded)
        if isinstance(choice, Explanation):
            return choice if from_node else await self._note(spec.id, choice, guards)
        holders = self._live.holders(choice.node_id) | {spec.id} if choosy else None
        assign = Assign(request, choice, self._overcommit, self._now(), holders, from_node)
        with self._live.assuming(choice.node_id, spec.id, commitment_of(request, 0)):
            # Those that chose the same node take turns instead of failing each other's compares.
            async with self._turn("node", choice.node_id):
                outcome = await self._store.transact(assign.refs(), assign, guards=guards)
            return self._learned(choice, outcome)

    def _turn(self, kind: str, identifier: str) -> asyncio.Lock:
        return self._turns.setdefault((kind, identifier), asyncio.Lock())

    def _learned(self, choice: Choice, outcome: Committed | Placed | Vanished | Outdated) -> Outcome | Outdated:
        if isinstance(outcome, Committed):
            self._live.learn_commit(choice.node_id, outcome.before, outcome.after)
            return outcome.placed
        if isinstance(outcome, Outdated):
            self._live.learn(outcome.node, outcome.ledger)
        return outcome

    def _refused(self, workload_id: str, outcome: Outdated, refusals: Counter[str]) -> None:
        if outcome.objection is None:
            return
        node_id = outcome.objection.node_id
        refusals[node_id] += 1
        if refusals[node_id] == _REFUSALS:
            log.warning(
                "a node refuses what it was chosen for, leaving it out",
                workload=workload_id,
                node=node_id,
                objection=str(outcome.objection),
            )

    async def _note(self, workload_id: str, explanation: Explanation, guards: Sequence[Guard]) -> Outcome:
        """Store why there is no node, unless that is what is stored; figures alone are no reason to write."""
        known = self._cache.get(STATUSES, workload_id).record
        if known and not known.node_id and _tells(known, explanation):
            return explanation

        def decide(view: View) -> Write[Outcome]:
            if settled := settled_already(view, workload_id):
                return Write(settled)
            status = view.get(STATUSES, workload_id).record or WorkloadStatus(id=workload_id)
            write: Write[Outcome] = Write(explanation)
            if not _tells(status, explanation):
                write.put(STATUSES, workload_id, status.replace(pending_reason=explanation.summary))
            return write

        return await self._store.transact([Ref(SPECS, workload_id), Ref(STATUSES, workload_id)], decide, guards=guards)


def _tells(status: WorkloadStatus, explanation: Explanation) -> bool:
    return without_figures(status.pending_reason) == without_figures(explanation.summary)
