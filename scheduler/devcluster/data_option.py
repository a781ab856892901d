"""The --data option of `up` and `down`."""

from __future__ import annotations

import os
import pathlib

import click

DEFAULT_FOLDER = ".fleetbeat"


def _default() -> pathlib.Path:
    return pathlib.Path(os.environ.get("FLEETBEAT_DATA", "").strip() or DEFAULT_FOLDER)


# No envvar=: click would let it win over a --data that stands before the command's name.
data_option = click.option(
    "--data",
    metavar="DIR",
    default=_default,
    type=click.Path(path_type=pathlib.Path, file_okay=False),
    help="Folder of the cluster; survives restarts. [env: FLEETBEAT_DATA; default: .fleetbeat]",
)
