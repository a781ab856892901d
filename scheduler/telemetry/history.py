"""What came of looks at workloads, in Redis; while it does not answer, the last outcome of each in etcd.

Redis holds the last outcome of a workload under `reconciliation:{id}`, as the reference system
does, and all of them in the stream `scheduler:reconciliations`: no id can name that key, whatever
a workload is called. Only news is sent: that the same thing fails again in the same way is not.
"""

from __future__ import annotations

import pathlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from redis.asyncio import Redis

from scheduler.domain.reconciliation import MAX_REASON, Outcome, Reconciliation
from scheduler.store.cache import Change
from scheduler.store.keys import SPECS
from scheduler.telemetry.history_store import HistoryStore
from scheduler.telemetry.outbox import BUFFER, Outbox
from scheduler.telemetry.redis import answers, configured

STREAM = "scheduler:reconciliations"
FIELD = "data"
REMEMBERED = 50_000
"""Workloads whose last outcome a process remembers; of one more, a repeat is sent, and Redis drops it."""
_SCRIPT = pathlib.Path(__file__).with_name("history.lua").read_text(encoding="utf-8")


def key_of(workload_id: str) -> str:
    """Return the key of a workload's last outcome."""
    return f"reconciliation:{workload_id}"


class History(Outbox[Outcome]):
    """Sends outcomes from one process. Use it from one event loop."""

    what = "outcomes of reconciling"
    gather_seconds = 0.1

    def __init__(
        self,
        redis: Redis | None,
        *,
        max_entries: int,
        ttl_seconds: float,
        buffer: int = BUFFER,
        on_drop: Callable[[], None] = lambda: None,
        store: HistoryStore | None = None,
    ) -> None:
        """Take the connection, the bounds of what is kept, and what to call for each dropped outcome.

        redis, store: None when there is none; without both nothing is sent.
        """
        super().__init__(redis, has_store=store is not None, buffer=buffer, on_drop=on_drop)
        self._store = store
        self._max_entries = max_entries
        self._ttl = max(1, round(ttl_seconds))
        self._last: OrderedDict[str, Reconciliation] = OrderedDict()

    def record(self, workload_id: str, action: str, *, success: bool, reason: str = "", anew: bool = False) -> None:
        """Have an outcome kept if it is news. Returns at once.

        anew: something was done, so it is news even if the outcome before says the same.
        """
        if self._goes_nowhere:
            return
        outcome = Outcome(
            Reconciliation(
                workload_id=workload_id,
                action=action,
                success=success,
                reason=reason[:MAX_REASON],
                attempted_at=datetime.now(UTC),
            ),
            anew,
        )
        if outcome.is_news_after(self._last.get(workload_id)):
            self._remember(outcome)
            self._put(outcome)

    def forget_gone(self, changes: Sequence[Change]) -> None:
        """Forget workloads that are gone, whoever removed them: another one of that name has a story of its own."""
        for change in changes:
            if change.table is SPECS and change.after.record is None:
                self._last.pop(change.id, None)

    def _remember(self, outcome: Outcome) -> None:
        workload_id = outcome.record.workload_id
        self._last.pop(workload_id, None)
        if not outcome.is_end:
            self._last[workload_id] = outcome.record
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)

    async def _to_redis(self, batch: Sequence[Outcome]) -> None:
        keys = [STREAM, *(key_of(one.record.workload_id) for one in batch)]
        words = [word for one in batch for word in (one.record.to_json(), _kind(one))]
        with answers():
            await configured(self._redis).eval(_SCRIPT, len(keys), *keys, self._ttl, self._max_entries, *words)

    async def _to_etcd(self, batch: Sequence[Outcome]) -> None:
        if self._store is not None:
            await self._store.write(batch)


def _kind(outcome: Outcome) -> str:
    if outcome.is_end:
        return "end"
    return "anew" if outcome.anew else "said"
