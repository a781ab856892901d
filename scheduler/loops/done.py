"""What a step did, and who takes the next one."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.domain.shard import shard_of, shard_of_workload
from scheduler.leadership.shards import current_map
from scheduler.loops.context import LoopContext


@dataclass(frozen=True, slots=True)
class Done:
    """What a step did."""

    what: str
    """As the reference system calls it."""
    success: bool = True
    again: bool = False
    """The next step is due at once, and this worker is the one to take it."""
    why: str = ""
    """For people: the reason of the action, or what stood against it."""
    anew: bool = False
    """It gave an order, a node, or used up a try: worth telling even if the step before tells the same."""


def goes_on_here(ctx: LoopContext, workload_id: str, old_node: str, new_node: str) -> bool:
    """Whether the shard that drove a workload also drives its new node; if not, wake the one that does.

    old_node: the one it was driven by; blank: it had none.
    """
    shards = current_map(ctx.cache)
    if shards and shard_of(new_node, shards) == shard_of_workload(workload_id, old_node, shards):
        return True
    ctx.wake(workload_id, new_node)
    return False
