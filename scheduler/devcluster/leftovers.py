"""End the children of an `up` that was killed and could not end them itself."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence

from scheduler.devcluster.folder import Folder
from scheduler.devcluster.plan import AGENTS
from scheduler.devcluster.processes import Known, kill_group

_GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.05


async def end_leftovers(folder: Folder, say: Callable[[str], None], *, agents_get: signal.Signals) -> int:
    """End what children.json still names, last stage first, and return how many there were.

    Args:
        folder: The data folder, locked by the caller.
        say: Told in words what is done.
        agents_get: SIGKILL leaves the agents' workloads running, for the next agent to adopt;
            SIGTERM lets the agents stop them.

    """
    left = {name: child for name, child in folder.read_children().items() if child.runs()}
    if left:
        say(f"ending {len(left)} processes that an earlier run left behind: {', '.join(left)}")
    for stage in sorted({child.stage for child in left.values()}, reverse=True):
        how = agents_get if stage == AGENTS else signal.SIGTERM
        await _end([child for child in left.values() if child.stage == stage], how)
    folder.write_children({})
    return len(left)


async def _end(children: Sequence[Known], how: signal.Signals) -> None:
    for child in children:
        child.send(how)
    deadline = time.monotonic() + _GRACE_SECONDS
    while left := [child for child in children if child.runs()]:
        if time.monotonic() > deadline:
            for child in left:
                kill_group(child.pid)
        await asyncio.sleep(_POLL_SECONDS)
