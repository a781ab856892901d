"""Events in etcd, for as long as Redis is away: few, bounded in number and by a lease, written in batches."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.domain.event import Event
from scheduler.store.cache import Cache
from scheduler.store.keys import EVENTS
from scheduler.store.kv import EtcdApi
from scheduler.store.lease import RollingLease
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write
from scheduler.telemetry.outbox import STORE_BATCH

MAX_TTL_SECONDS = 86_400
MOST_OF_A_LEASE = 100_000
"""Events that one process may write under one lease, which is an eighth of the time to live; it drops the rest."""


def key_of(event: Event) -> str:
    """Return the id of an event in its table: its day, so that keys are in order of time, and its own id."""
    return f"{event.timestamp:%Y-%m-%d}/{event.id}"


class EventStore:
    """Writes and reads those events. For one event loop."""

    def __init__(self, etcd: EtcdApi, store: Store, cache: Cache, *, max_entries: int, ttl_seconds: float) -> None:
        """Take a cache that mirrors EVENTS, how many events there may be, and how long they are kept."""
        self._store = store
        self._cache = cache
        self._most = max_entries
        self._lease = RollingLease(etcd, max(1, round(min(ttl_seconds, MAX_TTL_SECONDS))), MOST_OF_A_LEASE)

    async def write(self, events: Sequence[Event]) -> None:
        """Write at most STORE_BATCH events; those that are there are left as they are. Raises StoreUnavailable.

        When there are too many in all, the oldest go.
        """
        known = sorted(self._cache.all(EVENTS))
        old = known[: max(0, len(known) + len(events) - self._most)][:STORE_BATCH]
        leases = {key_of(event): await self._lease.take() for event in events}

        def decide(view: View) -> Write[None]:
            write: Write[None] = Write(None)
            for event in events:
                key = key_of(event)
                if leases[key] and view.get(EVENTS, key).record is None:
                    write.put(EVENTS, key, event, lease=leases[key])
            for key in old:
                if view.get(EVENTS, key).record is not None:
                    write.delete(EVENTS, key)
            return write

        try:
            await self._store.transact([Ref(EVENTS, key) for key in (*leases, *old)], decide)
        except Exception:
            for lease in set(leases.values()):  # etcd may have lost it; another one costs a call
                self._lease.forget(lease)
            raise

    def all(self) -> list[Event]:
        """Return those that are known here, oldest first."""
        known = self._cache.all(EVENTS)
        return [record for key in sorted(known) if (record := known[key].record)]
