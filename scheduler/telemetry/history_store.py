"""The last outcome of each workload in etcd, for as long as Redis is away: bounded by a lease, written in batches."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.domain.reconciliation import Outcome, Reconciliation
from scheduler.store.keys import RECONCILIATIONS
from scheduler.store.kv import EtcdApi
from scheduler.store.lease import RollingLease
from scheduler.store.store import Store
from scheduler.store.write import Ref, View, Write
from scheduler.telemetry.event_store import MAX_TTL_SECONDS, MOST_OF_A_LEASE


class HistoryStore:
    """Writes and reads those outcomes. For one event loop."""

    def __init__(self, etcd: EtcdApi, store: Store, *, ttl_seconds: float) -> None:
        """Take how long an outcome is kept."""
        self._store = store
        self._lease = RollingLease(etcd, max(1, round(min(ttl_seconds, MAX_TTL_SECONDS))), MOST_OF_A_LEASE)

    async def write(self, outcomes: Sequence[Outcome]) -> None:
        """Write the last of these outcomes for each workload, STORE_BATCH at most. Raises StoreUnavailable, Conflict.

        A later one that is there is left as it is; a workload that is gone leaves none.
        """
        last = {one.record.workload_id: one for one in outcomes}
        leases = {w: 0 if one.is_end else await self._lease.take() for w, one in last.items()}

        def decide(view: View) -> Write[None]:
            write: Write[None] = Write(None)
            for workload_id, outcome in last.items():
                known = view.get(RECONCILIATIONS, workload_id).record
                if outcome.is_end and known is not None:
                    write.delete(RECONCILIATIONS, workload_id)
                elif leases[workload_id] and _replaces(outcome, known):
                    write.put(RECONCILIATIONS, workload_id, outcome.record, lease=leases[workload_id])
            return write

        try:
            await self._store.transact([Ref(RECONCILIATIONS, workload_id) for workload_id in last], decide)
        except Exception:
            for lease in set(leases.values()):  # etcd may have lost it; another one costs a call
                self._lease.forget(lease)
            raise


def _replaces(outcome: Outcome, known: Reconciliation | None) -> bool:
    is_later = known is None or known.attempted_at <= outcome.record.attempted_at
    return is_later and outcome.is_news_after(known)
