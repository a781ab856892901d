"""The base of every stored record: immutable, camelCase on disk, unknown fields kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
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
        """Parse stored JSON; raises pydantic.ValidationError when it does not fit.

        Fields that are null count as absent: so Go writes empty lists and maps.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            try:
                told = without_nulls(json.loads(data))
            except (ValueError, RecursionError):
                raise error from None
            return cls.model_validate(told)

    def replace(self, **changes: object) -> Self:
        """Return a copy with these fields (Python names) changed; nothing is re-validated."""
        return self.model_copy(update=changes)


def without_nulls(told: Any) -> Any:
    """Return a JSON value without the fields that are null, at any depth."""
    if isinstance(told, dict):
        return {key: without_nulls(value) for key, value in told.items() if value is not None}
    return [without_nulls(value) for value in told] if isinstance(told, list) else told


def utc(unix_seconds: float) -> datetime:
    """Turn unix seconds into an aware UTC time with microseconds."""
    return datetime.fromtimestamp(unix_seconds, UTC)
