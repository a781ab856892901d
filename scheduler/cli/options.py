"""Options that every command takes, before or after its name."""

from __future__ import annotations

import asyncio
import functools
import os
import pathlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class CommandError(click.ClickException):
    """The command cannot do what was asked; ends it with exit code 1 and one message."""


@dataclass
class Options:
    """Where to send a command and how to show its answer."""

    server: str = field(default_factory=lambda: os.environ.get("FLEETBEAT_SERVER", "").strip())
    data: pathlib.Path = field(
        default_factory=lambda: pathlib.Path(os.environ.get("FLEETBEAT_DATA", "").strip() or ".fleetbeat")
    )
    output: str = "table"
    tls_ca: str = field(default_factory=lambda: os.environ.get("FLEETBEAT_CA", "").strip())
    tls_cert: str = field(default_factory=lambda: os.environ.get("FLEETBEAT_CERT", "").strip())
    tls_key: str = field(default_factory=lambda: os.environ.get("FLEETBEAT_KEY", "").strip())


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    options = ctx.ensure_object(Options)
    if value is not None and param.name:
        setattr(options, param.name, value)
        ctx.meta.setdefault("given", {})[param.name] = str(value)
    return value


_SERVER = click.option(
    "--server",
    metavar="HOST:PORT",
    expose_value=False,
    callback=_remember,
    help="A front; several, comma-separated, are tried in turn. [env: FLEETBEAT_SERVER; else the cluster of --data]",
)
_DATA = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=pathlib.Path, file_okay=False),
    expose_value=False,
    callback=_remember,
    help="Data folder of the cluster on this machine. [env: FLEETBEAT_DATA; default: .fleetbeat]",
)
_OUTPUT = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    expose_value=False,
    callback=_remember,
    help="How data is written. [default: table]",
)


def _file(name: str, help_text: str) -> Callable[[F], F]:
    return click.option(
        f"--{name}",
        f"tls_{name}",
        metavar="FILE",
        expose_value=False,
        callback=_remember,
        help=f"{help_text} [env: FLEETBEAT_{name.upper()}]",
    )


_CA = _file("ca", "CA file: TLS towards the front; with --cert and --key.")
_CERT = _file("cert", "Certificate file to show to the front.")
_KEY = _file("key", "Key file of the certificate.")


def common_options(command: F) -> F:
    """Give a command --server, its certificates, --data and -o; the last one given counts."""
    return _SERVER(_CA(_CERT(_KEY(_DATA(_OUTPUT(command))))))


def asynchronous(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Run a coroutine function as a command. Ctrl-C cancels it."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(function(*args, **kwargs))

    return run
