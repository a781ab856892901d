"""Watches a cluster from outside: etcd's revisions, and the processes that workloads are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable

import psutil

from scheduler.store.etcd import Etcd
from tests.chaos.history import History
from tests.support.work import Work

_PREFIXES = ("/nodes/", "/allocations/", "/workloads-spec/", "/workloads-status/", "/shards/")
_SAMPLE_SECONDS = 0.25


class Recorder:
    """Two threads: one follows etcd from its first revision on, one looks at processes."""

    def __init__(self, history: History, etcd_address: str, work: Work) -> None:
        """Take what to write to and what to look at."""
        self._history = history
        self._address = etcd_address
        self._work = work
        self._stop = threading.Event()
        self._threads = [self._thread(self._follow_etcd), self._thread(self._sample)]
        self.failures: list[BaseException] = []
        self.revision = 0

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both threads. Raises what went wrong in them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _thread(self, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - told by close
                self.failures.append(error)

        return threading.Thread(target=guarded, name=work.__name__, daemon=True)

    def _follow_etcd(self) -> None:
        asyncio.run(self._watch())

    async def _watch(self) -> None:
        etcd = Etcd([self._address])
        following = asyncio.create_task(self._take_batches(etcd))
        try:
            while not self._stop.is_set() and not following.done():
                await asyncio.sleep(_SAMPLE_SECONDS)
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            await etcd.close()

    async def _take_batches(self, etcd: Etcd) -> None:
        async for batch in etcd.watch(_PREFIXES, 1):
            changes = [(event.key, json.loads(event.value) if event.value else None) for event in batch.events]
            if changes:
                self._history.add("store", revision=batch.revision, changes=changes)
            self.revision = batch.revision

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self.sample()

    def sample(self) -> None:
        """Write down which processes the workloads are now."""
        found = self._work.processes()
        self._history.add("copies", copies={name: alive(copies) for name, copies in found.items()})


def alive(copies: list[psutil.Process]) -> list[int]:
    """Return the pids of those that live at one and the same moment.

    A list of processes is read one after the other: a copy may have ended before the next one
    was started, and both be in the list. So those seen first are looked at again.
    """
    if len(copies) == 1:
        return [copies[0].pid]
    return [one.pid for one in copies if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
