"""`fleetbeat down`: stop the embedded cluster of a data folder."""

from __future__ import annotations

import pathlib

import click

from scheduler.devcluster.data_option import data_option


@click.command("down")
@data_option
def down_command(data: pathlib.Path) -> None:
    """Stop the cluster that `fleetbeat up` runs in a data folder, and wait until it has ended."""
    from scheduler.devcluster.stop import stop  # noqa: PLC0415 - keeps `fleetbeat --help` quick

    click.echo(stop(data))
