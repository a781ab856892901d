"""`fleetbeat backup`: the whole state of a cluster into one file."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from typing import BinaryIO

import click

from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.store_access import etcd_of
from scheduler.store.backup import take_backup


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=pathlib.Path, allow_dash=True), metavar="FILE")
@click.option("--quiet", "-q", is_flag=True, help="Do not tell how far it is.")
@common_options
@click.pass_obj
@asynchronous
async def backup(options: Options, *, file: pathlib.Path, quiet: bool) -> None:
    """Write all records of the cluster, as of one moment, to FILE; `-` is the standard output.

    It reads etcd itself, as a front does: ETCD_ENDPOINTS and the other settings of etcd say where.
    Nothing needs to be stopped. The file holds specs with their environment: keep it as safe as
    etcd. It appears complete or not at all.

    \b
    Examples:
      fleetbeat backup fleet.backup.gz
      ETCD_ENDPOINTS=etcd-1:2379 fleetbeat backup - | age -r KEY > fleet.age
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    async with etcd_of(options) as etcd:
        with _output(file) as out:
            header = await take_backup(
                etcd, out, now=datetime.now(UTC), written_by=f"fleetbeat {version('fleetbeat')}", progress=say
            )
    click.echo(f"cluster {header.cluster_id} at revision {header.revision}: {header.records} records", err=True)


@contextlib.contextmanager
def _output(file: pathlib.Path) -> Iterator[BinaryIO]:
    """Give a file that only its owner can read, and that takes its name when it is complete."""
    if str(file) == "-":
        if sys.stdout.isatty():
            raise CommandError("a backup is no text for a terminal; give a file, or pipe it")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    unfinished = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        try:
            yield out
            out.flush()
            os.fsync(out.fileno())
            unfinished.replace(file)
        finally:
            unfinished.unlink(missing_ok=True)
