"""What operators ask of nodes over `persys.control.v1.AgentControl`: drain, taints, labels.

What is asked is stored with the node and carried out by the loops; nothing here waits for it. Asking
for what already is so changes nothing and is accepted. Events tell of changes only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from scheduler.convergence.drain import is_left, leaving
from scheduler.domain.errors import InvalidInput
from scheduler.domain.event import EventType
from scheduler.domain.ids import check_id
from scheduler.domain.node import Drain, DrainJob, Node, Taint
from scheduler.domain.toleration import EFFECTS, NO_SCHEDULE, taint_text
from scheduler.domain.workload import Desired
from scheduler.front import fields
from scheduler.front.parts import FrontParts
from scheduler.front.reader import Reader
from scheduler.pb import control_pb2 as pb
from scheduler.store import intent
from scheduler.store.intent import Changed, Wish

DRAIN_REASON = "node drain requested"
MAX_REASON = 256
MAX_KEY = 128
MAX_VALUE = 256
MAX_PARALLEL = 1000
MAX_DRAIN_SECONDS = 30 * 86_400.0
MAX_WOKEN = 64
"""Workloads that are looked at right after a call; the next cycle looks at the others."""
MAX_TOLD = 100
"""Pinned workloads of a drained node that get an event of their own."""

_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?")
_EFFECTS = {effect.lower(): effect for effect in EFFECTS}


class Operators:
    """Some methods of the service, named as on the wire."""

    def __init__(self, parts: FrontParts, reader: Reader) -> None:
        """Take the front's parts and who reads."""
        self._parts = parts
        self._reader = reader

    async def DrainNode(self, request: pb.DrainNodeRequest, _context: Any) -> pb.DrainNodeResponse:  # noqa: N802 - the wire's name
        """Ask for a node to be emptied, or change how; the loops carry it on until it is."""
        node_id = check_id("node_id", request.node_id)
        wish = _wish(request, self._parts.now())
        await self._reader.see_own_writes()
        movable, pinned = self._split(node_id)
        if request.validate_only:
            return await self._drain_answer(node_id, _would(node_id, movable, pinned), movable, pinned)
        settings = self._parts.settings
        default = DrainJob(
            reason=DRAIN_REASON,
            max_parallel=settings.drain_max_parallel,
            min_healthy_seconds=settings.drain_min_healthy_seconds,
        )
        total = len(self._reader.index.on_node(node_id))
        now = self._parts.now()
        changed = await intent.drain(self._parts.store, node_id, wish, default, total=total, now=now)
        if changed.anything:
            self._tell_of_drain(changed.after, pinned)
        await self._reader.see_own_writes()
        self._wake(node_id, movable)
        return await self._drain_answer(node_id, _draining_text(changed.after, movable, pinned), movable, pinned)

    async def _drain_answer(
        self, node_id: str, text: str, movable: Sequence[str], pinned: Sequence[str]
    ) -> pb.DrainNodeResponse:
        return pb.DrainNodeResponse(
            accepted=True,
            message=text,
            relocated_workloads=len(movable),
            pinned_workloads=len(pinned),
            node=await self._reader.node(node_id),
        )

    def _tell_of_drain(self, node: Node, pinned: Sequence[str]) -> None:
        job = node.drain_job or DrainJob()
        details = {"max_parallel": str(job.max_parallel), "pinned": str(len(pinned))}
        if job.deadline:
            details["deadline"] = job.deadline.isoformat(timespec="seconds")
        emit = self._parts.events.emit
        emit(EventType.NODE_DRAINING, node_id=node.node_id, reason=job.reason, details=details)
        for workload_id in pinned[:MAX_TOLD]:
            emit(
                EventType.RESCHEDULE_SKIPPED,
                workload_id=workload_id,
                node_id=node.node_id,
                reason="it must stay with the state on its node, which is being drained",
            )

    async def UndrainNode(self, request: pb.UndrainNodeRequest, _context: Any) -> pb.UndrainNodeResponse:  # noqa: N802
        """End a drain. Whether the node is Ready is a matter of its health, and is told."""
        node_id = check_id("node_id", request.node_id)
        reason = fields.line("reason", request.reason.strip(), MAX_REASON) or "node undrain requested"
        changed = await intent.undrain(self._parts.store, node_id)
        node = changed.after
        if changed.anything and node.is_ready:
            self._parts.events.emit(EventType.NODE_READY, node_id=node_id, reason=reason)
        await self._reader.see_own_writes()
        return pb.UndrainNodeResponse(
            accepted=True, message=_undrained_text(changed), node=await self._reader.node(node_id)
        )

    async def TaintNode(self, request: pb.TaintNodeRequest, _context: Any) -> pb.TaintNodeResponse:  # noqa: N802
        """Put a taint on a node, or change the value of one with the same key and effect."""
        node_id = check_id("node_id", request.node_id)
        taint = _taint(request.taint)
        changed = await intent.add_taint(self._parts.store, node_id, taint)
        if changed.anything:
            self._parts.events.emit(EventType.NODE_TAINTED, node_id=node_id, reason=taint_text(taint))
        await self._reader.see_own_writes()
        if is_left(changed.after):
            self._wake(node_id, self._split(node_id)[0])
        text = f'node "{node_id}" has taint {taint_text(taint)}'
        return pb.TaintNodeResponse(accepted=True, message=text, node=await self._reader.node(node_id))

    async def UntaintNode(self, request: pb.UntaintNodeRequest, _context: Any) -> pb.UntaintNodeResponse:  # noqa: N802
        """Take a taint off a node; a blank effect means NoSchedule, as the reference system has it."""
        node_id = check_id("node_id", request.node_id)
        key = _key("key", request.key)
        effect = fields.choice("effect", request.effect, _EFFECTS, blank=NO_SCHEDULE)
        changed = await intent.remove_taint(self._parts.store, node_id, key, effect)
        text = f'node "{node_id}" has no taint {key}:{effect}' + ("" if changed.anything else ", and had none")
        if changed.anything:
            self._parts.events.emit(EventType.NODE_UNTAINTED, node_id=node_id, reason=f"{key}:{effect}")
        await self._reader.see_own_writes()
        return pb.UntaintNodeResponse(accepted=True, message=text, node=await self._reader.node(node_id))

    async def SetNodeLabel(self, request: pb.SetNodeLabelRequest, _context: Any) -> pb.SetNodeLabelResponse:  # noqa: N802
        """Label a node."""
        node_id = check_id("node_id", request.node_id)
        key = _key("key", request.key)
        value = fields.line("value", request.value.strip(), MAX_VALUE)
        changed = await intent.set_label(self._parts.store, node_id, key, value)
        if changed.anything:
            self._parts.events.emit(EventType.NODE_LABEL_SET, node_id=node_id, reason=f"{key}={value}")
        await self._reader.see_own_writes()
        text = f'node "{node_id}" has label {key}={value}'
        return pb.SetNodeLabelResponse(accepted=True, message=text, node=await self._reader.node(node_id))

    async def DeleteNodeLabel(  # noqa: N802
        self, request: pb.DeleteNodeLabelRequest, _context: Any
    ) -> pb.DeleteNodeLabelResponse:
        """Take a label off a node."""
        node_id = check_id("node_id", request.node_id)
        key = _key("key", request.key)
        changed = await intent.delete_label(self._parts.store, node_id, key)
        text = f'node "{node_id}" has no label {key}' + ("" if changed.anything else ", and had none")
        if said := changed.after.labels.get(key):
            text = f'the label that operators set is gone; {key}={said} of node "{node_id}" comes from its agent'
        if changed.anything:
            self._parts.events.emit(EventType.NODE_LABEL_DELETED, node_id=node_id, reason=key)
        await self._reader.see_own_writes()
        return pb.DeleteNodeLabelResponse(accepted=True, message=text, node=await self._reader.node(node_id))

    def _split(self, node_id: str) -> tuple[list[str], list[str]]:
        """Return the workloads on a node that would move if it were drained, and those that would stay."""
        movable: list[str] = []
        pinned: list[str] = []
        index = self._reader.index
        drained = Node(node_id=node_id, drain=Drain.DRAINING)
        for workload_id in sorted(index.on_node(node_id)):
            spec, status = index.spec(workload_id), index.status(workload_id)
            if spec is None or status is None or spec.desired_state == Desired.DELETED:
                continue
            (movable if leaving(spec, status, drained) else pinned).append(workload_id)
        return movable, pinned

    def _wake(self, node_id: str, workload_ids: Sequence[str]) -> None:
        for workload_id in workload_ids[:MAX_WOKEN]:
            self._parts.wake(workload_id, node_id)


def _wish(request: pb.DrainNodeRequest, now: datetime) -> Wish:
    """Check what a drain is to be like."""
    wish = Wish(
        reason=fields.line("reason", request.reason.strip(), MAX_REASON),
        max_parallel=fields.number("max_parallel", request.max_parallel, 1, MAX_PARALLEL)
        if request.HasField("max_parallel")
        else None,
        min_healthy_seconds=_seconds("min_healthy_seconds", request.min_healthy_seconds, 0.0)
        if request.HasField("min_healthy_seconds")
        else None,
        ignore_pinned=request.ignore_pinned if request.HasField("ignore_pinned") else None,
    )
    if not request.HasField("deadline_seconds"):
        return wish
    seconds = request.deadline_seconds
    if seconds == -1:
        return Wish(wish.reason, wish.max_parallel, wish.min_healthy_seconds, intent.NO_DEADLINE, wish.ignore_pinned)
    deadline = now + timedelta(seconds=_seconds("deadline_seconds", seconds, 0.0, " or -1 for none"))
    return Wish(wish.reason, wish.max_parallel, wish.min_healthy_seconds, deadline, wish.ignore_pinned)


def _seconds(field: str, value: float, low: float, also: str = "") -> float:
    if not low <= value <= MAX_DRAIN_SECONDS:  # also refuses what is not a number
        raise InvalidInput(field, f"{value:g} is not allowed; it must be {low:g} to {MAX_DRAIN_SECONDS:.0f}{also}")
    return value


def _taint(wire: pb.NodeTaint) -> Taint:
    key = _key("taint.key", wire.key)
    value = wire.value.strip()
    if value:
        fields.matching("taint.value", value, _WORD, fields.KEY_WORDS, MAX_VALUE)
    return Taint(key=key, value=value, effect=fields.choice("taint.effect", wire.effect, _EFFECTS, blank=NO_SCHEDULE))


def _key(field: str, text: str) -> str:
    return fields.matching(field, text.strip(), _WORD, fields.KEY_WORDS, MAX_KEY)


def _workloads(count: int) -> str:
    return f"{count} workload{'' if count == 1 else 's'}"


def _would(node_id: str, movable: Sequence[str], pinned: Sequence[str]) -> str:
    stay = f", {_workloads(len(pinned))} pinned to it would stay" if pinned else ""
    return f'{_workloads(len(movable))} would leave node "{node_id}"{stay}'


def _draining_text(node: Node, movable: Sequence[str], pinned: Sequence[str]) -> str:
    if node.drain == Drain.DRAINED:
        return f'node "{node.node_id}" is drained'
    stay = f"; {_workloads(len(pinned))} pinned to it {'stays' if len(pinned) == 1 else 'stay'}" if pinned else ""
    if not node.is_ready:
        return (
            f'node "{node.node_id}" takes no new work; it is {node.status}, so its workloads move when it has '
            f"been lost for the grace, and it counts as drained when it is heard again and empty{stay}"
        )
    return f'node "{node.node_id}" is being drained: {_workloads(len(movable))} to move{stay}'


def _undrained_text(changed: Changed) -> str:
    node = changed.after
    text = f'node "{node.node_id}" is not being drained any more' if changed.anything else (
        f'node "{node.node_id}" was not being drained'
    )  # fmt: skip
    if not node.is_ready:
        return f"{text}; it is {node.status} ({node.status_reason}) and becomes Ready when it is heard"
    return text + ("" if node.schedulable else "; it is cordoned: uncordon it to have it take new work")
