"""`fleetbeat front` and `fleetbeat version`."""

from __future__ import annotations

import click

from scheduler.cli.options import CommandError, common_options


@click.command()
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes on the one port.")
@common_options
def front(workers: int) -> int:
    """Run a front: the gRPC server of agents and clients, and /metrics, /healthz, /readyz.

    It is configured by environment variables; `fleetbeat config` shows them.

    \b
    Examples:
      ETCD_ENDPOINTS=etcd-1:2379,etcd-2:2379 REDIS_ADDR=redis:6379 fleetbeat front
      GRPC_PORT=9085 METRICS_PORT=9084 fleetbeat front --workers 2
    """  # noqa: D301
    from scheduler.settings import SettingsError, load  # noqa: PLC0415 - slow to import

    try:
        settings = load()
        from scheduler.bootstrap import open_front  # noqa: PLC0415 - pulls in the whole control plane
        from scheduler.front.server import main  # noqa: PLC0415

        return main(settings, workers, open_front)
    except SettingsError as error:
        raise CommandError(f"wrong settings:\n{error}") from None


@click.command()
@common_options
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of  # noqa: PLC0415 - slow to import

    click.echo(f"fleetbeat {version_of('fleetbeat')}")
