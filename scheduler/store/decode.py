"""From what etcd holds to a record, with the revisions it was read at."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from scheduler.domain.errors import FleetbeatError
from scheduler.domain.record import Record
from scheduler.store.keys import Table
from scheduler.store.kv import KV, Event
from scheduler.store.write import Versioned

T = TypeVar("T", bound=Record)


class CorruptRecord(FleetbeatError):  # noqa: N818 - reads as a sentence where it is raised
    """A stored value is not a record of its table."""

    reason = "CORRUPT_RECORD"


def decode(table: Table[T], identifier: str, kv: KV | Event | None) -> Versioned[T]:
    """Parse a stored value; None and a deletion are an absent record. Raises CorruptRecord that names the key."""
    if kv is None or kv.value is None:
        return Versioned(identifier, None)
    try:
        record = table.model.from_json(kv.value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the value"
        raise CorruptRecord(
            f"{table.key(identifier)} at revision {kv.mod_revision} is not a {table.model.__name__}: "
            f"{where}: {first['msg']}; repair or delete the key"
        ) from None
    return Versioned(identifier, record, kv.mod_revision, kv.create_revision)
