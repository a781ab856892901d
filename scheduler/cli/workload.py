"""`fleetbeat workload`: the commands that read. Those that change something are in workload_changes.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from scheduler.cli import show
from scheduler.cli.connect import CALL_SECONDS, Front, pages
from scheduler.cli.follow import reason_of
from scheduler.cli.lazy import Lazy, LazyGroup
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.cli.sizes import converted, size_in
from scheduler.pb import control_pb2, fleetbeat_pb2

_MOST_LOG_BYTES = 1024 * 1024
_HERE = "scheduler.cli.workload"
_CHANGES = "scheduler.cli.workload_changes"
_COMMANDS = {
    "ls": Lazy(f"{_HERE}:ls", "List workloads."),
    "show": Lazy(f"{_HERE}:show_workload", "Show a workload."),
    "explain": Lazy(f"{_HERE}:explain", "Say why a workload is where it is, or nowhere."),
    "history": Lazy(f"{_HERE}:history", "Show what was done about a workload."),
    "logs": Lazy(f"{_HERE}:logs", "Print the last output of a workload."),
    "retry": Lazy(f"{_CHANGES}:retry", "Try failed workloads again at once."),
    "delete": Lazy(f"{_CHANGES}:delete", "Stop and remove workloads."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
@common_options
def workload() -> None:
    """List, show, explain, retry and delete workloads; read their history and logs."""


def warn_when_stale(stale: bool) -> None:
    """Say so when an answer may be old."""
    if stale:
        show.say("note: answered from a cache while etcd is away; this may be old")


def workload_table(workloads: Sequence[control_pb2.WorkloadView]) -> show.Table:
    """Return one row a workload."""
    columns = ("ID", "TYPE", "DESIRED", "STATUS", "NODE", "RETRIES", "AGE", "REASON")
    return show.Table(columns, [_row(w) for w in workloads])


def _row(w: control_pb2.WorkloadView) -> list[str]:
    retries = f"{w.retry_attempts}/{w.retry_max_attempts}" if w.retry_attempts else ""
    running = w.status.startswith("Running")
    reason = "" if running else reason_of(w)
    return [
        w.workload_id,
        w.type,
        w.desired_state,
        w.status,
        w.assigned_node_id,
        retries,
        show.age(w.created_at),
        reason,
    ]


@click.command()
@click.option("--node", "node_id", default="", metavar="ID", help="Only workloads assigned to this node.")
@click.option("--status", default="", metavar="STATUS", help="Only workloads in this state: Running, Pending, …")
@common_options
@click.pass_obj
@asynchronous
async def ls(options: Options, node_id: str, status: str) -> None:
    """List workloads, ordered by id.

    \b
    Examples:
      fleetbeat workload ls --node n-1
      fleetbeat workload ls --status Pending -o json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    found: list[control_pb2.WorkloadView] = []
    stale = False
    request = fleetbeat_pb2.ListWorkloadsRequest(node_id=node_id, status=status)
    async with Front(options) as front:
        async for page in pages(front, front.fleet.ListWorkloads, request):
            found += page.workloads
            stale = stale or page.stale
    warn_when_stale(stale)
    show.write(options.output, {"workloads": [show.plain(w) for w in found], "stale": stale}, workload_table(found))


@click.command("show")
@click.argument("workload_id", metavar="ID")
@common_options
@click.pass_obj
@asynchronous
async def show_workload(options: Options, workload_id: str) -> None:
    """Show a workload.

    \b
    Example:
      fleetbeat workload show web
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        request = control_pb2.GetWorkloadRequest(workload_id=workload_id)
        response = await front.read(front.control.GetWorkload, request)
    show.write(options.output, {"workload": show.plain(response.workload)}, _described(response.workload))


def _described(w: control_pb2.WorkloadView) -> str:
    retry_at = f", next at {w.retry_next_at.ToJsonString()}" if w.retry_next_at.seconds else ""
    usage = f"{w.usage.cpu_percent:.1f}% CPU, {w.usage.memory_bytes // 1024**2} MB" if w.HasField("usage") else ""
    return show.pairs(
        [
            ("id", w.workload_id),
            ("type", w.type),
            ("desired", w.desired_state),
            ("status", w.status),
            ("node", w.assigned_node_id),
            ("copies", _copies(w)),
            ("copy of", w.replica_of),
            ("pending", w.pending_reason),
            ("failure", w.failure_reason),
            ("reason", ": ".join(filter(None, [w.reason.code, w.reason.message]))),
            ("retries", f"{w.retry_attempts} of {w.retry_max_attempts}{retry_at}" if w.retry_attempts else ""),
            ("usage", usage),
            ("revision", w.revision_id + (f" (generation {w.generation})" if w.generation else "")),
            ("epoch", str(w.assignment_epoch or "")),
            ("created", f"{show.age(w.created_at)} ago" if w.created_at.seconds else ""),
            ("updated", f"{show.age(w.last_updated)} ago" if w.last_updated.seconds else ""),
        ]
    )


def _copies(w: control_pb2.WorkloadView) -> str:
    """Say how many copies run of how many; blank for a workload of one."""
    if max(w.replicas, w.replicas_present) <= 1:
        return ""
    gone = w.replicas_present - w.replicas
    updated = f", {w.replicas_updated} have this version" if 0 < w.replicas_updated < w.replicas else ""
    return f"{w.replicas_running} of {w.replicas} run{updated}" + (f", {gone} more being removed" if gone > 0 else "")


@click.command()
@click.argument("workload_id", metavar="ID")
@common_options
@click.pass_obj
@asynchronous
async def explain(options: Options, workload_id: str) -> None:
    """Say why a workload is where it is, or why it is nowhere.

    Each node is counted once, by the first filter that it fails.

    \b
    Example:
      fleetbeat workload explain web
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        request = fleetbeat_pb2.ExplainWorkloadRequest(workload_id=workload_id)
        answer = await front.read(front.fleet.ExplainWorkload, request)
    parts: list[show.Table | str] = [f"{answer.workload_id}: {answer.status}: {answer.summary}"]
    if answer.rejections:
        rows = [(r.filter, str(r.nodes), r.example) for r in answer.rejections]
        parts += ["", show.Table(("FILTER", "NODES", "EXAMPLE"), rows)]
    if answer.HasField("nearest"):
        parts += ["", f"nearest: {answer.nearest.node_id} {answer.nearest.missing}"]
    show.write(options.output, show.plain(answer), *parts)


@click.command()
@click.argument("workload_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 1_000), default=50, show_default=True, help="So many at most.")
@common_options
@click.pass_obj
@asynchronous
async def history(options: Options, workload_id: str, limit: int) -> None:
    """Show what the control plane did about a workload, newest first.

    Also of one that is gone. A try that failed again in the same way without a new order is told once.

    \b
    Example:
      fleetbeat workload history web --limit 10
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        request = fleetbeat_pb2.GetWorkloadHistoryRequest(workload_id=workload_id, limit=limit)
        answer = await front.read(front.fleet.GetWorkloadHistory, request)
    if answer.partial:
        show.say("note: Redis, which keeps the history, does not answer; this is at most the last outcome")
    rows = [(show.moment(one.attempted_at), one.action, _result(one), one.reason) for one in answer.outcomes]
    table = show.Table(("TIME", "ACTION", "RESULT", "REASON"), rows)
    show.write(options.output, show.plain(answer), table if rows else "nothing is kept of it")


def _result(one: fleetbeat_pb2.ReconcileOutcome) -> str:
    return "ok" if one.success else "failed"


@click.command()
@click.argument("workload_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until Ctrl-C.")
@click.option(
    "--tail",
    default="64K",
    show_default=True,
    metavar="SIZE",
    callback=converted(lambda text: size_in(text, "", "", _MOST_LOG_BYTES)),
    help="At most this much of the end; up to 1M.",
)
@common_options
@click.pass_obj
@asynchronous
async def logs(options: Options, workload_id: str, follow: bool, tail: int) -> None:
    """Print the last output of a workload, read from its node, as it was written.

    \b
    Examples:
      fleetbeat workload logs web --tail 4K
      fleetbeat workload logs -f web
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.ReadWorkloadLogsRequest(workload_id=workload_id, tail_bytes=tail, follow=follow)
    async with Front(options) as front:
        seconds = None if follow else CALL_SECONDS
        async for chunk in front.stream(front.fleet.ReadWorkloadLogs, request, timeout_seconds=seconds):
            sys.stdout.buffer.write(chunk.data)
            sys.stdout.buffer.flush()
