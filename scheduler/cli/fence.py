"""`fleetbeat node fence` and `fleetbeat brake`: what an operator vouches for when nodes are lost."""

from __future__ import annotations

from collections.abc import Iterable

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.cli.workload import warn_when_stale
from scheduler.pb import fleetbeat_pb2


@click.command("fence")
@click.argument("node_id", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Who made sure, and how; it is shown in events.")
@click.option("--force", is_flag=True, help="Also while the node is Ready.")
@click.option("--validate-only", is_flag=True, help="Check, and change nothing.")
@common_options
@click.pass_obj
@asynchronous
async def fence(options: Options, *, node_id: str, reason: str, force: bool, validate_only: bool) -> None:
    """Confirm that a node is off, so that its exclusive work may start elsewhere at once.

    Do this only when you are certain: the power is off, the disk is detached, the machine is gone.
    Two copies of an exclusive workload can damage its data. It counts until the node is heard again.

    \b
    Example:
      fleetbeat node fence n-7 --reason 'power off, ticket 4711'
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.FenceNodeRequest(node_id=node_id, reason=reason, force=force, validate_only=validate_only)
    async with Front(options) as front:
        answer = await front.write(front.fleet.FenceNode, request)
    done = "may be fenced" if validate_only else "is fenced"
    text = f"{node_id} {done}: {answer.exclusive} exclusive of {answer.workloads} workloads may start elsewhere"
    show.write(options.output, show.plain(answer), text)


@click.group()
@common_options
def brake() -> None:
    """Show and release the brake that holds the work of nodes lost together."""


@brake.command("status")
@common_options
@click.pass_obj
@asynchronous
async def status(options: Options) -> None:
    """Show the shards that hold something, or whose brake is released.

    \b
    Example:
      fleetbeat brake status
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        answer = await front.read(front.fleet.ListBrakes, fleetbeat_pb2.ListBrakesRequest())
    warn_when_stale(answer.stale)
    show.write(options.output, show.plain(answer), _table(answer.brakes))


@brake.command("release")
@click.argument("shard", type=click.IntRange(0, 1023), metavar="SHARD")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Hold again after so long.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why; it is shown in events.")
@click.option("--hold-again", is_flag=True, help="Take a release back.")
@common_options
@click.pass_obj
@asynchronous
async def release(options: Options, *, shard: int, seconds: float, reason: str, hold_again: bool) -> None:
    """Let work move away from the lost nodes of a shard, although many fell silent together.

    Do this when the nodes are really gone. Exclusive work still waits for proof, or for
    `fleetbeat node fence`.

    \b
    Example:
      fleetbeat brake release 0 --reason 'rack 12 burnt down'
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.ReleaseBrakeRequest(shard=shard, seconds=seconds, reason=reason, hold_again=hold_again)
    async with Front(options) as front:
        answer = await front.write(front.fleet.ReleaseBrake, request)
    show.write(options.output, show.plain(answer), _table([answer.brake]))


def _until(one: fleetbeat_pb2.Brake) -> str:
    return one.released_until.ToJsonString() if one.HasField("released_until") else "-"


def _table(brakes: Iterable[fleetbeat_pb2.Brake]) -> show.Table:
    rows = [[str(b.shard), str(b.nodes), b.reason or "-", _until(b), b.release_reason] for b in brakes]
    return show.Table(("SHARD", "HELD NODES", "WHY", "RELEASED UNTIL", "BECAUSE"), rows)
