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
    """Show where nodes differ from the records, and remove what nobody knows."""


@drift.command("list")
@click.option("--node", "node_id", default="", metavar="ID", help="Only findings on this node.")
@click.option("--workload", "workload_id", default="", metavar="ID", help="Only findings about this workload.")
@click.option("--type", "kind", default="", metavar="TYPE", help="Only findings of this type, as orphan_on_agent.")
@common_options
@click.pass_obj
@asynchronous
async def list_drifts(options: Options, *, node_id: str, workload_id: str, kind: str) -> None:
    """List the open findings: copies on nodes that no record speaks of.

    They are kept, unless FLEETBEAT_DRIFT_ORPHAN_POLICY says otherwise.

    \b
    Example:
      fleetbeat drift list --node n-7
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.ListDriftsRequest(node_id=node_id, workload_id=workload_id, type=kind)
    found, stale = [], False
    async with Front(options) as front:
        async for page in pages(front, front.fleet.ListDrifts, request):
            found += page.drifts
            stale = stale or page.stale
    warn_when_stale(stale)
    data = {"drifts": [show.plain(one) for one in found], "stale": stale}
    show.write(options.output, data, show.Table(_COLUMNS, [_row(one) for one in found]))


@drift.command("delete")
@click.argument("node_id", metavar="NODE")
@click.argument("workload_id", metavar="WORKLOAD")
@click.option("--reason", default="", metavar="TEXT", help="Who wants it, and why; it is shown in the event.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@click.pass_obj
@asynchronous
async def delete_unknown(options: Options, *, node_id: str, workload_id: str, reason: str, yes: bool) -> None:
    """Remove a copy that no record speaks of from its node, with its data.

    Only what `fleetbeat drift list` shows, and only while there is no workload of that name.

    \b
    Example:
      fleetbeat drift delete n-7 old-web --reason 'left by the test of last week'
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    if not yes:
        click.confirm(f"Remove the copy of {workload_id} from node {node_id}, with its data?", abort=True, err=True)
    request = fleetbeat_pb2.DeleteUnknownRequest(node_id=node_id, workload_id=workload_id, reason=reason)
    async with Front(options) as front:
        answer = await front.write(front.fleet.DeleteUnknown, request)
    show.write(options.output, show.plain(answer), f"{workload_id} is removed from {node_id}")


def _row(one: fleetbeat_pb2.Drift) -> list[str]:
    seen, age = str(one.sightings), show.age(one.detected_at)
    return [one.node_id, one.workload_id, one.type, one.action, one.agent_status, seen, age, one.last_error]
