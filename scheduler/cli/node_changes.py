"""`fleetbeat node cordon`, `taint`, `label`, `remove` and their opposites."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import Options, asynchronous, common_options
from scheduler.pb import control_pb2, fleetbeat_pb2


def _written(options: Options, answer: Any, message: str) -> None:
    show.write(options.output, show.plain(answer), message)


@click.command()
@click.argument("node_id", metavar="ID")
@common_options
@click.pass_obj
@asynchronous
async def cordon(options: Options, node_id: str) -> None:
    """Keep new work away from a node; what is there stays.

    \b
    Example:
      fleetbeat node cordon n-7
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        answer = await front.write(front.fleet.CordonNode, fleetbeat_pb2.CordonNodeRequest(node_id=node_id))
    _written(options, answer, f'node "{node_id}" takes no new work; what is there stays')


@click.command()
@click.argument("node_id", metavar="ID")
@common_options
@click.pass_obj
@asynchronous
async def uncordon(options: Options, node_id: str) -> None:
    """Let a node take new work again.

    \b
    Example:
      fleetbeat node uncordon n-7
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        answer = await front.write(front.fleet.UncordonNode, fleetbeat_pb2.UncordonNodeRequest(node_id=node_id))
    still = "" if answer.node.schedulable else f", once it is not {answer.node.status} any more"
    _written(options, answer, f'node "{node_id}" takes new work{still}')


@click.command()
@click.argument("node_id", metavar="ID")
@click.argument("taint_text", metavar="KEY[=VALUE][:EFFECT]")
@common_options
@click.pass_obj
@asynchronous
async def taint(options: Options, node_id: str, taint_text: str) -> None:
    """Keep work off a node unless it tolerates the taint.

    The effect is NoSchedule (new work stays away, the default), PreferNoSchedule (it comes only where no
    other node fits) or NoExecute (what is there leaves as well). A taint with the same key and effect is
    replaced.

    \b
    Examples:
      fleetbeat node taint n-7 gpu=a100
      fleetbeat node taint n-7 power:NoExecute
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    selector, _, effect = taint_text.partition(":")
    key, _, value = selector.partition("=")
    wanted = control_pb2.NodeTaint(key=key, value=value, effect=effect)
    async with Front(options) as front:
        request = control_pb2.TaintNodeRequest(node_id=node_id, taint=wanted)
        answer = await front.write(front.control.TaintNode, request)
    _written(options, answer, answer.message)


@click.command()
@click.argument("node_id", metavar="ID")
@click.argument("taint_text", metavar="KEY[:EFFECT]")
@common_options
@click.pass_obj
@asynchronous
async def untaint(options: Options, node_id: str, taint_text: str) -> None:
    """Take a taint off a node; without an effect, the one of NoSchedule.

    \b
    Example:
      fleetbeat node untaint n-7 power:NoExecute
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    key, _, effect = taint_text.partition(":")
    async with Front(options) as front:
        request = control_pb2.UntaintNodeRequest(node_id=node_id, key=key, effect=effect)
        answer = await front.write(front.control.UntaintNode, request)
    _written(options, answer, answer.message)


@click.command()
@click.argument("node_id", metavar="ID")
@click.argument("label_text", metavar="KEY=VALUE")
@common_options
@click.pass_obj
@asynchronous
async def label(options: Options, node_id: str, label_text: str) -> None:
    """Label a node; workloads choose nodes by their labels.

    \b
    Example:
      fleetbeat node label n-7 disk=ssd
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    key, equals, value = label_text.partition("=")
    if not equals:
        raise click.UsageError(f"{label_text!r} is not KEY=VALUE; `fleetbeat node unlabel` takes a label off")
    async with Front(options) as front:
        request = control_pb2.SetNodeLabelRequest(node_id=node_id, key=key, value=value)
        answer = await front.write(front.control.SetNodeLabel, request)
    _written(options, answer, answer.message)


@click.command()
@click.argument("node_id", metavar="ID")
@click.argument("key", metavar="KEY")
@common_options
@click.pass_obj
@asynchronous
async def unlabel(options: Options, node_id: str, key: str) -> None:
    """Take a label off a node.

    \b
    Example:
      fleetbeat node unlabel n-7 disk
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        request = control_pb2.DeleteNodeLabelRequest(node_id=node_id, key=key)
        answer = await front.write(front.control.DeleteNodeLabel, request)
    _written(options, answer, answer.message)


@click.command()
@click.argument("node_id", metavar="ID")
@click.option(
    "--force",
    is_flag=True,
    help="Also while it is Ready or holds work: it is certain that nothing runs there any more.",
)
@click.option("--dry-run", is_flag=True, help="Check whether it could be removed, and change nothing.")
@common_options
@click.pass_obj
@asynchronous
async def remove(options: Options, *, node_id: str, force: bool, dry_run: bool) -> None:
    """Forget a node that will not come back.

    Its workloads are placed anew by their own rules. Should it come back after all, it registers anew and
    first removes the copies that it has left over.

    \b
    Examples:
      fleetbeat node drain n-7 && fleetbeat node remove n-7
      fleetbeat node remove n-7 --force
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    request = fleetbeat_pb2.RemoveNodeRequest(node_id=node_id, force=force, validate_only=dry_run)
    async with Front(options) as front:
        answer = await front.write(front.fleet.RemoveNode, request)
    count = f"{answer.workloads} workload{'' if answer.workloads == 1 else 's'}"
    would = "would be" if dry_run else "is"
    moved = f"; {count} {'would be' if dry_run else 'are'} placed anew" if answer.workloads else ""
    _written(options, answer, f'node "{node_id}" {would} removed{moved}')
