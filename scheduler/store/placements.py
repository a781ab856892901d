"""Placing workloads: choose from the fleet as known here, commit against the records as they are.

The choice may rest on old news; the transaction may not. When it finds that the chosen node has
changed, its row is brought up to date and the choice is made again. While tries last, that goes also
for a node that still fits but has been given something that the choice did not know of: so placers
in different processes spread work as one would.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from weakref import WeakValueDictionary

import structlog

from scheduler.convergence.drain import Pace
from scheduler.domain.errors import Conflict, NotFound
from scheduler.domain.policy import is_exclusive
from scheduler.domain.volume import volume_ids
from scheduler.domain.workload import Assignment, WorkloadSpec, WorkloadStatus
from scheduler.placement.capacity import Overcommit, commitment_of
from scheduler.placement.choose import Choice, choose
from scheduler.placement.explain import Explanation, without_figures
from scheduler.placement.fleet import Measured
from scheduler.placement.request import Request, request_of
from scheduler.store.assign import Assign, Committed, Outdated, Placed, Vanished, settled_already
from scheduler.store.cache import Cache
from scheduler.store.handover import HandOver
from scheduler.store.keys import ASSIGNMENTS, NODES, SPECS, STATUSES, VOLUMES
from scheduler.store.live_fleet import LiveFleet
from scheduler.store.store import Store
from scheduler.store.volumes import Known, known_in, located, volume_refs
from scheduler.store.write import Guard, Ref, View, Write

log = structlog.get_logger(__name__)

Outcome = Placed | Explanation | Vanished
OnOutcome = Callable[[Outcome | None, float], None]

_TRIES = 16
_CHOOSY_TRIES = 8
"""After so many tries a node that fits will do, even when it may not be the best any more."""
_REFUSALS = 2
"""A node whose row said yes and whose record said no this often is left out of this placement and reported."""
_READY_SECONDS = 5.0
_NOWHERE = Choice("", 0.0, "")
_BACKOFF_SECONDS = 0.02


def _now() -> datetime:
    return datetime.now(UTC)


class Placer:
    """Places and moves workloads. One for each event loop; any number of them may work at once."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        overcommit: Overcommit,
        *,
        now: Callable[[], datetime] = _now,
        on_outcome: OnOutcome = lambda _outcome, _seconds: None,
    ) -> None:
        """Take a cache that mirrors NODES, LEDGERS, SPECS, STATUSES and ASSIGNMENTS, and how much may be committed.

        on_outcome: told of each attempt to place or move a workload, and how long it took; None: it failed.
        """
        self._store = store
        self._cache = cache
        self._overcommit = overcommit
        self._now = now
        self._on_outcome = on_outcome
        self._live = LiveFleet(cache, overcommit)
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def place(self, workload_id: str, *, guards: Sequence[Guard] = (), frees_volumes: bool = False) -> Outcome:
        """Give a workload without a node the best one, or note in its status why there is none.

        frees_volumes: no copy of it that was left anywhere can use its volumes any more, so what it has
        attached there does not bind it. A workload that has a node keeps it. Raises Fenced, StoreUnavailable,
        and Conflict when the nodes kept changing under every try; nothing is written then.
        """
        return await self._assign(workload_id, "", guards, partial(Assign, frees=frees_volumes))

    def stays_pending(self, workload_id: str) -> bool:
        """Tell whether `place` would find no node and have nothing to write, by what is known now.

        An attempt as good as any, and free: a cycle need not read a workload, nor take its fence, to learn the same.
        """
        spec, status = self._cache.get(SPECS, workload_id).record, self._cache.get(STATUSES, workload_id).record
        if spec is None or status is None or status.node_id:
            return False
        started = time.monotonic()
        choice = choose(self._live.fleet, self._request(spec, frees=True))
        if not isinstance(choice, Explanation) or not _tells(status, choice):
            return False
        self._on_outcome(choice, time.monotonic() - started)
        return True

    async def move(self, workload_id: str, *, from_node: str, guards: Sequence[Guard] = ()) -> Outcome:
        """Move a workload off a node that is lost or draining; when there is no other, it stays where it is.

        It also stays when that node has come back, or another has moved it already. Nothing is
        written unless it moves. Raises as `place` does.
        """
        return await self._assign(workload_id, from_node, guards)

    async def hand_over(self, workload_id: str, *, from_node: str, pace: Pace, guards: Sequence[Guard] = ()) -> Outcome:
        """Move a workload off a node that it must leave, where its copy goes on running until the new one does.

        It stays, and nothing is written, when no other node fits, when it need not leave any more, and
        when as many have set out as the pace allows; `pace` is for a node that does not say its own.
        Raises as `place` does.
        """
        return await self._assign(workload_id, from_node, guards, partial(HandOver, default_pace=pace))

    def elsewhere(self, spec: WorkloadSpec, node_id: str) -> Choice | Explanation:
        """Say which node other than this one would take the workload, from what is known now, or why none would."""
        # An exclusive workload lets go of its volumes before it leaves.
        request = self._request(spec, frees=is_exclusive(spec))
        return choose(self._live.fleet, request, {node_id})

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
        choice = choose(self._live.fleet, self._request(spec))
        return choice if isinstance(choice, Explanation) else Placed(choice.node_id, 0, choice.score, choice.reason)

    def assignment_of(self, workload_id: str) -> Assignment | None:
        """Return the placement of a workload as it was made, with its score."""
        return self._cache.get(ASSIGNMENTS, workload_id).record

    def score_on(self, spec: WorkloadSpec, node_id: str) -> float | None:
        """Return the score that a node has for a workload now; None: it does not fit there."""
        others = self._cache.all(NODES).keys() - {node_id}
        choice = choose(self._live.fleet, self._request(spec, frees=True), others)
        return choice.score if isinstance(choice, Choice) else None

    def measure(self, measured: Mapping[str, Measured]) -> None:
        """Take the measured use of some nodes, by node id; it only bends the score. Some 10 µs a node."""
        self._live.measure(measured)

    async def _assign(
        self, workload_id: str, from_node: str, guards: Sequence[Guard], assign: Callable[..., Assign] = Assign
    ) -> Outcome:
        started = time.monotonic()
        outcome: Outcome | None = None
        try:
            await self._cache.ready(_READY_SECONDS)
            # Two who place one workload here would take each other's assumption for a rival.
            async with self._turn("workload", workload_id):
                outcome = await self._take_tries(workload_id, from_node, guards, assign)
        finally:
            self._on_outcome(outcome, time.monotonic() - started)
        return outcome

    async def _take_tries(
        self, workload_id: str, from_node: str, guards: Sequence[Guard], assign: Callable[..., Assign]
    ) -> Outcome:
        spec = await self._spec(workload_id)
        if spec is None:
            return Vanished(workload_id, f'workload "{workload_id}" does not exist')
        known = await self._volumes(spec, fresh=False)
        refusals: Counter[str] = Counter()
        for attempt in range(_TRIES):
            excluded = {node_id for node_id, count in refusals.items() if count >= _REFUSALS} | {from_node}
            assigned = partial(assign, from_node=from_node)
            choosy = attempt < _CHOOSY_TRIES
            outcome = await self._try(spec, known, assigned, guards, excluded - {""}, choosy=choosy)
            if not isinstance(outcome, Outdated):
                return outcome
            spec = outcome.spec
            known = await self._volumes(spec, fresh=True)
            self._refused(spec.id, outcome, refusals)
            await asyncio.sleep(random.uniform(0, _BACKOFF_SECONDS * attempt))  # noqa: S311 - jitter, not a secret
        raise Conflict(f'workload "{workload_id}": the nodes chosen for it kept changing, {_TRIES} times in a row')

    def _request(self, spec: WorkloadSpec, *, frees: bool = False) -> Request:
        """Return what a workload asks for, its volumes where this process knows them to be."""
        if not spec.managed_volumes or not self._cache.mirrors(VOLUMES):
            return request_of(spec)
        known = {i: self._cache.get(VOLUMES, i).record for i in volume_ids(spec.managed_volumes)}
        return located(request_of(spec), spec, known, frees=frees)

    async def _volumes(self, spec: WorkloadSpec, *, fresh: bool) -> Known:
        """Return the records of a spec's volumes, by etcd's own word when the cache's was too old."""
        if not spec.managed_volumes:
            return {}
        refs = volume_refs(spec)
        view = None if fresh else self._cache.view(refs)
        return known_in(view or await self._store.read(refs), spec)

    async def _spec(self, workload_id: str) -> WorkloadSpec | None:
        cached = self._cache.get(SPECS, workload_id).record
        return cached or (await self._store.get(SPECS, workload_id)).record

    async def _try(
        self,
        spec: WorkloadSpec,
        known: Known,
        assigned: partial[Assign],
        guards: Sequence[Guard],
        excluded: set[str],
        *,
        choosy: bool,
    ) -> Outcome | Outdated:
        assign = assigned(request_of(spec), _NOWHERE, self._overcommit, self._now(), None)
        request = located(assign.request, spec, known, frees=assign.frees_volumes)
        choice = choose(self._live.fleet, request, excluded)
        if isinstance(choice, Explanation):
            moves = assigned.keywords["from_node"]
            return choice if moves else await self._note(spec.id, choice, guards)
        holders = self._live.holders(choice.node_id) | {spec.id} if choosy else None
        assign = replace(assign, request=request, choice=choice, holders=holders)
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
