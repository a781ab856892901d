"""Commands that are imported when they are used, so that `fleetbeat --help` is quick and an agent loads no Celery."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Lazy(NamedTuple):
    """Where a command is defined and what the overview says of it."""

    target: str
    """module:attribute"""
    help: str


class LazyGroup(click.Group):
    """A group that knows names and one line each of its commands, and imports a command to run it."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **kwargs: Any) -> None:
        """Take the commands by name, in the order in which the overview lists them."""
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the base's
        """Return the names in their order."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; what stood before it on the line becomes the default of what may stand after it."""
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name].target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)  # noqa: S101 - the table above is ours
        _hand_down(ctx, cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is not known is told with the nearest one that is."""
        near = difflib.get_close_matches(args[0], self.lazy, 1) if args[0] not in self.lazy else []
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the overview without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.help) for name, lazy in self.lazy.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names without importing anything."""
        names = [CompletionItem(n, help=lazy.help) for n, lazy in self.lazy.items() if n.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)


def _hand_down(ctx: click.Context, name: str, command: click.Command) -> None:
    """Let `fleetbeat --data D up` mean `fleetbeat up --data D`, also for commands with options of their own."""
    given = {f"--{p}": v for p, v in ctx.meta.get("given", {}).items()}
    defaults = {p.name: given[o] for p in command.params for o in p.opts if o in given}
    ctx.default_map = {**(ctx.default_map or {}), name: defaults}
