"""`fleetbeat workload delete` and `retry`: several workloads at once, one line each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import click

from scheduler.cli import show
from scheduler.cli.connect import Front, NoSuchRecordError, pages
from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.sizes import timeout_option
from scheduler.pb import control_pb2, fleetbeat_pb2

_AT_ONCE = 16
_POLL_SECONDS = 0.3


@click.command()
@click.argument("workload_ids", metavar="ID…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Delete every workload of the cluster.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the nodes confirm that it is gone.")
@timeout_option
@common_options
@click.pass_obj
@asynchronous
async def delete(options: Options, *, workload_ids: Sequence[str], everything: bool, wait: bool, seconds: float) -> int:
    """Stop and remove workloads.

    The deletion goes on when the waiting ends early.

    \b
    Examples:
      fleetbeat workload delete web db
      fleetbeat workload delete --all --no-wait
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    if bool(workload_ids) == everything:
        raise click.UsageError("give either workload ids or --all")
    async with Front(options) as front:
        ids = await _all_ids(front) if everything else list(dict.fromkeys(workload_ids))
        deadline = time.monotonic() + (seconds if wait else 0)
        return await _each(options, ids, lambda i: _delete(front, i, deadline if wait else None))


async def _all_ids(front: Front) -> list[str]:
    request = fleetbeat_pb2.ListWorkloadsRequest()
    found = [w async for page in pages(front, front.fleet.ListWorkloads, request) for w in page.workloads]
    return [w.workload_id for w in found if not w.replica_of]  # copies go with their workload


async def _delete(front: Front, workload_id: str, deadline: float | None) -> str:
    request = control_pb2.DeleteWorkloadRequest(workload_id=workload_id)
    response = await front.write(front.control.DeleteWorkload, request)
    if not response.success:
        raise CommandError(response.error_message or "refused without a reason")
    if deadline is None:
        return "deleting"
    while await _is_there(front, workload_id):
        if time.monotonic() > deadline:
            raise CommandError("its node has not confirmed yet; the deletion goes on")
        await asyncio.sleep(_POLL_SECONDS)
    return "deleted"


async def _is_there(front: Front, workload_id: str) -> bool:
    try:
        await front.read(front.control.GetWorkload, control_pb2.GetWorkloadRequest(workload_id=workload_id))
    except NoSuchRecordError:
        return False
    return True


@click.command()
@click.argument("workload_ids", metavar="ID…", nargs=-1, required=True)
@common_options
@click.pass_obj
@asynchronous
async def retry(options: Options, workload_ids: Sequence[str]) -> int:
    """Try failed workloads again at once, with a fresh count of attempts.

    \b
    Example:
      fleetbeat workload retry web
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        return await _each(options, list(dict.fromkeys(workload_ids)), lambda i: _retry(front, i))


async def _retry(front: Front, workload_id: str) -> str:
    request = control_pb2.RetryWorkloadRequest(workload_id=workload_id)
    response = await front.write(front.control.RetryWorkload, request)
    if not response.accepted:
        raise CommandError(response.reason or "refused without a reason")
    return "will be tried again"


async def _each(options: Options, ids: Sequence[str], act: Callable[[str], Awaitable[str]]) -> int:
    """Act on each id, some at once; a failure concerns its own id only. Returns the exit code."""
    gate = asyncio.Semaphore(_AT_ONCE)
    failures: dict[str, str] = {}
    results: dict[str, str] = {}

    async def one(workload_id: str) -> None:
        async with gate:
            try:
                results[workload_id] = await act(workload_id)
            except CommandError as error:
                failures[workload_id] = error.message
                show.say(f"Error: {workload_id}: {error.message}")

    await asyncio.gather(*map(one, ids))
    rows = [(i, results[i]) for i in ids if i in results]
    data = [{"workload_id": i, "result": results.get(i, ""), "error": failures.get(i, "")} for i in ids]
    show.write(options.output, {"workloads": data}, *([show.Table(("ID", "RESULT"), rows)] if rows else []))
    return 1 if failures else 0
