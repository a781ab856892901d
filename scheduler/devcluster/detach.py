"""Start an embedded cluster in the background."""

from __future__ import annotations

import subprocess
import sys
import time

import click

from scheduler.devcluster.binaries import CannotStart
from scheduler.devcluster.display import command_name
from scheduler.devcluster.folder import Folder
from scheduler.devcluster.wanted import Wanted

_START_SECONDS = 90.0
_POLL_SECONDS = 0.05


def start_detached(wanted: Wanted) -> None:
    """Run `up` in a session of its own and return when its cluster is ready.

    Raises CannotStart, with what it said, when it does not come up.
    """
    folder = Folder(wanted.data)
    folder.create()
    with folder.log("up").open("a+b") as output:
        start = output.seek(0, 2)
        process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "scheduler.devcluster", *wanted.arguments()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            _await_ready(folder, process)
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        output.seek(start)
        told = output.read().decode(errors="replace").partition("\n")[2]
    if process.poll() == 0:
        raise CannotStart("it was stopped, by `fleetbeat down` or a signal, before it was ready")
    if process.poll() is not None:
        raise CannotStart(told.replace("Error: ", "").strip())
    click.echo(told, nl=False)
    click.echo(f"it runs in the background; stop it with: {command_name()} {folder.flag}down")


def _await_ready(folder: Folder, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and folder.read_cluster().get("pid") != process.pid:
        if time.monotonic() > deadline:
            process.terminate()
            process.wait()
        time.sleep(_POLL_SECONDS)
