"""`fleetbeat events`: what has happened, and what happens."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator

import click

from scheduler.cli import show
from scheduler.cli.connect import Front, UnreachableError
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.pb import control_pb2

_REMEMBERED = 20_000
_AGAIN_SECONDS = 1.0
_COLUMNS = "{time}  {type:<20}  {about:<30}  {reason}"


@click.command("events")
@click.option("--type", "kind", default="", metavar="TYPE", help="Only events of this type, such as NodeLost.")
@click.option("--workload", "workload_id", default="", metavar="ID", help="Only events of this workload.")
@click.option("--node", "node_id", default="", metavar="ID", help="Only events of this node.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="So many at most.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@common_options
@click.pass_obj
@asynchronous
async def events(options: Options, *, kind: str, workload_id: str, node_id: str, limit: int, follow: bool) -> None:
    """Show the latest events, oldest first.

    With --follow, a front that goes away is replaced by another one, and nothing is told twice;
    -o json prints one object a line then.

    \b
    Example:
      fleetbeat events --type NodeLost
      fleetbeat events --workload web --follow
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    filters = {"type": kind, "workload_id": workload_id, "node_id": node_id}
    if not follow:
        async with Front(options) as front:
            answer = await front.read(front.control.ListEvents, control_pb2.ListEventsRequest(limit=limit, **filters))
        lines = [_line(event) for event in reversed(answer.events)]
        show.write(options.output, show.plain(answer), "\n".join(lines) or "no events")
        return
    async for event in _followed(options, control_pb2.WatchEventsRequest(**filters)):
        as_json = options.output in ("json", "yaml")
        click.echo(json.dumps(show.plain(event)) if as_json else _line(event))


async def _followed(
    options: Options, request: control_pb2.WatchEventsRequest
) -> AsyncIterator[control_pb2.SchedulerEventView]:
    """Yield each event once, over any number of connections."""
    seen: OrderedDict[str, None] = OrderedDict()
    while True:
        try:
            async with Front(options) as front:
                async for event in front.stream(front.control.WatchEvents, request, timeout_seconds=None):
                    if event.id in seen:
                        continue
                    yield event
                    if event.id:
                        seen[event.id] = None
                        request.resume_from = event.id
                    if len(seen) > _REMEMBERED:
                        seen.popitem(last=False)
        except UnreachableError as error:
            click.echo(f"{error.message}; connecting again", err=True)
        await asyncio.sleep(_AGAIN_SECONDS)


def _line(event: control_pb2.SchedulerEventView) -> str:
    about = " on ".join(filter(None, [event.workload_id, event.node_id]))
    details = " ".join(f"{key}={value}" for key, value in sorted(event.details.items()))
    reason = "; ".join(filter(None, [" ".join(event.reason.split()), details]))
    time = show.moment(event.timestamp) or "-"
    return _COLUMNS.format(time=time, type=event.type, about=about, reason=reason).rstrip()
