"""`fleetbeat audit`: what is committed on nodes for nobody, and what of workloads' records is not ours."""

from __future__ import annotations

import click

from scheduler.cli import show
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.cli.store_access import etcd_of
from scheduler.store.audit import find_charges, release
from scheduler.store.store import Store
from scheduler.store.takeover import find_foreign
from scheduler.store.volumes import find_dangling

_COLUMNS = ("NODE", "HOLDER", "WHAT", "WHY", "RELEASED")


@click.command()
@click.option("--release", "releases", is_flag=True, help="Release what is committed for nobody.")
@common_options
@click.pass_obj
@asynchronous
async def audit(options: Options, *, releases: bool) -> None:
    """Find what is committed on nodes for nobody, attachments of volumes that no copy uses, and foreign records.

    It reads etcd itself, as `backup` does. Attachments are only shown, and so are records of workloads that
    cannot be read or are not taken over from another scheduler yet. --release looks again in each
    transaction, so it may run at any time.

    \b
    Example:
      fleetbeat audit --release
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with etcd_of(options) as etcd:
        store = Store(etcd)
        found = [(charge, releases and await release(store, charge)) for charge in await find_charges(store)]
        dangling = await find_dangling(store)
        foreign = await find_foreign(store)
    rows = [(c.node_id, c.holder, "commitment", c.why, "yes" if done else "no") for c, done in found]
    rows += [(d.node_id, d.workload_id, f"volume {d.volume_id}", d.why, "no") for d in dangling]
    rows += [("", f.workload_id, f"record {f.key}", f.why, "no") for f in foreign]
    data = [dict(zip(("node_id", "holder", "what", "why", "released"), row, strict=True)) for row in rows]
    show.write(options.output, {"findings": data}, show.Table(_COLUMNS, rows))
