"""A workload described by options instead of a file: `fleetbeat apply --image IMAGE [options] -- COMMAND`."""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from scheduler.cli.documents import Document
from scheduler.cli.sizes import converted, millicores_in, size_in
from scheduler.front.convert import HOST_IMAGE

F = TypeVar("F", bound=Callable[..., Any])
_PORT = re.compile(r"(\d{1,9})(?::(\d{1,9}))?(?:/([A-Za-z]+))?", re.ASCII)


@dataclass(frozen=True)
class AdHoc:
    """What the options say."""

    image: str | None = None
    workload_id: str | None = None
    cpu: int = 0
    memory: int = 0
    disk: int = 0
    env: dict[str, str] = field(default_factory=dict)
    ports: list[dict[str, Any]] = field(default_factory=list)
    restart: str | None = None
    command: list[str] = field(default_factory=list)

    @property
    def is_given(self) -> bool:
        """Any of the options was used."""
        return self != AdHoc()


def _variables(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    for value in values:
        if "=" not in value:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
    return dict(value.split("=", 1) for value in values)


def _ports(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> list[dict[str, Any]]:
    ports = []
    for value in values:
        found = _PORT.fullmatch(value)
        if not found:
            raise click.BadParameter(f"{value!r} is not HOST[:CONTAINER][/tcp or /udp]")
        host, container, protocol = found.groups()
        port = {"host_port": int(host), "container_port": int(container or host), "protocol": protocol or "tcp"}
        ports.append(port)
    return ports


_OPTIONS = (
    click.option("--image", metavar="IMAGE", help=f'Container image, or "{HOST_IMAGE}": a process on the node.'),
    click.option("--id", "workload_id", metavar="ID", help="Id of the workload. [default: made from the image]"),
    click.option(
        "--cpu",
        default="0",
        metavar="CPU",
        callback=converted(millicores_in),
        help="CPU to reserve, as 250m or 0.25.",
    ),
    click.option(
        "--memory",
        default="0",
        metavar="SIZE",
        callback=converted(lambda text: size_in(text, "m", "m")),
        help="Memory to reserve, as 64 (MB), 64Mi or 2Gi.",
    ),
    click.option(
        "--disk",
        default="0",
        metavar="SIZE",
        callback=converted(lambda text: size_in(text, "g", "g")),
        help="Disk to reserve, as 10 (GB) or 10Gi.",
    ),
    click.option("--env", multiple=True, metavar="NAME=VALUE", callback=_variables, help="Environment. Repeatable."),
    click.option(
        "--port",
        "ports",
        multiple=True,
        metavar="H[:C][/PROTO]",
        callback=_ports,
        help="Lead a port of the node to one of the container. Repeatable.",
    ),
    click.option("--restart", metavar="POLICY", help="no, always, on-failure or unless-stopped."),
    click.argument("command", nargs=-1, type=click.UNPROCESSED),
)


def adhoc_options(function: F) -> F:
    """Give a command these options; it receives them as one `adhoc`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in AdHoc.__dataclass_fields__}
        given["command"] = list(given["command"])
        return function(*args, adhoc=AdHoc(**given), **kwargs)

    wrapped: Any = run
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def document_of(adhoc: AdHoc) -> Document:
    """Return the document that says the same."""
    if not adhoc.image:
        raise click.UsageError("--image IMAGE is missing")
    resources = {"cpu_millicores": adhoc.cpu, "memory_mb": adhoc.memory, "disk_gb": adhoc.disk}
    container: dict[str, Any] = {
        "image": adhoc.image,
        "command": adhoc.command,
        "env": adhoc.env,
        "ports": adhoc.ports,
        **({"restart_policy": adhoc.restart} if adhoc.restart is not None else {}),
    }
    return Document(
        "command line",
        {
            "id": adhoc.workload_id if adhoc.workload_id is not None else _new_id(adhoc),
            "resources": resources,
            "container": container,
        },
    )


def _new_id(adhoc: AdHoc) -> str:
    name = adhoc.command[0] if adhoc.image == HOST_IMAGE and adhoc.command else str(adhoc.image).split("@")[0]
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", name.rsplit("/", 1)[-1].split(":")[0])[:40].strip("._-")
    return f"{base or 'workload'}-{secrets.token_hex(3)}"
