"""SubmitAutomationSuggestion: what persys-automation suggests, decided and carried out once.

A suggestion that cannot be carried out is told in the answer, `decision` "rejected" with a reason,
as in the reference system. What is changed is the workload's record; who drives it does the rest.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import structlog

from scheduler.convergence.suggestions import Freshness, check_fresh, replicas_asked, state_asked
from scheduler.domain.errors import Conflict, InvalidInput, Refused
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.suggestion import Decision
from scheduler.front import fields
from scheduler.front.errors import Overloaded
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.front.replicas import Copies
from scheduler.front.views import timestamp
from scheduler.pb import control_pb2 as pb
from scheduler.store.claims import CLAIMED_AT_ONCE, OutdatedClaimError, claim_for
from scheduler.store.keys import SPECS
from scheduler.store.kv import LeaseNotFound
from scheduler.store.lease import RollingLease
from scheduler.store.suggestions import (
    Act,
    Effect,
    Outcome,
    carry_out,
    refusing,
    removing,
    scaling_to,
    trying_again,
    wanting,
)
from scheduler.store.takeover import as_ours

MAX_TEXT = 512
MAX_REASON = 4_096
MAX_KEPT = 20_000
"""Decisions that one front stores in an eighth of the time they are kept."""
_ROUNDS = 5
"""How often a number of copies may change under a suggestion to change it."""

NAMES = {
    pb.AUTOMATION_ACTION_SET_DESIRED_STATE: "set_desired_state",
    pb.AUTOMATION_ACTION_RETRY_WORKLOAD: "retry_workload",
    pb.AUTOMATION_ACTION_DELETE_WORKLOAD: "delete_workload",
    pb.AUTOMATION_ACTION_SCALE_REPLICAS: "scale_replicas",
}
"""How applied actions are called, as in the reference system."""

_log = structlog.get_logger("scheduler.front.automation")


class Automation:
    """The part of the service that takes suggestions. Methods are named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader, copies: Copies) -> None:
        """Take the front's parts, who reads, and who writes the copies of workloads."""
        self._parts = parts
        self._reader = reader
        self._copies = copies
        s = parts.settings
        self._freshness = Freshness(s.suggestion_max_age_seconds, s.suggestion_tolerance_seconds, s.suggestion_undated)
        self._leases = RollingLease(parts.etcd, round(s.suggestion_ttl_seconds), MAX_KEPT)

    async def SubmitAutomationSuggestion(  # noqa: N802 - the wire's name
        self, request: pb.SubmitAutomationSuggestionRequest, _context: Any
    ) -> pb.SubmitAutomationSuggestionResponse:
        """Decide on a suggestion, and carry it out when it is accepted."""
        if not request.HasField("suggestion"):
            raise InvalidInput("suggestion", "is missing")
        suggestion = request.suggestion
        _check_lengths(suggestion)
        outcome = await self._decide(suggestion, _suggested_at(suggestion))
        if outcome.effect:
            await self._follow(suggestion, outcome.effect)
        return _answer(outcome.decision)

    async def _decide(self, suggestion: pb.AutomationSuggestion, suggested_at: datetime | None) -> Outcome:
        now = self._parts.now()
        accepted = Decision(
            suggestion_id=suggestion.suggestion_id,
            workload_id=suggestion.target_workload,
            accepted=True,
            reason="carried out",
            applied_action=NAMES.get(suggestion.action_type, ""),
            decided_at=now,
        )
        for _ in range(_ROUNDS):
            lease = await self._lease(suggestion)
            try:
                check_fresh(suggested_at, now, self._freshness)
                act = await self._act(suggestion, now)
            except (InvalidInput, Refused) as error:
                act = refusing(error)
            try:
                return await self._carry_out(act, accepted, lease)
            except OutdatedClaimError:
                continue
            except LeaseNotFound:
                self._leases.forget(lease)
        raise Conflict(f'workload "{suggestion.target_workload}" kept changing under a suggestion')

    async def _carry_out(self, act: Act, accepted: Decision, lease: int) -> Outcome:
        """Carry out an action, after taking its workload over where it is not ours yet."""
        store = self._parts.store
        workload_id, now = accepted.workload_id, self._parts.now()
        try:
            return await as_ours(store, workload_id, lambda: carry_out(store, act, accepted, lease), now=now)
        except Refused as error:
            return await carry_out(store, refusing(error), accepted, lease)

    async def _lease(self, suggestion: pb.AutomationSuggestion) -> int:
        if not suggestion.suggestion_id:
            return 0
        lease = await self._leases.take()
        if not lease:
            raise Overloaded("there were too many suggestions of late; try again later")
        return lease

    async def _act(self, suggestion: pb.AutomationSuggestion, now: datetime) -> Act:
        """Return what to do. Raises InvalidInput, Refused."""
        action, target = suggestion.action_type, check_id("target_workload", suggestion.target_workload)
        if action == pb.AUTOMATION_ACTION_SET_DESIRED_STATE:
            return wanting(target, state_asked(suggestion.desired_state))
        if action == pb.AUTOMATION_ACTION_RETRY_WORKLOAD:
            return trying_again(target)
        if action == pb.AUTOMATION_ACTION_DELETE_WORKLOAD:
            return removing(target)
        if action == pb.AUTOMATION_ACTION_SCALE_REPLICAS:
            return await self._scale(suggestion, now)
        raise InvalidInput("action_type", f"{action} is not allowed; it must be one of {', '.join(NAMES.values())}")

    async def _scale(self, suggestion: pb.AutomationSuggestion, now: datetime) -> Act:
        def wanted(present: int) -> int:
            asked = replicas_asked(suggestion.desired_replicas, suggestion.replica_delta, present)
            if asked - present > CLAIMED_AT_ONCE:
                raise InvalidInput(
                    "desired_replicas", f"{asked} are {asked - present} more than now, {CLAIMED_AT_ONCE} may be at once"
                )
            return asked

        target = suggestion.target_workload
        known = (await self._parts.store.get(SPECS, target)).record
        claim = await claim_for(self._parts.store, target, wanted(known.replicas if known else 1))
        return scaling_to(claim, wanted, now)

    async def _follow(self, suggestion: pb.AutomationSuggestion, effect: Effect) -> None:
        """Tell what was done and have it driven on; when this process dies before that, the next cycle does it."""
        spec, status = effect.spec, effect.status
        retried = suggestion.action_type == pb.AUTOMATION_ACTION_RETRY_WORKLOAD
        if effect.changed:
            self._parts.events.emit(
                EventType.RETRY_TRIGGERED if retried else EventType.WORKLOAD_UPDATED,
                workload_id=spec.id,
                node_id=status.node_id,
                reason=f"automation: {NAMES[suggestion.action_type]}",
                details=_details(suggestion, effect),
            )
        _log.info(
            "suggestion carried out", workload=spec.id, suggestion=suggestion.suggestion_id, changed=effect.changed
        )
        await self._copies.follow(spec)
        self._parts.wake(spec.id, status.node_id)
        await self._reader.see_own_writes()


def _details(suggestion: pb.AutomationSuggestion, effect: Effect) -> dict[str, str]:
    found = {
        "suggestion_id": suggestion.suggestion_id,
        "policy_id": suggestion.policy_id,
        "policy_name": suggestion.policy_name,
        "why": suggestion.reason[:MAX_TEXT],
        "desired_state": effect.spec.desired_state,
    }
    if suggestion.action_type == pb.AUTOMATION_ACTION_SCALE_REPLICAS:
        found |= {"replicas": str(effect.spec.replicas), "previous_replicas": str(effect.replicas_before)}
    return {key: value for key, value in found.items() if value}


def _check_lengths(suggestion: pb.AutomationSuggestion) -> None:
    for name in ("suggestion_id", "policy_id", "policy_name", "target_workload", "desired_state"):
        fields.line(f"suggestion.{name}", getattr(suggestion, name), MAX_TEXT)
    fields.text("suggestion.reason", suggestion.reason, MAX_REASON)


def _suggested_at(suggestion: pb.AutomationSuggestion) -> datetime | None:
    """Return when it was suggested; None when it does not say. A time of zero is that of a client that set none."""
    if not suggestion.HasField("suggested_at") or suggestion.suggested_at.seconds <= 0:
        return None
    try:
        return suggestion.suggested_at.ToDatetime(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput("suggestion.suggested_at", "is not a time") from error


def _answer(decision: Decision) -> pb.SubmitAutomationSuggestionResponse:
    return pb.SubmitAutomationSuggestionResponse(
        accepted=decision.accepted,
        decision="accepted" if decision.accepted else "rejected",
        reason=decision.reason,
        applied_action=decision.applied_action,
        decided_at=timestamp(decision.decided_at),
    )
