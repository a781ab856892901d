"""From exception to gRPC status: one table. Reasons are stable and never reused.

The answer carries a google.rpc.ErrorInfo with the reason, the domain `fleetbeat.v1`, and
for a bad request the name of the field.
"""

from __future__ import annotations

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from scheduler.domain.errors import (
    AgentRejected,
    AgentUnreachable,
    BadBackup,
    Conflict,
    Fenced,
    FleetbeatError,
    InvalidInput,
    NotFound,
    Refused,
    StoreUnavailable,
    WrongCluster,
)
from scheduler.front.modes import NotWritable
from scheduler.store.decode import CorruptRecord
from scheduler.store.kv import StoreRefused
from scheduler.telemetry.redis import TelemetryUnavailable

DOMAIN = "fleetbeat.v1"
LONGEST_MESSAGE = 1000
"""Characters; the status travels in a header, and headers are bounded."""

_INTERNAL = "something went wrong in fleetbeat itself; its log has the details"


class Overloaded(FleetbeatError):  # noqa: N818 - reads as a sentence where it is raised
    """Too many calls at once; try again later."""

    reason = "OVERLOADED"


class TooLarge(FleetbeatError):  # noqa: N818
    """The answer would be too large."""

    reason = "ANSWER_TOO_LARGE"


class Stopping(FleetbeatError):  # noqa: N818
    """The front stops; go on at another one."""

    reason = "FRONT_STOPPING"


class NotServed(FleetbeatError):  # noqa: N818
    """The call exists, but no version serves it so far."""

    reason = "NOT_SERVED"


class Forbidden(FleetbeatError):  # noqa: N818
    """The certificate of the caller does not allow this."""

    reason = "FORBIDDEN"

    def __init__(self, message: str = "", *, field: str = "") -> None:
        """Take the message, and the field of the request that it is about; blank: none."""
        super().__init__(message)
        self.field = field


CODES: dict[type[FleetbeatError], grpc.StatusCode] = {
    InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    BadBackup: grpc.StatusCode.INVALID_ARGUMENT,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Refused: grpc.StatusCode.FAILED_PRECONDITION,
    Conflict: grpc.StatusCode.ABORTED,
    Fenced: grpc.StatusCode.ABORTED,
    StoreUnavailable: grpc.StatusCode.UNAVAILABLE,
    NotWritable: grpc.StatusCode.UNAVAILABLE,
    StoreRefused: grpc.StatusCode.INTERNAL,
    WrongCluster: grpc.StatusCode.FAILED_PRECONDITION,
    CorruptRecord: grpc.StatusCode.DATA_LOSS,
    AgentUnreachable: grpc.StatusCode.UNAVAILABLE,
    AgentRejected: grpc.StatusCode.FAILED_PRECONDITION,
    TelemetryUnavailable: grpc.StatusCode.UNAVAILABLE,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooLarge: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Stopping: grpc.StatusCode.UNAVAILABLE,
    NotServed: grpc.StatusCode.UNIMPLEMENTED,
    Forbidden: grpc.StatusCode.PERMISSION_DENIED,
}
"""By the nearest class in the exception's ancestry; what is not in it is INTERNAL."""


def code_of(error: FleetbeatError) -> grpc.StatusCode:
    """Return the gRPC code of an error."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), grpc.StatusCode.INTERNAL)


def status_of(error: FleetbeatError) -> grpc.Status:
    """Return the status to end a call with: code, message, ErrorInfo."""
    field = error.field if isinstance(error, InvalidInput | Forbidden) else ""
    metadata = {"field": field} if field else {}
    return _status(code_of(error), str(error), error.reason, metadata)


def internal_status() -> grpc.Status:
    """Return the status for a defect of ours. The caller learns that there is one, the log which."""
    return _status(grpc.StatusCode.INTERNAL, _INTERNAL, FleetbeatError.reason, {})


def _status(code: grpc.StatusCode, message: str, reason: str, metadata: dict[str, str]) -> grpc.Status:
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata))
    text = message if len(message) <= LONGEST_MESSAGE else message[:LONGEST_MESSAGE] + "…"
    number, _ = code.value
    status: grpc.Status = rpc_status.to_status(status_pb2.Status(code=number, message=text, details=[detail]))
    return status
