"""`fleetbeat config`."""

from __future__ import annotations

import click

from scheduler.cli import show
from scheduler.cli.options import CommandError, Options, common_options
from scheduler.settings import Settings, SettingsError, load
from scheduler.settings_values import shown, variable_of


@click.command()
@common_options
@click.pass_obj
def config(options: Options) -> None:
    """Show the effective configuration of a process started here, secrets masked.

    Each variable with its value and where that is from: the environment, or the default.
    A wrong value ends the command with exit code 1 and everything that is wrong.

    \b
    Examples:
      fleetbeat config
      GRPC_PORT=9085 fleetbeat config -o yaml
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    try:
        settings = load()
    except SettingsError as error:
        raise CommandError(f"wrong settings:\n{error}") from None
    rows = [
        (variable_of(field), shown(field, getattr(settings, name)), _source(settings, name))
        for name, field in Settings.model_fields.items()
    ]
    data = {variable: {"value": value, "source": source} for variable, value, source in rows}
    show.write(options.output, data, show.Table(("VARIABLE", "VALUE", "SOURCE"), rows))


def _source(settings: Settings, name: str) -> str:
    return "env" if name in settings.model_fields_set else "default"
