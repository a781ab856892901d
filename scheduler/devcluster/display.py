"""Tell the person at the terminal how the cluster is: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.devcluster.folder import Folder
from scheduler.devcluster.plan import Site
from scheduler.devcluster.status import ClusterStatus, ShardLine

_EXAMPLE = "apply --image host --id hello -- sh -c 'echo hello; sleep 600'"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the status tells."""

    site: Site
    status: ClusterStatus
    troubles: Mapping[str, str]


class Display(Protocol):
    """Where the supervisor tells what happens."""

    def say(self, text: str) -> None:
        """Tell one event."""

    def ready(self, snapshot: Snapshot, seconds: float) -> None:
        """Tell that the cluster is up."""

    def show(self, snapshot: Snapshot) -> None:
        """Tell how the cluster is now."""

    def close(self) -> None:
        """Tell nothing more."""


def rows(snapshot: Snapshot) -> list[tuple[str, str]]:
    """Return the status as label and text."""
    status, site = snapshot.status, snapshot.site
    if not status.cluster_id:
        return [("cluster", "no front answers"), *_trouble_row(snapshot.troubles), *_places(site)]
    return [
        ("nodes", f"{status.nodes_ready} of {status.nodes} ready"),
        ("shards", "; ".join(map(_shard_text, status.shards))),
        ("leader", status.leader or "none"),
        ("workloads", ", ".join(f"{count} {name}" for name, count in status.workloads.items()) or "none"),
        *(("notice", notice) for notice in status.notices),
        *_trouble_row(snapshot.troubles),
        *_places(site),
    ]


def _shard_text(line: ShardLine) -> str:
    ago = line.reconciled_seconds_ago
    reconciled = f"reconciled {ago:.1f} s ago" if ago >= 0 else "not reconciled yet"
    return f"shard-{line.shard}: {line.nodes} nodes, queue {line.queue_length}, {reconciled}"


def _trouble_row(troubles: Mapping[str, str]) -> list[tuple[str, str]]:
    return [("trouble", ", ".join(f"{name}: {state}" for name, state in troubles.items()))] if troubles else []


def _places(site: Site) -> list[tuple[str, str]]:
    return [
        ("front", site.address("front-1")),
        ("metrics", site.url("front-1-metrics", "/metrics")),
        ("Flower", site.url("flower")),
        ("next", next_command(site.folder)),
    ]


def next_command(folder: Folder) -> str:
    """Return a command to try, as it must be typed in another terminal of this directory."""
    return f"{command_name()} {folder.flag}{_EXAMPLE}"


def command_name() -> str:
    """Return how to type `fleetbeat` here: by name when PATH leads to ours, else by path."""
    ours = pathlib.Path(sys.executable).parent / "fleetbeat"
    found = shutil.which("fleetbeat")
    if not ours.exists() or (found and pathlib.Path(found).samefile(ours)):
        return "fleetbeat"
    relative = os.path.relpath(ours)
    return str(ours) if relative.startswith("..") else relative


class PlainDisplay:
    """Lines on standard output, each flushed; silent once nobody reads them."""

    def __init__(self) -> None:
        """Start with nothing told."""
        self._told: dict[str, str] = {}

    def say(self, text: str) -> None:
        """Print one event."""
        try:
            print(text, flush=True)  # noqa: T201 - this is the terminal's side
        except OSError:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - for the rest of the process

    def ready(self, snapshot: Snapshot, seconds: float) -> None:
        """Print the whole status."""
        self.say(f"ready after {seconds:.1f} s")
        for label, text in rows(snapshot):
            self.say(f"  {label:<10}{text}")
        self._told = self._slow_rows(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Print what has changed of nodes, leader, notices and troubles."""
        current = self._slow_rows(snapshot)
        for label in current.keys() | self._told.keys():
            if current.get(label) != self._told.get(label):
                self.say(f"{label}: {current.get(label, 'none')}")
        self._told = current

    def close(self) -> None:
        """Nothing to close."""

    @staticmethod
    def _slow_rows(snapshot: Snapshot) -> dict[str, str]:
        return {label: text for label, text in rows(snapshot) if label in {"cluster", "nodes", "leader", "notice"}}


class LiveDisplay:
    """A table that is redrawn in place, under the events told so far."""

    def __init__(self) -> None:
        """Take the terminal."""
        from rich.console import Console  # noqa: PLC0415 - only where there is a terminal
        from rich.live import Live  # noqa: PLC0415

        self._live = Live(console=Console(highlight=False), auto_refresh=False, transient=True)
        self._live.start()

    def say(self, text: str) -> None:
        """Print one event above the table."""
        self._live.console.print(text, markup=False, soft_wrap=True)

    def ready(self, snapshot: Snapshot, seconds: float) -> None:
        """Print that the cluster is up and draw the table."""
        self.say(f"ready after {seconds:.1f} s; Ctrl-C stops it")
        self.show(snapshot)

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the table."""
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table.grid(padding=(0, 2))
        for label, text in rows(snapshot):
            table.add_row(Text(label, style="bold"), Text(text))
        self._live.update(table, refresh=True)

    def close(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def make_display() -> Display:
    """Return the display that fits standard output."""
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay()
