"""The one write path: read, decide, compare everything the decision rested on, write.

A decision is a pure function from a `View` (what was read, all at one revision) to a
`Write` (what to change). The store commits it in one transaction that compares the mod
revision of *every* record in the view, and of every guard. On a conflict it reads again
and decides again; when the outcome of a call is not known it reads to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scheduler.domain.record import Record
from scheduler.store.keys import Table

T = TypeVar("T", bound=Record)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T]):
    """A record as read. Absent records have record None and mod_revision 0."""

    id: str
    record: T | None
    mod_revision: int = 0
    create_revision: int = 0


@dataclass(frozen=True, slots=True)
class Ref(Generic[T]):
    """Names a record that a decision needs."""

    table: Table[T]
    id: str

    @property
    def key(self) -> str:
        """The record's key, without the operator's prefix."""
        return self.table.key(self.id)


@dataclass(frozen=True, slots=True)
class Guard:
    """A key that must still be at this mod revision (0: absent), or the write is fenced off."""

    key: str
    mod_revision: int


@dataclass(frozen=True, slots=True)
class Basis:
    """What was decided outside of a transaction rested on these records, at these revisions (0: absent)."""

    revisions: Mapping[Ref[Any], int]

    @property
    def refs(self) -> tuple[Ref[Any], ...]:
        """The records, for the transaction to name."""
        return tuple(self.revisions)

    def holds(self, view: View) -> bool:
        """Tell whether all are as they were. A transaction that named them compares it."""
        return all(view.at(ref.key).mod_revision == revision for ref, revision in self.revisions.items())


NO_BASIS = Basis({})
"""The decision rests on nothing but what the transaction reads."""


class Uncovered(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """A decision rests on records that it did not name, which it only learned from those it did."""

    def __init__(self, refs: Iterable[Ref[Any]]) -> None:
        """Take what is to be read as well."""
        self.refs = tuple(refs)
        super().__init__(", ".join(ref.key for ref in self.refs))


class View:
    """What a decision may rest on: the records it named, read at one revision."""

    def __init__(self, revision: int, records: dict[str, Versioned[Any]]) -> None:
        """Take the revision of the read and the records by key."""
        self.revision = revision
        self.epoch_base = 0
        """What epochs of new assignments are above, whatever the revisions are."""
        self._records = records

    def get(self, table: Table[T], identifier: str) -> Versioned[T]:
        """Return a record that the decision named; KeyError when it did not name it."""
        return self._records[table.key(identifier)]

    def require(self, refs: Iterable[Ref[Any]]) -> None:
        """Have these records read as well: raise Uncovered for those that are not in the view."""
        if missing := [ref for ref in refs if ref.key not in self._records]:
            raise Uncovered(missing)

    def at(self, key: str) -> Versioned[Any]:
        """Return the record under a key that the decision named; KeyError when it did not name it."""
        return self._records[key]

    def items(self) -> Iterable[tuple[str, Versioned[Any]]]:
        """Return every record with its key."""
        return self._records.items()


@dataclass
class Write(Generic[R]):
    """What a decision changes; `result` is handed back to the caller once it is stored.

    An empty write stores nothing and still returns the result.
    """

    result: R
    puts: dict[str, bytes] = field(default_factory=dict)
    deletes: set[str] = field(default_factory=set)
    leases: dict[str, int] = field(default_factory=dict)
    """The lease that a key which is put is bound to; none: it stays."""

    def put(self, table: Table[T], identifier: str, record: T, *, lease: int = 0) -> None:
        """Store this record; with a lease it goes when that ends."""
        key = table.key(identifier)
        self.puts[key] = record.to_json()
        if lease:
            self.leases[key] = lease

    def delete(self, table: Table[Any], identifier: str) -> None:
        """Remove this record."""
        self.deletes.add(table.key(identifier))
