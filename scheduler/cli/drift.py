"""`fleetbeat drift`: where nodes differ from the records."""

from __future__ import annotations

import click

from scheduler.cli import show
from scheduler.cli.connect import Front, pages
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.cli.workload import warn_when_stale
from scheduler.pb import fleetbeat_pb2

_COLUMNS = ("NODE", "WORKLOAD", "TYPE", "ACTION", "AGENT SAYS", "SEEN", "AGE", "ERROR")


@click.group()
@common_options
def drift() -> None:
    """Show where nodes differ from the records."""


@drift.command("list")
@click.option("--node", "node_id", default="", metavar="ID", help="Only findings on this node.")
@click.option("--workload", "workload_id", default="", metavar="ID", help="Only findings about this workload.")
@common_options
@click.pass_obj
@asynchronous
async def list_drifts(options: Options, *, node_id: str, workload_id: str) -> None:
    """List the open findings: copies on nodes that no record speaks of.

    They are kept, unless FLEETBEAT_DRIFT_ORPHAN_POLICY says otherwise.

    \b
    Example:
      fleetbeat drift list --node n-7
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.ListDriftsRequest(node_id=node_id, workload_id=workload_id)
    found, stale = [], False
    async with Front(options) as front:
        async for page in pages(front, front.fleet.ListDrifts, request):
            found += page.drifts
            stale = stale or page.stale
    warn_when_stale(stale)
    data = {"drifts": [show.plain(one) for one in found], "stale": stale}
    show.write(options.output, data, show.Table(_COLUMNS, [_row(one) for one in found]))


def _row(one: fleetbeat_pb2.Drift) -> list[str]:
    seen, age = str(one.sightings), show.age(one.detected_at)
    return [one.node_id, one.workload_id, one.type, one.action, one.agent_status, seen, age, one.last_error]
