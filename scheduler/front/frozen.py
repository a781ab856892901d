"""What a front answers to writes while it is degraded or in recovery: the reference system's answers, in its order.

Whatever does not only read is a write. ApplyWorkload, DeleteWorkload, RetryWorkload and
SubmitAutomationSuggestion are refused before their ids are looked at, in their answers;
RegisterNode after its id; a heartbeat is always taken. The rest ends with UNAVAILABLE.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

from scheduler.domain.ids import check_id
from scheduler.front.modes import Modes
from scheduler.pb import control_pb2 as pb

_READS = ("Get", "List", "Watch", "Explain", "Read", "Describe")
_ALWAYS = frozenset({"Heartbeat", "AcceptStore"})
"""Methods that know what to do in each mode."""


def _applied(why: str, _now: datetime) -> pb.ApplyWorkloadResponse:
    return pb.ApplyWorkloadResponse(success=False, failure_reason=pb.RUNTIME_ERROR, error_message=why)


def _deleted(why: str, _now: datetime) -> pb.DeleteWorkloadResponse:
    return pb.DeleteWorkloadResponse(success=False, error_message=why)


def _retried(why: str, _now: datetime) -> pb.RetryWorkloadResponse:
    return pb.RetryWorkloadResponse(accepted=False, reason=why)


def _decided(why: str, now: datetime) -> pb.SubmitAutomationSuggestionResponse:
    answer = pb.SubmitAutomationSuggestionResponse(accepted=False, decision="rejected", reason=why)
    answer.decided_at.FromDatetime(now)
    return answer


def _registered(why: str, _now: datetime) -> pb.RegisterNodeResponse:
    return pb.RegisterNodeResponse(accepted=False, reason=why)


_IN_BAND: dict[str, Callable[[str, datetime], Any]] = {
    "ApplyWorkload": _applied,
    "DeleteWorkload": _deleted,
    "RetryWorkload": _retried,
    "SubmitAutomationSuggestion": _decided,
    "RegisterNode": _registered,
}


class Gate:
    """Stands before an object that serves some methods; its writes pass only in normal mode."""

    def __init__(self, served: object, modes: Modes, now: Callable[[], datetime]) -> None:
        """Take the object, who knows the mode, and a clock."""
        self._served = served
        self._modes = modes
        self._now = now

    def __getattr__(self, name: str) -> Any:
        """Return a method of the object, guarded if it writes; AttributeError when it has none of that name."""
        method = getattr(self._served, name)
        if name.startswith(_READS) or name in _ALWAYS or not name[:1].isupper():
            return method
        return self._guarded(name, method)

    def _guarded(self, name: str, method: Any) -> Any:
        refuse = _IN_BAND.get(name)

        @functools.wraps(method)
        async def call(request: Any, context: Any) -> Any:
            if self._modes.writable:
                return await method(request, context)
            if name == "RegisterNode":
                check_id("node_id", request.node_id)
            if refuse is None:
                self._modes.check_writable()
                raise AssertionError("unreachable: the mode cannot change without a pause")
            return refuse(self._modes.refusal, self._now())

        return call
