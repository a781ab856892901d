"""Carrying out a suggestion once: its effect and the decision on it are one transaction.

Whoever sends the same suggestion again, to whichever front and after whatever crash, finds the
first decision. A decision lives under a lease, so that the table is bounded by time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduler.domain.errors import InvalidInput, NotFound, Refused
from scheduler.domain.suggestion import Decision, suggestion_key
from scheduler.domain.workload import Desired, WorkloadSpec, WorkloadStatus
from scheduler.store.claims import Claim, OutdatedClaimError
from scheduler.store.keys import SPECS, STATUSES, SUGGESTIONS
from scheduler.store.replicas import scaling
from scheduler.store.store import Store
from scheduler.store.workloads import deleting, desiring, retrying, workload_refs
from scheduler.store.write import Ref, View, Write


@dataclass(frozen=True, slots=True)
class Effect:
    """What a suggestion has changed."""

    spec: WorkloadSpec
    status: WorkloadStatus
    changed: bool = True
    replicas_before: int = 1


@dataclass(frozen=True, slots=True)
class Act:
    """An action over one workload: the records it decides from, and the decision."""

    refs: Sequence[Ref[Any]]
    decide: Callable[[View], Write[Effect]]
    """Raises InvalidInput, NotFound or Refused, which rejects the suggestion."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decision on a suggestion. `effect` is None unless it was carried out just now."""

    decision: Decision
    effect: Effect | None = None


async def carry_out(store: Store, act: Act, accepted: Decision, lease: int) -> Outcome:
    """Carry out an action and store the decision; or return the decision that this suggestion has had already.

    accepted: what to store when the action can be carried out; a suggestion without an id is not stored.
    lease: what the stored decision is bound to.
    """
    key = suggestion_key(accepted.suggestion_id)
    refs = [*act.refs, *([Ref(SUGGESTIONS, key)] if key else [])]

    def decide(view: View) -> Write[Outcome]:
        if key and (first := view.get(SUGGESTIONS, key).record):
            return Write(Outcome(first))
        write = _decided(view, act, accepted)
        if key:
            write.put(SUGGESTIONS, key, write.result.decision, lease=lease)
        return write

    return await store.transact(refs, decide)


def _decided(view: View, act: Act, accepted: Decision) -> Write[Outcome]:
    try:
        done = act.decide(view)
    except (InvalidInput, NotFound, Refused) as error:
        return Write(Outcome(accepted.replace(accepted=False, reason=str(error), applied_action="")))
    decision = accepted if done.result.changed else accepted.replace(reason="it is so already")
    return Write(Outcome(decision, done.result), done.puts, done.deletes)


def refusing(error: InvalidInput | Refused) -> Act:
    """Return the action of a suggestion that asks for nothing that could be done."""

    def decide(_view: View) -> Write[Effect]:
        raise error

    return Act((), decide)


def wanting(workload_id: str, desired: Desired) -> Act:
    """Return the action that sets the desired state."""
    if desired == Desired.DELETED:
        return removing(workload_id)

    def decide(view: View) -> Write[Effect]:
        write = desiring(workload_id, desired)(view)
        applied = write.result
        return Write(Effect(applied.spec, applied.status, applied.changed), write.puts, write.deletes)

    return Act(workload_refs(workload_id), decide)


def removing(workload_id: str) -> Act:
    """Return the action that deletes the workload."""

    def decide(view: View) -> Write[Effect]:
        write = deleting(workload_id)(view)
        if write.result is None:
            raise NotFound(f'there is no workload "{workload_id}"')
        effect = Effect(write.result, _status(view, workload_id), changed=bool(write.puts))
        return Write(effect, write.puts, write.deletes)

    return Act(workload_refs(workload_id), decide)


def trying_again(workload_id: str) -> Act:
    """Return the action that clears what went wrong so far."""

    def decide(view: View) -> Write[Effect]:
        write = retrying(workload_id)(view)
        spec = view.get(SPECS, workload_id).record
        assert spec is not None, workload_id  # noqa: S101 - retrying has raised otherwise
        return Write(Effect(spec, write.result), write.puts, write.deletes)

    return Act(workload_refs(workload_id), decide)


def _status(view: View, workload_id: str) -> WorkloadStatus:
    return view.get(STATUSES, workload_id).record or WorkloadStatus(id=workload_id)


def scaling_to(claim: Claim, wanted: Callable[[int], int], now: datetime) -> Act:
    """Return the action that sets the number of copies.

    wanted: from how many there are to be now to how many there are to be then; may raise InvalidInput.
    The transaction raises OutdatedClaimError when the claim does not cover what is wanted.
    """
    workload_id = claim.workload_id

    def decide(view: View) -> Write[Effect]:
        spec = view.get(SPECS, workload_id).record
        asked = wanted(spec.replicas if spec else 1)
        write = scaling(view, claim, asked, now=now)
        applied = write.result
        if applied.spec.replicas < asked:
            raise OutdatedClaimError
        effect = Effect(applied.spec, applied.status, applied.changed, applied.replicas_before)
        return Write(effect, write.puts, write.deletes)

    return Act(claim.refs(), decide)
