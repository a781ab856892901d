"""`fleetbeat node drain` and `undrain`: empty a node, and follow how far it has come."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.sizes import converted, seconds_in
from scheduler.pb import control_pb2, fleetbeat_pb2

POLL_SECONDS = 0.5
DRAINED = "Drained"
_NO_DEADLINE = -1.0
_MOST_PARALLEL = 1000


def _deadline_in(text: str) -> float:
    """Return the seconds of a duration; "0" is at once, "none" takes a deadline away."""
    if text.strip().lower() == "none":
        return _NO_DEADLINE
    return 0.0 if text.strip() == "0" else seconds_in(text)


def _healthy_in(text: str) -> float:
    return 0.0 if text.strip() == "0" else seconds_in(text)


@click.command()
@click.argument("node_id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people who look at the node.")
@click.option(
    "--max-parallel",
    type=click.IntRange(1, _MOST_PARALLEL),
    metavar="N",
    help="Workloads on their way at once. [default: the cluster's, 2]",
)
@click.option(
    "--min-healthy",
    metavar="DURATION",
    callback=converted(_healthy_in),
    help="How long a new copy must have run before the next one goes, as 10s or 0. [default: the cluster's, 0]",
)
@click.option(
    "--deadline",
    metavar="DURATION",
    callback=converted(_deadline_in),
    help="After this nothing waits for health any more, as 30m; 0: at once; none: take a deadline away.",
)
@click.option(
    "--ignore-pinned/--respect-pinned",
    default=None,
    help="Whether the node counts as drained while workloads are left that must not leave it.",
)
@click.option("--dry-run", is_flag=True, help="Say what would move, and change nothing.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the node is drained.")
@click.option(
    "--timeout",
    "seconds",
    default="1h",
    show_default=True,
    metavar="DURATION",
    callback=converted(seconds_in),
    help="How long to wait, as 90 or 2m.",
)
@common_options
@click.pass_obj
@asynchronous
async def drain(
    options: Options,
    *,
    node_id: str,
    reason: str,
    max_parallel: int | None,
    min_healthy: float | None,
    deadline: float | None,
    ignore_pinned: bool | None,
    dry_run: bool,
    wait: bool,
    seconds: float,
) -> int:
    """Move all work off a node, and keep new work away from it.

    A new copy runs elsewhere before the old one is stopped; exclusive workloads are stopped first. The drain
    goes on by itself: when the waiting ends early, when the node restarts, when the control plane does.
    Repeating the command changes only the options that are given.

    \b
    Examples:
      fleetbeat node drain n-7 --reason "new disks"
      fleetbeat node drain n-7 --max-parallel 5 --min-healthy 10s --deadline 30m
      fleetbeat node drain n-7 --dry-run
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = control_pb2.DrainNodeRequest(
        node_id=node_id,
        reason=reason,
        max_parallel=max_parallel,
        min_healthy_seconds=min_healthy,
        deadline_seconds=deadline,
        ignore_pinned=ignore_pinned,
        validate_only=dry_run,
    )
    async with Front(options) as front:
        answer = await front.write(front.control.DrainNode, request)
        if not answer.accepted:
            raise CommandError(answer.message or "refused without a reason")
        show.say(answer.message)
        if dry_run or not wait:
            progress = await _progress(front, node_id)
            _write(options, progress)
            return 0
        return await _follow(options, front, node_id, time.monotonic() + seconds)


async def _progress(front: Front, node_id: str) -> fleetbeat_pb2.GetDrainResponse:
    found: fleetbeat_pb2.GetDrainResponse = await front.read(
        front.fleet.GetDrain, fleetbeat_pb2.GetDrainRequest(node_id=node_id)
    )
    return found


async def _follow(options: Options, front: Front, node_id: str, give_up: float) -> int:
    """Tell of each step until the node is drained, nothing can move any more, or the time is over."""
    told = ""
    try:
        while True:
            progress = await _progress(front, node_id)
            if (line := line_of(progress)) != told:
                show.say(told := line)
            if progress.state == DRAINED or (end := _end_of(progress, give_up)):
                break
            await asyncio.sleep(POLL_SECONDS)
    except asyncio.CancelledError:
        show.say(f"the drain of {node_id} goes on; `fleetbeat node undrain {node_id}` ends it")
        raise
    _write(options, progress)
    if progress.state == DRAINED:
        return 0
    show.say(f"Error: {node_id}: {end}")
    return 1


def _end_of(progress: fleetbeat_pb2.GetDrainResponse, give_up: float) -> str:
    """Say why there is nothing to wait for; blank when there is."""
    states = Counter(w.state for w in progress.workloads)
    if not progress.state:
        return "somebody has ended the drain"
    if not progress.moving and states["pinned"] and states["pinned"] == progress.left:
        return "only pinned workloads are left; stop or delete them, let them move, or repeat with --ignore-pinned"
    return "not drained yet; the drain goes on" if time.monotonic() > give_up else ""


def line_of(progress: fleetbeat_pb2.GetDrainResponse) -> str:
    """Say in one line how far a drain has come."""
    states = Counter(w.state for w in progress.workloads)
    of_left = ", ".join(f"{states[name]} {name}" for name in ("blocked", "pinned", "deleting") if states[name])
    left = f", {progress.left} left" + (f" ({of_left})" if of_left else "")
    return (
        f"{progress.node_id}: {progress.state or 'not being drained'}: {progress.moved} of {progress.total} moved, "
        f"{progress.moving} on the way{left}"
    )


def _write(options: Options, progress: fleetbeat_pb2.GetDrainResponse) -> None:
    rows = [(w.workload_id, w.state, w.node_id, w.reason) for w in progress.workloads]
    table = [show.Table(("WORKLOAD", "STATE", "TO", "REASON"), rows)] if rows else []
    show.write(options.output, show.plain(progress), *table)


@click.command()
@click.argument("node_id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Why, for people who read the events.")
@common_options
@click.pass_obj
@asynchronous
async def undrain(options: Options, node_id: str, reason: str) -> None:
    """End the drain of a node, so that it takes work again when it is healthy.

    What is on its way to other nodes arrives there.

    \b
    Example:
      fleetbeat node undrain n-7
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = control_pb2.UndrainNodeRequest(node_id=node_id, reason=reason)
    async with Front(options) as front:
        answer = await front.write(front.control.UndrainNode, request)
    show.write(options.output, show.plain(answer), answer.message)
