"""Following workloads until they are as wanted: what a view says, and when to stop looking."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from scheduler.cli.connect import Front, NoSuchRecordError
from scheduler.cli.options import CommandError
from scheduler.pb import control_pb2

POLL_SECONDS = 0.3
FAILED_SECONDS = 3.0
"""A failure counts when it has lasted this long: the control plane starts a dead copy again at once."""
_AT_ONCE = 16


class Outcome(Enum):
    """How applying one workload ended."""

    DONE = "done"
    STORED = "stored"
    """Sent and not followed."""
    PENDING = "pending"
    """No node was found."""
    ERROR = "error"


@dataclass
class Followed:
    """One workload that was applied."""

    workload_id: str
    wanted: str
    """Running or Stopped."""
    revision_id: str = ""
    """Of what was applied; blank when the front did not say."""
    status: str = ""
    node_id: str = ""
    reason: str = ""
    outcome: Outcome | None = None
    failed_at: float | None = None
    """On the monotonic clock, when the present failure was first seen."""

    def line(self) -> str:
        """Say how it is now, in one line."""
        where = f" on {self.node_id}" if self.node_id else ""
        why = f": {' '.join(self.reason.split())}" if self.reason else ""
        return f"{self.workload_id}: {self.status or 'sent'}{where}{why}"


Report = Callable[[Sequence[Followed]], None]


def look(followed: Followed, view: control_pb2.WorkloadView, now: float) -> None:
    """Take in what the front says of a workload; sets the outcome when there is one."""
    if followed.revision_id and view.revision_id and view.revision_id != followed.revision_id:
        followed.reason = f"the front shows revision {view.revision_id}, not yet {followed.revision_id}"
        return
    followed.status, followed.node_id = view.status, view.assigned_node_id
    words = view.status.split(maxsplit=1)
    state = words[0] if words else "Unknown"
    followed.reason = "" if state == followed.wanted else reason_of(view)
    if state != "Failed":
        followed.failed_at = None
    if state == followed.wanted == "Running" and view.replicas_running < view.replicas:
        followed.reason = f"{view.replicas_running} of {view.replicas} copies run"
    elif state == followed.wanted == "Running" and 0 < view.replicas_updated < view.replicas:
        followed.reason = f"{view.replicas_updated} of {view.replicas} copies have the new version"
    elif state == followed.wanted:
        followed.outcome = Outcome.DONE
    elif state == "Failed":
        followed.failed_at = followed.failed_at or now
        if now - followed.failed_at >= FAILED_SECONDS:
            followed.outcome = Outcome.ERROR


def reason_of(view: control_pb2.WorkloadView) -> str:
    """Return why a workload is not running, as far as its view says."""
    return view.pending_reason or view.reason.message or view.failure_reason


def give_up(followed: Followed, seconds: float) -> None:
    """Decide what it means that the time is over."""
    if followed.outcome is None:
        waits = followed.status == "Pending" and not followed.node_id
        followed.outcome = Outcome.PENDING if waits else Outcome.ERROR
        followed.reason = f"not {followed.wanted} after {seconds:g}s" + (
            f": {followed.reason}" if followed.reason else ""
        )


async def follow(front: Front, items: Sequence[Followed], seconds: float, report: Report) -> None:
    """Look at workloads until each has an outcome or the time is over."""
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(_AT_ONCE)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(loop.time() + seconds):
            while open_items := [item for item in items if item.outcome is None]:
                await asyncio.gather(*(_poll(front, item, gate) for item in open_items))
                report(items)
                await asyncio.sleep(POLL_SECONDS)
    for item in items:
        give_up(item, seconds)
    report(items)


async def _poll(front: Front, item: Followed, gate: asyncio.Semaphore) -> None:
    request = control_pb2.GetWorkloadRequest(workload_id=item.workload_id)
    try:
        async with gate:
            response: Any = await front.read(front.control.GetWorkload, request)
    except NoSuchRecordError:
        item.status, item.reason, item.outcome = "Deleted", "somebody deleted it", Outcome.ERROR
    except CommandError as error:
        item.reason = error.message
    else:
        look(item, response.workload, time.monotonic())


def exit_code(items: Sequence[Followed]) -> int:
    """Return 0 when all is done, 2 when nothing could be placed, else 1."""
    outcomes = {item.outcome for item in items}
    if outcomes <= {Outcome.DONE, Outcome.STORED}:
        return 0
    return 2 if outcomes == {Outcome.PENDING} else 1
