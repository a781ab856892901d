"""A backup: all records of a cluster at one revision, as lines of JSON in one gzip file.

The first line is the header: format, version, cluster, revision, time, how many records there
are of each kind, and the SHA-256 of all the other lines. Each of these is one record: its key, and
its value as text. What a new etcd must not have is left out: leases and what is bound to them,
elections, slots, fences, pulses, events.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import IO, Any, BinaryIO

from pydantic import ValidationError

from scheduler.domain.errors import BadBackup, NotFound
from scheduler.domain.record import Record
from scheduler.store import keys
from scheduler.store.kv import KV, Compacted, EtcdApi

FORMAT = "fleetbeat-backup"
VERSION = 1
MAX_LINE_BYTES = 4 * 1024 * 1024
"""etcd takes values up to 1.5 MiB; as JSON text they may grow."""
_ATTEMPTS = 3
_LEFT_OUT: tuple[keys.Table[Any], ...] = (
    keys.FENCES, keys.SLOTS, keys.RESTORE, keys.PULSES, keys.EVENTS, keys.RECONCILIATIONS
)  # fmt: skip

Progress = Callable[[str], None]


class Header(Record):
    """The first line of a backup."""

    format: str
    version: int
    cluster_id: str
    layout_version: int = 1
    epoch_base: int = 0
    revision: int
    taken_at: datetime
    written_by: str = ""
    records: int
    counts: dict[str, int]
    """Records by the prefix of their keys."""
    sha256: str


def saved_tables() -> list[keys.Table[Any]]:
    """Return the tables that a backup has."""
    tables = [table for table in vars(keys).values() if isinstance(table, keys.Table)]
    return [table for table in tables if table not in _LEFT_OUT]


async def saved_records(etcd: EtcdApi, *, revision: int = 0) -> tuple[list[tuple[str, list[KV]]], int]:
    """Return what a backup has of an etcd, by the prefix of the keys, and the one revision that all is of."""
    found: list[tuple[str, list[KV]]] = []
    for table in saved_tables():
        some, revision = await etcd.scan(table.scope, revision=revision)
        found.append((table.prefix + table.only, [kv for kv in some if table.owns(kv.key) and not kv.lease]))
    return found, revision


async def take_backup(
    etcd: EtcdApi, out: BinaryIO, *, now: datetime, written_by: str = "", progress: Progress = lambda _text: None
) -> Header:
    """Write a backup. Raises NotFound when etcd holds no cluster, StoreUnavailable, OSError."""
    for attempt in range(_ATTEMPTS):
        try:
            found, revision = await saved_records(etcd)
            break
        except Compacted:
            if attempt == _ATTEMPTS - 1:
                raise
            progress("etcd has compacted the revision meanwhile; reading again")
    own = next((kvs[0] for prefix, kvs in found if prefix == keys.CLUSTER.scope and kvs), None)
    if own is None:
        raise NotFound("etcd holds no cluster under this prefix; check ETCD_ENDPOINTS and FLEETBEAT_ETCD_PREFIX")
    cluster = keys.CLUSTER.model.from_json(own.value)
    counts: Counter[str] = Counter()
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as body:
        # Gzip files may be strung together: the header's goes before the body's, whose sum it carries.
        with gzip.GzipFile(fileobj=body, mode="wb", mtime=0) as lines:
            for prefix, kvs in found:
                for kv in kvs:
                    line = _line(kv)
                    digest.update(line)
                    lines.write(line)
                counts[prefix] += len(kvs)
                progress(f"{prefix}: {len(kvs)} records")
        header = Header(
            format=FORMAT,
            version=VERSION,
            cluster_id=cluster.cluster_id,
            layout_version=cluster.layout_version,
            epoch_base=cluster.epoch_base,
            revision=revision,
            taken_at=now,
            written_by=written_by,
            records=counts.total(),
            counts={prefix: count for prefix, count in counts.items() if count},
            sha256=digest.hexdigest(),
        )
        out.write(gzip.compress(header.to_json() + b"\n", mtime=0))
        body.seek(0)
        shutil.copyfileobj(body, out)
    return header


def _line(kv: KV) -> bytes:
    try:
        told = {"key": kv.key, "value": kv.value.decode()}
    except UnicodeDecodeError:
        told = {"key": kv.key, "base64": base64.b64encode(kv.value).decode()}
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"


def read_header(file: IO[bytes]) -> Header:
    """Read and check the header of a backup. Raises BadBackup."""
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as lines:
            return _header(lines.readline(MAX_LINE_BYTES))
    except (OSError, EOFError) as error:
        raise BadBackup(f"this is no backup, or it is damaged: {error}") from error


def _header(line: bytes) -> Header:
    try:
        told = json.loads(line)
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise BadBackup(f"this is no backup: its first line does not say {FORMAT}")
        if told.get("version") != VERSION:
            raise BadBackup(f"the backup has version {told.get('version')}, this version of fleetbeat reads {VERSION}")
        return Header.model_validate(told)
    except (ValueError, ValidationError) as error:
        raise BadBackup(f"the header of the backup cannot be read: {error}") from error


def records_in(file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield keys and values of a backup, in its order; at the end its sums are checked. Raises BadBackup."""
    file.seek(0)
    digest, count = hashlib.sha256(), 0
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as lines:
            header = _header(lines.readline(MAX_LINE_BYTES))
            while line := lines.readline(MAX_LINE_BYTES):
                digest.update(line)
                count += 1
                yield _record(line, count)
    except (OSError, EOFError) as error:
        raise BadBackup(f"the backup is damaged after {count} records: {error}") from error
    if count != header.records or digest.hexdigest() != header.sha256:
        raise BadBackup(f"the backup is damaged: {count} records of {header.records}, or their checksum is another")


def _record(line: bytes, number: int) -> tuple[str, bytes]:
    try:
        told = json.loads(line.decode("utf-8", "surrogatepass"))
        key = told["key"]
        value = told["value"].encode() if "value" in told else base64.b64decode(told["base64"], validate=True)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadBackup(f"record {number} of the backup cannot be read") from error
    if not isinstance(key, str) or not key.startswith("/"):
        raise BadBackup(f"record {number} of the backup has no key")
    return key, value


def check_backup(file: IO[bytes]) -> Header:
    """Read a whole backup and check its sums. Raises BadBackup."""
    for _ in records_in(file):
        pass
    return read_header(file)
