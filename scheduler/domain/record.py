"""The base of every stored record: immutable, camelCase on disk, unknown fields kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Self

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Record(BaseModel):
    """A value stored in etcd as JSON.

    Field names are camelCase on disk, as the reference system writes them. Fields this
    version does not know are kept, so that a newer writer's data survives a rewrite.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="allow",
    )

    def to_json(self) -> bytes:
        """Serialise to compact UTF-8 JSON with the stored names; absent values are left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse stored JSON; raises pydantic.ValidationError when it does not fit."""
        return cls.model_validate_json(data)

    def replace(self, **changes: object) -> Self:
        """Return a copy with these fields (Python names) changed; nothing is re-validated."""
        return self.model_copy(update=changes)


def utc(unix_seconds: float) -> datetime:
    """Turn unix seconds into an aware UTC time with microseconds."""
    return datetime.fromtimestamp(unix_seconds, UTC)
