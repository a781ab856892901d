"""`fleetbeat node`."""

from __future__ import annotations

import click

from scheduler.cli import show
from scheduler.cli.connect import Front, pages
from scheduler.cli.lazy import Lazy, LazyGroup
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.cli.workload import warn_when_stale, workload_table
from scheduler.pb import control_pb2, fleetbeat_pb2

_HERE = "scheduler.cli.node"
_CHANGES = "scheduler.cli.node_changes"
_COMMANDS = {
    "ls": Lazy(f"{_HERE}:ls", "List nodes."),
    "show": Lazy(f"{_HERE}:show_node", "Show a node and what runs on it."),
    "drain": Lazy("scheduler.cli.drain:drain", "Move all work off a node."),
    "undrain": Lazy("scheduler.cli.drain:undrain", "End the drain of a node."),
    "cordon": Lazy(f"{_CHANGES}:cordon", "Keep new work away from a node."),
    "uncordon": Lazy(f"{_CHANGES}:uncordon", "Let a node take new work again."),
    "taint": Lazy(f"{_CHANGES}:taint", "Keep work off a node unless it tolerates it."),
    "untaint": Lazy(f"{_CHANGES}:untaint", "Take a taint off a node."),
    "label": Lazy(f"{_CHANGES}:label", "Label a node."),
    "unlabel": Lazy(f"{_CHANGES}:unlabel", "Take a label off a node."),
    "fence": Lazy("scheduler.cli.fence:fence", "Confirm that a node is off."),
    "remove": Lazy(f"{_CHANGES}:remove", "Forget a node that will not come back."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
@common_options
def node() -> None:
    """List, show, drain, cordon, taint, label, fence and remove nodes."""


@click.command()
@click.option(
    "--status", default="", metavar="STATUS", help="Only nodes that are Ready, NotReady, Draining or Drained."
)
@common_options
@click.pass_obj
@asynchronous
async def ls(options: Options, status: str) -> None:
    """List nodes, ordered by id.

    \b
    Examples:
      fleetbeat node ls
      fleetbeat node ls --status NotReady -o json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    nodes: list[control_pb2.NodeView] = []
    stale = False
    async with Front(options) as front:
        async for page in pages(front, front.fleet.ListNodes, fleetbeat_pb2.ListNodesRequest(status=status)):
            nodes += page.nodes
            stale = stale or page.stale
    warn_when_stale(stale)
    data = {"nodes": [show.plain(n) for n in nodes], "stale": stale}
    columns = ("ID", "STATUS", "CPU", "MEMORY MB", "DISK GB", "WORKLOADS", "SHARD", "HEARD", "ENDPOINT")
    show.write(options.output, data, show.Table(columns, [_row(n) for n in nodes]))


def _row(n: control_pb2.NodeView) -> list[str]:
    return [
        n.node_id,
        n.status + (" (cordoned)" if n.cordoned else ""),
        f"{n.allocated_cpu_cores:g}/{n.total_cpu_cores:g}",
        f"{n.allocated_memory_mb}/{n.total_memory_mb}",
        f"{n.allocated_disk_gb}/{n.total_disk_gb:g}" if n.total_disk_gb else "",
        str(n.workload_count),
        str(n.shard),
        show.age(n.last_heartbeat),
        n.grpc_endpoint,
    ]


@click.command("show")
@click.argument("node_id", metavar="ID")
@common_options
@click.pass_obj
@asynchronous
async def show_node(options: Options, node_id: str) -> None:
    """Show a node and what runs on it.

    \b
    Example:
      fleetbeat node show n-1
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    workloads: list[control_pb2.WorkloadView] = []
    async with Front(options) as front:
        response = await front.read(front.control.GetNode, control_pb2.GetNodeRequest(node_id=node_id))
        request = fleetbeat_pb2.ListWorkloadsRequest(node_id=node_id)
        async for page in pages(front, front.fleet.ListWorkloads, request):
            workloads += page.workloads
    data = {"node": show.plain(response.node), "workloads": [show.plain(w) for w in workloads]}
    parts: list[show.Table | str] = [_described(response.node)]
    if workloads:
        parts += ["", workload_table(workloads)]
    show.write(options.output, data, *parts)


def _described(n: control_pb2.NodeView) -> str:
    changed = show.age(n.status_updated_at)
    taints = (f"{t.key}{'=' if t.value else ''}{t.value}:{t.effect}" for t in n.taints)
    return show.pairs(
        [
            ("id", n.node_id),
            ("status", n.status + (f", for {changed}" if changed else "")),
            ("reason", n.status_reason + (f" (by {n.status_updated_by})" if n.status_updated_by else "")),
            ("schedulable", "yes" if n.schedulable else "no" + (", cordoned" if n.cordoned else "")),
            ("drain", n.drain),
            ("heard", f"{show.age(n.last_heartbeat)} ago" if n.last_heartbeat.seconds else "never"),
            ("endpoint", n.grpc_endpoint),
            ("agent", n.agent_version),
            ("shard", str(n.shard)),
            ("cpu", f"{n.allocated_cpu_cores:g} of {n.total_cpu_cores:g} cores committed"),
            ("memory", f"{n.allocated_memory_mb} of {n.total_memory_mb} MB committed"),
            ("disk", f"{n.allocated_disk_gb} of {n.total_disk_gb:g} GB committed" if n.total_disk_gb else ""),
            ("workloads", str(n.workload_count)),
            ("types", ", ".join(n.supported_workload_types)),
            ("labels", "\n".join(f"{k}={n.labels[k]}" for k in sorted(n.labels))),
            ("taints", "\n".join(taints)),
        ]
    )
