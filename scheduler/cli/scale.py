"""`fleetbeat scale`: set how many copies of a workload there are, and wait until they run."""

from __future__ import annotations

import asyncio
import time

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.sizes import timeout_option
from scheduler.domain.policy import MAX_REPLICAS
from scheduler.pb import control_pb2, fleetbeat_pb2

_POLL_SECONDS = 0.3


@click.command()
@click.argument("workload_id", metavar="ID")
@click.argument("replicas", metavar="N", type=click.IntRange(1, MAX_REPLICAS))
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until so many copies run, and no others.")
@click.option("--generation", default=0, metavar="G", help="Only if the workload is at this generation.")
@click.option("--dry-run", is_flag=True, help="Check only; nothing is stored.")
@timeout_option
@common_options
@click.pass_obj
@asynchronous
async def scale(
    options: Options, *, workload_id: str, replicas: int, wait: bool, generation: int, dry_run: bool, seconds: float
) -> int:
    """Set how many copies of a workload there are.

    The workload itself is the first copy; the others are workloads ID.2 to ID.N. Those with the
    highest numbers go first. Scaling goes on when the waiting ends early.

    \b
    Examples:
      fleetbeat scale web 5
      fleetbeat scale web 2 --no-wait
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.ScaleWorkloadRequest(
        workload_id=workload_id, replicas=replicas, expected_generation=generation, validate_only=dry_run
    )
    async with Front(options) as front:
        scaled = await front.write(front.fleet.ScaleWorkload, request)
        view = await _settled(front, workload_id, seconds) if wait and not dry_run else None
    data = {**show.plain(scaled), "validate_only": dry_run}
    if view is not None:
        data["replicas_running"] = view.replicas_running
    text = f"{workload_id}: {scaled.previous_replicas} → {scaled.replicas} copies"
    show.write(options.output, data, f"{text} (checked only)" if dry_run else text)
    return 0


async def _settled(front: Front, workload_id: str, seconds: float) -> control_pb2.WorkloadView:
    """Wait until the copies are as wanted. Raises CommandError when the time is over."""
    deadline = time.monotonic() + seconds
    request = control_pb2.GetWorkloadRequest(workload_id=workload_id)
    while True:
        view: control_pb2.WorkloadView = (await front.read(front.control.GetWorkload, request)).workload
        running = view.replicas if view.desired_state == "Running" else view.replicas_running
        if view.replicas_present == view.replicas and view.replicas_running == running:
            return view
        if time.monotonic() > deadline:
            raise CommandError(
                f"{workload_id}: {view.replicas_running} of {view.replicas} copies run and {view.replicas_present} "
                f"are there after {seconds:g}s; scaling goes on, see `fleetbeat workload ls`"
            )
        await asyncio.sleep(_POLL_SECONDS)
