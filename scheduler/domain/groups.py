"""Sets of ids by a key: which workloads are on a node, which nodes owe a removal."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet


class Groups:
    """Sets of ids by a key; a set that becomes empty is forgotten together with its key."""

    def __init__(self) -> None:
        """Start empty."""
        self._members: dict[str, set[str]] = {}

    def add(self, key: str, member: str) -> None:
        """Put a member into the set of a key."""
        self._members.setdefault(key, set()).add(member)

    def remove(self, key: str, member: str) -> None:
        """Take a member out of the set of a key, if it is there."""
        members = self._members.get(key)
        if members is None:
            return
        members.discard(member)
        if not members:
            del self._members[key]

    def get(self, key: str) -> AbstractSet[str]:
        """Return the set of a key; it changes with what is added and removed."""
        return self._members.get(key, frozenset())

    def names(self) -> Iterator[str]:
        """Go through the keys that have members."""
        return iter(self._members)
