"""What every client of etcd speaks: records, operations, batches of changes, errors, the interface.

`Etcd` (the network) and `MemoryEtcd` (tests) both implement `EtcdApi`; the cache, the
store and the lease are written against it and never know which one they have.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from scheduler.domain.errors import FleetbeatError, StoreUnavailable

MAX_TXN_OPERATIONS = 128
"""etcd's default --max-txn-ops: a limit on each of the three lists of a transaction."""
PAGE_SIZE = 1000
"""Keys a page of a range: 5 ms of loop time each at 1 KB values."""


class UnknownOutcome(StoreUnavailable):
    """The answer to a write was lost: it may or may not have been applied."""


class StoreRefused(StoreUnavailable):
    """etcd answered, and will not carry out this request however often it is sent."""


class LeaseNotFound(StoreRefused):
    """The lease has expired or was revoked."""


class Compacted(FleetbeatError):  # noqa: N818 - reads as a sentence where it is raised
    """The history asked for is gone from etcd; list again."""

    reason = "COMPACTED"

    def __init__(self, message: str = "", *, compact_revision: int = 0) -> None:
        """Take the oldest revision that is still there, when etcd told."""
        super().__init__(message)
        self.compact_revision = compact_revision


class KV(NamedTuple):
    """A key as etcd holds it; the operator's prefix is cut off."""

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    version: int
    lease: int


class Event(NamedTuple):
    """One change of one key; value None: it was deleted."""

    key: str
    value: bytes | None
    mod_revision: int
    create_revision: int


class Batch(NamedTuple):
    """All changes of one revision under the watched prefixes.

    Without events it is only a sign of life: the watch is current, nothing happened.
    """

    revision: int
    events: tuple[Event, ...]
    current: bool = True
    """False while the watch is still catching up with the store."""


class Compare(NamedTuple):
    """A condition of a transaction: this key's mod or create revision is `value` (0: the key is absent)."""

    key: str
    target: Literal["mod", "create"]
    value: int


class Put(NamedTuple):
    """Store a value, bound to a lease when that is not 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Remove a key; no error when it is absent."""

    key: str


class Get(NamedTuple):
    """Read a key inside a transaction."""

    key: str


Operation = Put | Delete | Get


@dataclass(frozen=True, slots=True)
class TxnResult:
    """What a transaction did."""

    succeeded: bool
    """Whether all compares held: the `then` branch ran, else the `otherwise` branch."""
    revision: int
    """The store's revision after it; that of the write, when it wrote."""
    responses: tuple[KV | None, ...]
    """One an operation of the branch that ran: what a Get found; None for an absent key, a Put or a Delete."""


def mod_is(key: str, revision: int) -> Compare:
    """Require that the key was last changed at this revision (0: that it is absent)."""
    return Compare(key, "mod", revision)


def created_at(key: str, revision: int) -> Compare:
    """Require that the key was created at this revision (0: that it is absent)."""
    return Compare(key, "create", revision)


class EtcdApi(Protocol):
    """The part of etcd that fleetbeat uses. Every call has a deadline.

    Raises: StoreUnavailable when etcd does not answer (a write was then certainly not
    applied), UnknownOutcome when a write may have been applied, StoreRefused when etcd
    rejects the request itself, Compacted when a revision is gone.
    """

    async def get(self, key: str, *, serializable: bool = False, revision: int = 0) -> tuple[KV | None, int]:
        """Read a key (revision 0: now); return it, or None, with the store's revision."""
        ...

    async def get_many(self, keys: Sequence[str]) -> tuple[dict[str, KV], int]:
        """Read keys, all at one revision; absent ones are left out. Return them with that revision."""
        ...

    async def scan(
        self, prefix: str, *, page: int = PAGE_SIZE, revision: int = 0, serializable: bool = False
    ) -> tuple[list[KV], int]:
        """Read all keys under a prefix at one revision (0: now), page by page, in key order."""
        ...

    async def txn(
        self, compares: Sequence[Compare] = (), then: Sequence[Operation] = (), otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """Run one transaction; at most 128 entries in each list."""
        ...

    async def grant(self, ttl_seconds: int) -> int:
        """Create a lease; return its id."""
        ...

    async def keepalive(self, lease: int) -> int:
        """Renew a lease; return the seconds it now has, 0 when it is gone."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its keys; no error when it is gone already."""
        ...

    def watch(self, prefixes: Sequence[str], start_revision: int) -> AsyncGenerator[Batch, None]:
        """Yield every change from start_revision on, a whole revision at a time; resumes by itself, for ever.

        Raises Compacted when etcd no longer has the history to go on from. Close it with
        contextlib.aclosing.
        """
        ...

    async def close(self) -> None:
        """Release connections and tasks."""
        ...
