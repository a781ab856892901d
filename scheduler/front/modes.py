"""The mode of one front: it asks etcd every so often whether it answers and whose it is, and judges by that.

The question is a linearizable read of two small keys: signs of life on a watch would not tell
that etcd has lost its quorum.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import structlog

from scheduler.convergence.mode import Mode, Sight, Standing, next_mode
from scheduler.domain.errors import FleetbeatError, StoreUnavailable
from scheduler.domain.event import EventType
from scheduler.settings import Settings
from scheduler.store.cache import Cache, Change
from scheduler.store.cluster import read_identity, restoring_text
from scheduler.store.decode import CorruptRecord
from scheduler.store.keys import CLUSTER, CLUSTER_ID, NODES, SPECS, STATUSES
from scheduler.store.kv import StoreRefused
from scheduler.store.store import Store

EPOCH_GAP = 1 << 32
"""More assignments than anybody can have made since this process last saw an epoch."""

_log = structlog.get_logger("scheduler.front.modes")


class NotWritable(FleetbeatError):  # noqa: N818 - reads as a sentence where it is raised
    """The control plane takes no writes now."""

    reason = "NOT_WRITABLE"


class Emit(Protocol):
    """Tells people what happened."""

    def __call__(self, kind: str, *, reason: str = "", details: Mapping[str, str] | None = None) -> None:
        """Send an event some time soon."""
        ...


class Modes:
    """The mode of one front."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        settings: Settings,
        *,
        cluster_id: str,
        front_id: str,
        now: Callable[[], datetime],
        emit: Emit,
    ) -> None:
        """Take whom to ask, what is known of the cluster, and whom to tell."""
        self._store = store
        self._cache = cache
        self._settings = settings
        self.cluster_id = cluster_id
        self._front_id = front_id
        self._now = now
        self._emit = emit
        self._standing = Standing(Mode.NORMAL)
        self.changed_at = now()
        """When the mode was last another."""
        self._seen_cluster = False
        self._cluster: str | None = ""
        self._cluster_revision = 0
        self._was_outdated = False
        self._restoring = ""
        self._answered_at = time.monotonic()
        self._answers = 0
        self._vanished = ""
        self._highest_revision = 0
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        cache.subscribe(self._take)

    @property
    def mode(self) -> Mode:
        """The mode."""
        return self._standing.mode

    @property
    def reason(self) -> str:
        """Why it is that mode; blank in normal mode."""
        return self._standing.reason

    @property
    def writable(self) -> bool:
        """Whether writes are taken."""
        return self._standing.mode is Mode.NORMAL

    @property
    def refusal(self) -> str:
        """What a caller is told whose write is refused."""
        return f"the control plane is in {self.mode} mode: {self.reason}; nothing was stored"

    @property
    def epoch_floor(self) -> int:
        """A number above every epoch that any agent of this cluster can know."""
        known = [s.record.epoch for s in self._cache.all(STATUSES).values() if s.record]
        return max(self._store.epoch_base + self._highest_revision, *known, 0) + EPOCH_GAP

    def check_writable(self) -> None:
        """Raise NotWritable unless writes are taken."""
        if not self.writable:
            raise NotWritable(self.refusal)

    def start(self) -> None:
        """Begin to look, every so often."""
        self._answered_at = time.monotonic()
        if not self._cache.freshness().synced:
            self._standing = Standing(Mode.DEGRADED, "etcd has not been read yet")
        self._task = asyncio.create_task(self._run(), name="modes")

    async def close(self) -> None:
        """Stop looking."""
        tasks = [task for task in (self._task, self._asking) if task]
        self._task = self._asking = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def look(self) -> None:
        """Ask etcd once, and judge."""
        await self._ask()
        self._judge()

    async def _run(self) -> None:
        interval = self._settings.store_probe_interval_seconds
        judged_at = time.monotonic()
        while True:
            if self._asking is None or self._asking.done():
                self._asking = asyncio.create_task(self._ask(), name="probe etcd")
            # The judgement does not wait for the answer: silence is what it is about.
            await asyncio.wait([self._asking], timeout=interval)
            # Nor is a pause of this process the silence of etcd.
            self._answered_at += max(0.0, time.monotonic() - judged_at - 2 * interval)
            self._judge()
            judged_at = time.monotonic()
            await asyncio.sleep(interval)

    async def _ask(self) -> None:
        try:
            found = await read_identity(self._store)
        except (StoreRefused, CorruptRecord) as error:
            _log.warning("etcd answers, and does not tell whose it is", error=str(error))
            self._answered()
            return
        except StoreUnavailable:
            self._answers = 0
            return
        self._answered()
        self._restoring = restoring_text(found.restoring) if found.restoring else ""
        self._cluster = found.cluster.cluster_id if found.cluster else None
        if found.cluster is None:
            return
        if self._cluster == self.cluster_id:
            self._seen_cluster = True
            self._store.epoch_base = found.cluster.epoch_base
        if found.cluster_revision != self._cluster_revision and self._cluster_revision:
            self._vanished = ""  # restored, or accepted as it is
        self._cluster_revision = found.cluster_revision
        if self._is_outdated() and self._was_outdated:
            self._cache.doubt()
        self._was_outdated = self._is_outdated()

    def _is_outdated(self) -> bool:
        if not self._seen_cluster or not self._cache.mirrors(CLUSTER):
            return False
        return self._cache.get(CLUSTER, CLUSTER_ID).mod_revision != self._cluster_revision

    def _answered(self) -> None:
        self._answered_at = time.monotonic()
        self._answers += 1

    def _judge(self) -> None:
        standing = next_mode(self.mode, self._sight(), patience_seconds=self._settings.store_patience_seconds)
        before, self._standing = self._standing, standing
        if standing.mode is before.mode:
            return
        self.changed_at = self._now()
        _log.warning("the mode has changed", before=before.mode, mode=standing.mode, reason=standing.reason)
        details = {
            "from": str(before.mode),
            "to": str(standing.mode),
            "reason": standing.reason,
            "changed_at": self.changed_at.isoformat(),
            "writable": str(self.writable).lower(),
            "front": self._front_id,
        }
        reason = standing.reason or "etcd answers and holds what it did"
        self._emit(EventType.SCHEDULER_MODE_CHANGED, reason=reason, details=details)

    def _sight(self) -> Sight:
        return Sight(
            unanswered_seconds=time.monotonic() - self._answered_at,
            answers=self._answers,
            known_id=self.cluster_id if self._seen_cluster else "",
            cluster_id=self._cluster,
            restoring=self._restoring,
            outdated=self._is_outdated(),
            vanished=self._vanished,
        )

    def _take(self, changes: Sequence[Change]) -> None:
        """Notice that all nodes and all workloads went at once, which no call of ours can do."""
        self._highest_revision = max(self._highest_revision, *(c.after.mod_revision for c in changes))
        if any(change.table is CLUSTER for change in changes):
            return  # restored, accepted or wiped: the record of the cluster tells, and is asked for
        if self._cache.all(NODES):
            return
        if self._cache.all(SPECS):
            return
        nodes = sum(c.table is NODES and c.after.record is None for c in changes)
        specs = sum(c.table is SPECS and c.after.record is None for c in changes)
        if nodes and specs:
            self._vanished = f"all nodes ({nodes}) and all workloads ({specs}) have gone from etcd at once"
