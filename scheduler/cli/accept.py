"""`fleetbeat cluster accept`: out of recovery without a backup."""

from __future__ import annotations

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.pb import fleetbeat_pb2


@click.group()
@common_options
def cluster() -> None:
    """Do what concerns the cluster as a whole."""


@cluster.command("accept")
@click.argument("cluster_id", metavar="CLUSTER")
@common_options
@click.pass_obj
@asynchronous
async def accept(options: Options, *, cluster_id: str) -> None:
    """Use an etcd that has lost its records as it is, and leave recovery.

    Only when there is no backup to restore: what etcd has lost stays lost. Nodes register again and
    keep what they run; apply your workloads again. CLUSTER is the id that `fleetbeat status` shows.

    \b
    Example:
      fleetbeat cluster accept 5f0c2d…
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.AcceptStoreRequest(cluster_id=cluster_id)
    async with Front(options) as front:
        answer = await front.write(front.fleet.AcceptStore, request)
    show.write(options.output, show.plain(answer), f"cluster {answer.cluster_id} is in {answer.mode} mode")
