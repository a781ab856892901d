"""From a failed call to what it means: by status code, not by text, but for the one text that real agents need."""

from __future__ import annotations

import grpc

from scheduler.domain.errors import AgentRejected, AgentUnreachable, FleetbeatError

OLDER_EPOCH = "OLDER_EPOCH"
"""The agent knows a newer assignment of this workload than the one the call speaks for."""
NOT_NOW = "NOT_NOW"
"""No fault of the order: another node's agent answers at this address, or it is ending, or busy with a delete."""
MISSING = "MISSING"
"""The agent does not have the workload."""
NO_STATUS = "status not found"
"""What the Persys compute-agent says, with code UNKNOWN, about a workload it does not have."""

_UNREACHABLE = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
_CODES = {grpc.StatusCode.ABORTED: OLDER_EPOCH, grpc.StatusCode.FAILED_PRECONDITION: NOT_NOW}
MAX_TEXT = 512
"""Characters of an agent's words that an error repeats."""


def is_unreachable(error: grpc.aio.AioRpcError) -> bool:
    """Whether the agent did not answer at all."""
    return error.code() in _UNREACHABLE


def _is_missing(error: grpc.aio.AioRpcError) -> bool:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return True
    return error.code() is grpc.StatusCode.UNKNOWN and NO_STATUS in (error.details() or "").lower()


def meaning(error: grpc.aio.AioRpcError, node_id: str, rpc: str) -> FleetbeatError:
    """Return what to raise for a failed call."""
    code, text = error.code(), (error.details() or "")[:MAX_TEXT]
    if is_unreachable(error):
        return AgentUnreachable(f"the agent of node {node_id} does not answer {rpc}: {code.name}: {text}")
    reason = MISSING if _is_missing(error) else _CODES.get(code, code.name)
    return AgentRejected(f"the agent of node {node_id} refuses {rpc}: {text}", reason)
