"""`fleetbeat up`: start an embedded cluster and keep it running, in this terminal or detached."""

from __future__ import annotations

import pathlib

import click

from scheduler.devcluster.data_option import data_option
from scheduler.devcluster.wanted import Wanted


@click.command("up")
@data_option
@click.option("--agents", type=click.IntRange(0, 64), default=3, show_default=True, help="Nodes to run.")
@click.option("--shards", type=click.IntRange(1, 64), help="Shards of a new cluster; 2 by default.")
@click.option(
    "--workers-per-shard",
    type=click.IntRange(1, 16),
    default=1,
    show_default=True,
    help="Celery workers for each shard.",
)
@click.option("--fronts", type=click.IntRange(1, 8), default=1, show_default=True, help="gRPC fronts.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the first front; any free one by default.")
@click.option("--flower-port", type=click.IntRange(1, 65535), help="Port of Flower; any free one by default.")
@click.option("--detach", is_flag=True, help="Return when the cluster is ready and leave it running.")
def up_command(
    *,
    data: pathlib.Path,
    agents: int,
    shards: int | None,
    workers_per_shard: int,
    fronts: int,
    port: int | None,
    flower_port: int | None,
    detach: bool,
) -> None:
    """Start a whole cluster on this machine: etcd, Redis, front, beat, workers, Flower and agents.

    It listens on 127.0.0.1 only and runs until Ctrl-C (with --detach: until `fleetbeat down`), which
    also ends its workloads; the data folder keeps what it needs to go on at the next start.
    """
    wanted = Wanted(data, agents, shards, workers_per_shard, fronts, port, flower_port)
    click.echo(f"starting an embedded cluster in {data}")
    # Imported late: the first line must not wait for it.
    if detach:
        from scheduler.devcluster.detach import start_detached  # noqa: PLC0415

        start_detached(wanted)
    else:
        from scheduler.devcluster.run import run  # noqa: PLC0415

        run(wanted)
