"""`fleetbeat restore`: the state of a cluster back from a backup."""

from __future__ import annotations

import pathlib
from datetime import UTC, datetime

import click

from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.store_access import etcd_of
from scheduler.domain.errors import BadBackup
from scheduler.store.backup import check_backup
from scheduler.store.restore import Restore

_EXCLUSIVE_HINT = (
    "note: exclusive work that has moved since the backup may run twice, unless the fronts were stopped for its "
    "stop_after first; see docs/how-to/backup-and-restore.md"
)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=pathlib.Path), metavar="FILE")
@click.option(
    "--replace", default="", metavar="CLUSTER", help="Replace what etcd holds: the id of that cluster, to confirm it."
)
@click.option("--validate-only", is_flag=True, help="Check the file, and touch nothing.")
@click.option("--quiet", "-q", is_flag=True, help="Do not tell how far it is.")
@common_options
@click.pass_obj
@asynchronous
async def restore(options: Options, *, file: pathlib.Path, replace: str, validate_only: bool, quiet: bool) -> None:
    """Bring the records of a backup back into an empty etcd.

    Until it is complete all fronts refuse writes and no cycle runs. When it was broken off, run the
    same command again: it goes on. What nodes run meanwhile they keep running, as far as it is
    what the backup wants of them.

    \b
    Examples:
      fleetbeat restore fleet.backup.gz
      fleetbeat restore fleet.backup.gz --replace 5f0c2d…
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    with file.open("rb") as opened:
        try:
            header = check_backup(opened)
        except BadBackup as error:
            raise CommandError(str(error)) from None
        if validate_only:
            done = "can be restored"
        else:
            say(_EXCLUSIVE_HINT)
            async with etcd_of(options) as etcd:
                await Restore(etcd, opened, now=datetime.now(UTC), progress=say).run(replace=replace)
            done = "are restored"
    taken = header.taken_at.isoformat(timespec="seconds")
    click.echo(f"cluster {header.cluster_id}: {header.records} records of {taken} {done}")
