"""Bringing a backup back into etcd, so that it can be broken off at any point and gone on with.

`/restore` is there from the first write to the last one. Meanwhile there is no cluster record and
no shard map: fronts are in recovery, no process joins, and no cycle has a fence to write
under. The last transaction puts both and takes `/restore` away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import IO

from scheduler.domain.errors import Conflict, Refused
from scheduler.domain.shard import ClusterRecord, RestoreRecord, ShardMap
from scheduler.store import keys
from scheduler.store.backup import Header, Progress, check_backup, records_in, saved_records
from scheduler.store.cluster import LAYOUT_VERSION
from scheduler.store.kv import KV, Compare, Delete, EtcdApi, Operation, Put, UnknownOutcome, mod_is
from scheduler.store.raised import Raise, raise_for, raised

BATCH_RECORDS = 100
BATCH_BYTES = 512 * 1024
"""Of one transaction; etcd takes 128 operations and 1.5 MiB."""
GENERATIONS = 1_000
"""Added to the shard map's: more reshardings than can have been since the backup."""
_TRIES = 5

_CLUSTER_KEY = keys.CLUSTER.key(keys.CLUSTER_ID)
_MAP_KEY = keys.SHARD_MAP.key(keys.SHARD_MAP_ID)
_MARK_KEY = keys.RESTORE.key(keys.RESTORE_ID)


class NotEmpty(Refused):
    """etcd holds records that a restore would replace."""


class Restore:
    """One run of a restore."""

    def __init__(self, etcd: EtcdApi, file: IO[bytes], *, now: datetime, progress: Progress = lambda _t: None) -> None:
        """Take the client and the backup."""
        self._etcd = etcd
        self._file = file
        self._now = now
        self._progress = progress
        self._mark_revision = 0

    async def run(self, *, replace: str = "") -> Header:
        """Restore the backup; go on where an earlier run of the same backup ended.

        replace: the id of the cluster that etcd holds, to confirm that all of it is to go. Raises
        BadBackup, NotEmpty, Refused, Conflict, StoreUnavailable.
        """
        header = check_backup(self._file)
        if header.layout_version != LAYOUT_VERSION:
            raise Refused(f"the backup has layout version {header.layout_version}, this version reads {LAYOUT_VERSION}")
        mark = await self._begin(header, replace)
        done = 0
        for batch in _batches(self._records(mark)):
            await self._put(batch)
            done += len(batch)
            self._progress(f"{done} of {header.records} records")
        await self._finish(mark)
        return header

    def _records(self, mark: RestoreRecord) -> Iterator[tuple[str, bytes]]:
        by = Raise(mark.shift, mark.epoch_base)
        for key, value in records_in(self._file):
            if key not in (_CLUSTER_KEY, _MAP_KEY):
                yield key, raised(key, value, by, mark.started_at)

    async def _begin(self, header: Header, replace: str) -> RestoreRecord:
        """Leave the mark, or find that of an earlier run; then everything else is gone but what that run has put."""
        found, _ = await self._etcd.get_many([_MARK_KEY, _CLUSTER_KEY, _MAP_KEY])
        standing = keys.RESTORE.model.from_json(found[_MARK_KEY].value) if _MARK_KEY in found else None
        if standing and standing.backup == header.sha256:
            self._progress("going on with a restore of this backup that was broken off")
            self._mark_revision = found[_MARK_KEY].mod_revision
            if standing.clearing:
                await self._clear()
            return await self._unmark_clearing(standing)
        there = await self._check_empty(found, replace, standing)
        by = raise_for(records_in(self._file), known=header.revision + header.epoch_base)
        mark = RestoreRecord(
            backup=header.sha256,
            cluster_id=header.cluster_id,
            epoch_base=by.base,
            shift=by.shift,
            generation=self._generation(found),
            started_at=self._now,
            clearing=there,
        )
        compares = [mod_is(key, found[key].mod_revision if key in found else 0) for key in _OURS]
        then: list[Operation] = [Put(_MARK_KEY, mark.to_json())]
        then += [Delete(key) for key in (_CLUSTER_KEY, _MAP_KEY) if key in found]
        await self._commit(compares, then, "others changed the cluster meanwhile; run the command again")
        if there:
            await self._clear()
        return await self._unmark_clearing(mark)

    async def _check_empty(self, found: dict[str, KV], replace: str, standing: RestoreRecord | None) -> bool:
        """Say whether there is anything to be cleared away. Raises NotEmpty unless that was confirmed."""
        tables, _ = await saved_records(self._etcd)
        count = sum(len(kvs) for _, kvs in tables)
        if not count and standing is None:
            return False
        held = keys.CLUSTER.model.from_json(found[_CLUSTER_KEY].value).cluster_id if _CLUSTER_KEY in found else ""
        held = held or (standing.cluster_id if standing else "")
        if replace and replace == held:
            return True
        what = f"cluster {held}" if held else "no cluster record"
        half = ", of a restore of another backup that was broken off" if standing else ""
        hint = f"; to replace all of it give --replace {held}" if held else "; empty it first"
        raise NotEmpty(f"etcd is not empty: it holds {what} and {count} records{half}{hint}")

    def _generation(self, found: dict[str, KV]) -> int:
        saved = [ShardMap.from_json(value) for key, value in records_in(self._file) if key == _MAP_KEY]
        held = [ShardMap.from_json(found[_MAP_KEY].value)] if _MAP_KEY in found else []
        return max((one.generation for one in (*saved, *held)), default=0) + GENERATIONS

    async def _clear(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._clear_once()
            except Conflict:  # what was under way when the mark was left
                await self._check_mark()
                if not tries_left:
                    raise
            else:
                return

    async def _clear_once(self) -> None:
        """Remove all records that a backup would have, and the fences of the map that is over."""
        tables, _ = await saved_records(self._etcd)
        fences, _ = await self._etcd.scan(keys.FENCES.prefix)
        gone = [kv for _, kvs in tables for kv in kvs] + [kv for kv in fences if keys.FENCES.owns(kv.key)]
        for start in range(0, len(gone), BATCH_RECORDS):
            some = gone[start : start + BATCH_RECORDS]
            compares = [self._mark_compare(), *(mod_is(kv.key, kv.mod_revision) for kv in some)]
            await self._commit(compares, [Delete(kv.key) for kv in some], "a record changed while it was cleared away")
            self._progress(f"cleared {min(start + BATCH_RECORDS, len(gone))} of {len(gone)} records")

    async def _unmark_clearing(self, mark: RestoreRecord) -> RestoreRecord:
        if mark.clearing:
            mark = mark.replace(clearing=False)
            await self._commit([self._mark_compare()], [Put(_MARK_KEY, mark.to_json())], _OTHER_RUN)
        found, _ = await self._etcd.get(_MARK_KEY)
        if found is None or keys.RESTORE.model.from_json(found.value) != mark:
            raise Conflict(_OTHER_RUN)
        self._mark_revision = found.mod_revision
        return mark

    async def _put(self, batch: Sequence[tuple[str, bytes]]) -> None:
        """Store some records that are absent; what an earlier try has stored already is right as it is."""
        for _ in range(_TRIES):
            found, _revision = await self._etcd.get_many([key for key, _ in batch])
            foreign = [key for key, value in batch if key in found and found[key].value != value]
            if foreign:
                raise Conflict(f"{foreign[0]} has got another value meanwhile: is something else writing to this etcd?")
            missing = [(key, value) for key, value in batch if key not in found]
            if not missing:
                return
            compares = [self._mark_compare(), *(mod_is(key, 0) for key, _ in missing)]
            try:
                result = await self._etcd.txn(compares, [Put(key, value) for key, value in missing])
            except UnknownOutcome:
                continue
            if result.succeeded:
                return
            await self._check_mark()
        raise Conflict("others keep writing to this etcd")

    async def _finish(self, mark: RestoreRecord) -> None:
        values = {key: value for key, value in records_in(self._file) if key in (_CLUSTER_KEY, _MAP_KEY)}
        cluster = ClusterRecord.from_json(values[_CLUSTER_KEY]).replace(
            epoch_base=mark.epoch_base, restored_at=self._now
        )
        then: list[Operation] = [Put(_CLUSTER_KEY, cluster.to_json()), Delete(_MARK_KEY)]
        if _MAP_KEY in values:
            shards = ShardMap.from_json(values[_MAP_KEY]).replace(generation=mark.generation)
            then.append(Put(_MAP_KEY, shards.to_json()))
        compares = [self._mark_compare(), mod_is(_CLUSTER_KEY, 0), mod_is(_MAP_KEY, 0)]
        try:
            await self._commit(compares, then, _OTHER_RUN)
        except UnknownOutcome:
            found, _ = await self._etcd.get(_CLUSTER_KEY)
            if found is None or found.value != cluster.to_json():
                raise

    async def _commit(self, compares: Sequence[Compare], then: Sequence[Operation], why: str) -> None:
        result = await self._etcd.txn(compares, then)
        if not result.succeeded:
            raise Conflict(why)
        if any(isinstance(one, Put) and one.key == _MARK_KEY for one in then):
            self._mark_revision = result.revision

    async def _check_mark(self) -> None:
        found, _ = await self._etcd.get(_MARK_KEY)
        if found is None or found.mod_revision != self._mark_revision:
            raise Conflict(_OTHER_RUN)

    def _mark_compare(self) -> Compare:
        return mod_is(_MARK_KEY, self._mark_revision)


_OURS = (_MARK_KEY, _CLUSTER_KEY, _MAP_KEY)
_OTHER_RUN = "another restore has taken over; wait for it, then run the command again"


def _batches(records: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for key, value in records:
        if batch and (len(batch) >= BATCH_RECORDS or size + len(value) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((key, value))
        size += len(key) + len(value)
    if batch:
        yield batch
