"""One exception tree. Each class has a stable reason, documented and never reused.

The front maps reasons to gRPC codes in one table (scheduler/front/errors.py).
"""

from __future__ import annotations


class FleetbeatError(Exception):
    """Something fleetbeat can name went wrong."""

    reason = "INTERNAL"

    def __init__(self, message: str = "") -> None:
        """Take the message, or else the first line of the class's docstring."""
        super().__init__(message or (self.__doc__ or "").strip().splitlines()[0])


class InvalidInput(FleetbeatError):  # noqa: N818 - reads as a sentence where it is raised
    """A value in the request is not allowed."""

    reason = "INVALID_INPUT"

    def __init__(self, field: str, problem: str) -> None:
        """Name the field (wire spelling, dotted path) and what is wrong with it."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotFound(FleetbeatError):  # noqa: N818
    """There is no such record."""

    reason = "NOT_FOUND"


class Refused(FleetbeatError):  # noqa: N818
    """The state of the record does not allow this."""

    reason = "FAILED_PRECONDITION"


class Conflict(FleetbeatError):  # noqa: N818
    """Somebody else kept changing the records this decision rested on."""

    reason = "CONFLICT"


class Fenced(FleetbeatError):  # noqa: N818
    """A newer cycle, term or shard map has taken over; nothing was written."""

    reason = "FENCED"


class StoreUnavailable(FleetbeatError):  # noqa: N818
    """etcd does not answer."""

    reason = "STORE_UNAVAILABLE"


class WrongCluster(FleetbeatError):  # noqa: N818
    """etcd belongs to another cluster or to another layout version."""

    reason = "WRONG_CLUSTER"


class BadBackup(FleetbeatError):  # noqa: N818
    """The file is no backup that this version can read, or it is damaged."""

    reason = "BAD_BACKUP"


class AgentUnreachable(FleetbeatError):  # noqa: N818
    """The node's agent does not answer."""

    reason = "AGENT_UNREACHABLE"


class AgentRejected(FleetbeatError):  # noqa: N818
    """The node's agent answered and refused."""

    reason = "AGENT_REJECTED"

    def __init__(self, message: str, code: str = "") -> None:
        """Take the agent's words and its failure code (IMAGE_PULL_TIMEOUT, …; blank when it gave none)."""
        super().__init__(message)
        self.code = code
