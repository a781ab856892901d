"""`fleetbeat status` and `fleetbeat summary`."""

from __future__ import annotations

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.cli.workload import warn_when_stale
from scheduler.pb import control_pb2, fleetbeat_pb2


@click.command()
@common_options
@click.pass_obj
@asynchronous
async def status(options: Options) -> None:
    """Show the control plane: leader, shards, when each cycle last ended, fronts, counts.

    Exit code 1 when no front can be reached.

    \b
    Examples:
      fleetbeat status
      fleetbeat status --server front-1:8085 -o json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        answer = await front.read(front.fleet.GetClusterStatus, fleetbeat_pb2.GetClusterStatusRequest())
    warn_when_stale(answer.stale)
    parts: list[show.Table | str] = [_overview(answer, front.server)]
    if answer.shards:
        parts += ["", _shards(answer)]
    parts += ["", *(f"! {notice}" for notice in answer.notices)] if answer.notices else []
    show.write(options.output, show.plain(answer), *parts)


def _overview(answer: fleetbeat_pb2.GetClusterStatusResponse, server: str) -> str:
    leader = answer.leader
    fronts = (f"{f.front_id} (for {show.age(f.listening_since) or '?'})" for f in answer.fronts)
    return show.pairs(
        [
            ("cluster", answer.cluster_id),
            ("front", server),
            ("mode", f"{answer.mode}: {answer.mode_reason}" if answer.mode_reason else answer.mode),
            ("leader", f"{leader.instance_id} (term {leader.term})" if leader.instance_id else "nobody leads"),
            ("nodes", _counts(answer.summary, "nodes")),
            ("workloads", _counts(answer.summary, "workloads")),
            ("shards", f"{answer.shard_count} (map generation {answer.shard_map_generation})"),
            ("fronts", "\n".join(fronts)),
            ("flower", answer.flower_url),
        ]
    )


def _counts(summary: control_pb2.GetClusterSummaryResponse, what: str) -> str:
    by_status = summary.nodes_by_status if what == "nodes" else summary.workloads_by_status
    total = summary.total_nodes if what == "nodes" else summary.total_workloads
    parts = [f"{by_status[name]} {name}" for name in sorted(by_status) if by_status[name]]
    return str(total) + (f": {', '.join(parts)}" if parts else "")


def _shards(answer: fleetbeat_pb2.GetClusterStatusResponse) -> show.Table:
    loops = list(dict.fromkeys(loop.loop for shard in answer.shards for loop in shard.loops))
    rows = []
    for shard in answer.shards:
        ages = {loop.loop: loop.age_seconds for loop in shard.loops}
        queue = str(shard.queue_length) if shard.queue_length >= 0 else "broker away"
        cycles = [_ago(ages.get(loop, -1.0)) for loop in loops]
        rows.append([str(shard.shard), str(shard.nodes), str(shard.workloads), queue, *cycles])
    return show.Table(["SHARD", "NODES", "WORKLOADS", "QUEUED", *(name.upper() for name in loops)], rows)


def _ago(seconds: float) -> str:
    return f"{show.span(seconds)} ago" if seconds >= 0 else "never"


@click.command()
@common_options
@click.pass_obj
@asynchronous
async def summary(options: Options) -> None:
    """Count nodes and workloads by state.

    \b
    Example:
      fleetbeat summary -o json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        answer = await front.read(front.control.GetClusterSummary, control_pb2.GetClusterSummaryRequest())
    lines = show.pairs([("nodes", _counts(answer, "nodes")), ("workloads", _counts(answer, "workloads"))])
    show.write(options.output, show.plain(answer), lines)
