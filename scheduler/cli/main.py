"""The entry point: the overview of commands, and what ends the process with which exit code."""

from __future__ import annotations

import os
import sys

import click

from scheduler.cli.lazy import Lazy, LazyGroup
from scheduler.cli.options import common_options

INTERRUPTED = 130
"""128 + SIGINT, as shells count."""

_COMMANDS = {
    "up": Lazy("scheduler.devcluster.up:up_command", "Start a whole cluster on this machine."),
    "down": Lazy("scheduler.devcluster.down:down_command", "Stop the cluster that `up` runs."),
    "apply": Lazy("scheduler.cli.apply:apply", "Create or change workloads and follow them until they run."),
    "scale": Lazy("scheduler.cli.scale:scale", "Set how many copies of a workload there are."),
    "status": Lazy("scheduler.cli.cluster:status", "Show the control plane: leader, shards, cycles, fronts."),
    "summary": Lazy("scheduler.cli.cluster:summary", "Count nodes and workloads by state."),
    "node": Lazy("scheduler.cli.node:node", "List, show, drain, cordon, taint, label, fence and remove nodes."),
    "brake": Lazy("scheduler.cli.fence:brake", "Show and release the brake that holds the work of lost nodes."),
    "workload": Lazy("scheduler.cli.workload:workload", "List, show, explain, retry and delete workloads; read logs."),
    "events": Lazy("scheduler.cli.events:events", "Show what has happened, and what happens."),
    "drift": Lazy("scheduler.cli.drift:drift", "Show where nodes differ from the records."),
    "audit": Lazy("scheduler.cli.audit:audit", "Find what is committed on nodes for nobody."),
    "disk": Lazy("scheduler.cli.disk:disk", "Create, list, show and delete disks and volumes."),
    "backup": Lazy("scheduler.cli.backup:backup", "Write the whole state of the cluster to a file."),
    "restore": Lazy("scheduler.cli.restore:restore", "Bring the state of a cluster back from a backup."),
    "cluster": Lazy("scheduler.cli.accept:cluster", "Take an emptied etcd as it is."),
    "config": Lazy("scheduler.cli.configuration:config", "Show the effective configuration, secrets masked."),
    "front": Lazy("scheduler.cli.processes:front", "Run a front: the gRPC and HTTP servers."),
    "agent": Lazy("agent.main:agent_command", "Run the agent of a node."),
    "version": Lazy("scheduler.cli.processes:version", "Print the version."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@common_options
@click.version_option(package_name="fleetbeat", message="fleetbeat %(version)s")
def cli() -> None:
    """Schedule workloads on a fleet of nodes.

    \b
    A first session:
      fleetbeat up --detach
      fleetbeat apply --image host --id hello -- sh -c 'echo hello; sleep 600'
      fleetbeat workload logs hello
      fleetbeat status
      fleetbeat down

    Exit codes: 0 done, 1 error, 2 placed nothing.
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped


def main() -> int:
    """Run a command line; returns the exit code."""
    try:
        code = cli.main(prog_name="fleetbeat", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return 1
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code if isinstance(code, int) else 0
