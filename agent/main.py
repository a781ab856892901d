"""The command line of the agent: `fleetbeat agent`."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar

import click

from agent.options import (
    MAX_LABELS,
    Address,
    Options,
    default_node_id,
    parse_address,
    parse_advertised,
    parse_label,
    parse_names,
    parse_node_id,
    parse_servers,
    tls_of,
)

MAX_CAPACITY = 2**31 - 1


class Checked(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases
    """A value that a function parses; what the function complains about is told to the user."""

    envvar_list_splitter: ClassVar[str | None] = ","

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        """Name the kind of value, and give what parses it or raises ValueError."""
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse, or fail with the option's name and the complaint."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _option(name: str, variable: str, help_text: str, **settings: Any) -> Callable[[Any], Any]:
    return click.option(name, envvar=f"FLEETBEAT_AGENT_{variable}", show_envvar=True, help=help_text, **settings)


def _listen(text: str) -> Address:
    return parse_address(text, any_port=True)


@click.command("agent", context_settings={"show_default": True})
@_option("--node-id", "NODE_ID", "Name of this node.", type=Checked("id", parse_node_id), default=default_node_id)
@click.option(
    "--server",
    "servers",
    envvar=["FLEETBEAT_AGENT_SERVER", "FLEETBEAT_SERVER"],
    show_envvar=True,
    type=Checked("host:port[,host:port…]", parse_servers),
    default="127.0.0.1:8085",
    help="Fronts of the control plane; the next one is tried when one does not answer.",
)
@_option(
    "--listen",
    "LISTEN",
    "Address on which the control plane calls this agent. Whoever reaches it can run things here.",
    type=Checked("host:port", _listen),
    default="127.0.0.1:50051",
)
@_option(
    "--advertise",
    "ADVERTISE",
    "Address to tell the control plane.  [default: found out]",
    type=Checked("host[:port]", parse_advertised),
    default="",
    show_default=False,
)
@_option(
    "--ca",
    "CA",
    "CA file: turns TLS on, towards the fronts and for whoever calls; with --cert and --key.",
    default="",
    show_default=False,
)
@_option("--cert", "CERT", "Certificate file of this node, used on both ways.", default="", show_default=False)
@_option("--key", "KEY", "Key file of the certificate.", default="", show_default=False)
@_option(
    "--control-plane-names",
    "CONTROL_PLANE_NAMES",
    "Names (common or DNS) in the certificates of the control plane, comma-separated: only those may call this agent.  "
    "[default: any of the CA]",
    type=Checked("name[,name…]", parse_names),
    default="",
    show_default=False,
)
@_option(
    "--data",
    "DATA",
    "Folder for records, work folders and output.  [default: .fleetbeat/agents/NODE-ID]",
    type=click.Path(path_type=pathlib.Path, file_okay=False),
)
@_option(
    "--label",
    "LABELS",
    "Label of the node; may be given several times (in the variable: comma-separated).",
    type=Checked("name=value", parse_label),
    multiple=True,
)
@_option("--cpu-millicores", "CPU_MILLICORES", "CPU to offer; 0: all.", type=click.IntRange(0, MAX_CAPACITY), default=0)
@_option("--memory-mb", "MEMORY_MB", "Memory to offer; 0: all.", type=click.IntRange(0, MAX_CAPACITY), default=0)
@_option(
    "--disk-gb", "DISK_GB", "Disk to offer; 0: all of the folder's.", type=click.IntRange(0, MAX_CAPACITY), default=0
)
@_option(
    "--allow-host-processes/--no-host-processes",
    "ALLOW_HOST_PROCESSES",
    "Let workloads with the image 'host' run as processes of this node, as this agent's user.",
    default=False,
)
@_option(
    "--allow-privileged/--no-privileged",
    "ALLOW_PRIVILEGED",
    "Let workloads run privileged containers, which can do whatever this node can.",
    default=False,
)
@_option("--docker/--no-docker", "DOCKER", "Offer containers where a Docker engine answers.", default=True)
@_option(
    "--stop-grace",
    "STOP_GRACE",
    "Seconds between SIGTERM and SIGKILL when a workload is stopped.",
    type=click.FloatRange(0, 600),
    default=10.0,
)
@_option(
    "--output-max-bytes",
    "OUTPUT_MAX_BYTES",
    "Output kept of a process before its older half is dropped.",
    type=click.IntRange(4096, 2**30),
    default=8 * 2**20,
)
@_option(
    "--stop-workloads-on-exit/--keep-workloads",
    "STOP_WORKLOADS_ON_EXIT",
    "Stop the workloads when the agent ends by SIGTERM or SIGINT; else the next start adopts them.",
    default=False,
)
@_option(
    "--stop-after",
    "STOP_AFTER",
    "Seconds without word from the control plane after which exclusive workloads have ended, where their order "
    "does not say; also those of an agent whose id another one has taken.",
    type=click.FloatRange(1, 86400),
    default=60.0,
)
@click.option(
    "--log-level",
    envvar="LOG_LEVEL",
    show_envvar=True,
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    help="Least level that is logged.",
)
@click.option(
    "--log-format",
    envvar="LOG_FORMAT",
    show_envvar=True,
    type=click.Choice(["json", "text"]),
    default="json",
    help="Form of the log, which goes to stderr.",
)
def agent_command(
    *,
    node_id: str,
    data: pathlib.Path | None,
    label: tuple[tuple[str, str], ...],
    stop_grace: float,
    output_max_bytes: int,
    stop_after: float,
    ca: str,
    cert: str,
    key: str,
    control_plane_names: tuple[str, ...],
    log_level: str,
    log_format: str,
    **rest: Any,
) -> None:
    """Run the agent of a node: it runs workloads here and reports them to the control plane.

    Workloads outlive the agent: when it is started again with the same --data, it takes them over.
    """
    if len(label) > MAX_LABELS:
        raise click.UsageError(f"--label: {len(label)} labels were given, at most {MAX_LABELS} are allowed")
    try:
        tls = tls_of(ca, cert, key)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if control_plane_names and tls is None:
        raise click.UsageError("--control-plane-names needs --ca, --cert and --key: without TLS callers have no names")
    options = Options(
        node_id=node_id,
        tls=tls,
        callers=control_plane_names,
        data=(data or pathlib.Path(".fleetbeat") / "agents" / node_id).absolute(),
        labels=dict(label),
        stop_grace_seconds=stop_grace,
        output_most_bytes=output_max_bytes,
        stop_after_seconds=stop_after,
        **rest,
    )
    run(options, log_level=log_level, log_format=log_format)


def run(options: Options, *, log_level: str = "info", log_format: str = "json") -> None:
    """Run an agent until SIGTERM or SIGINT."""
    from agent import app, logs  # noqa: PLC0415 - so that --help is quick

    logs.set_up_logs(log_level, log_format)
    try:
        asyncio.run(app.run(options))
    except app.CannotStart as error:
        raise click.ClickException(str(error)) from None
