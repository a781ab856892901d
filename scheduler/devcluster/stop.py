"""Stop the embedded cluster of a data folder from outside."""

from __future__ import annotations

import asyncio
import pathlib
import signal
import time

import click

from scheduler.devcluster.folder import Folder
from scheduler.devcluster.leftovers import end_leftovers
from scheduler.devcluster.processes import Known

_STOP_SECONDS = 90.0
_POLL_SECONDS = 0.05


def stop(data: pathlib.Path) -> str:
    """Stop whatever runs in the folder and say in words what was done.

    Raises ClickException when it does not end in time.
    """
    folder = Folder(data)
    if not folder.root.is_dir():
        return f"nothing runs in {folder.shown}"
    if up := folder.holder():
        _stop_up(folder, up)
        return f"stopped the cluster in {folder.shown}"
    return _end_what_is_left(folder)


def _stop_up(folder: Folder, up: Known) -> None:
    up.send(signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while up.runs():
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"the cluster in {folder.shown} (pid {up.pid}) does not end; see {folder.path('logs')}"
            )
        time.sleep(_POLL_SECONDS)


def _end_what_is_left(folder: Folder) -> str:
    """End the children of an `up` that was killed: their agents stop their workloads."""
    folder.lock()
    try:
        count = asyncio.run(end_leftovers(folder, click.echo, agents_get=signal.SIGTERM))
        folder.remove_cluster()
    finally:
        folder.unlock()
    return f"stopped what was left of the cluster in {folder.shown}" if count else f"nothing runs in {folder.shown}"
