"""What travels on the queues. Parsed once, at the start of a task.

Unknown fields are dropped, so that workers of the last version understand a newer beat.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from scheduler.domain.ids import ID_PATTERN
from scheduler.domain.shard import MAX_SHARDS, Cycle

LoopName = Literal["reconcile", "detect_drift", "monitor_nodes", "monitor_workloads"]
Identifier = Annotated[str, Field(pattern=f"^{ID_PATTERN}$", max_length=128)]

CHUNK_TASK = "tasks.chunk"
WORKLOAD_TASK = "tasks.reconcile_workload"
WAKE_UP_SECONDS = 60.0
"""A wake-up older than this has long been overtaken by cycles."""


class Message(BaseModel):
    """Something to do for one shard."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    shard: int = Field(ge=0, lt=MAX_SHARDS)
    generation: int = Field(ge=0)
    """Of the shard map that the sender knew."""
    traceparent: str = Field(default="", max_length=64)
    """The trace that this belongs to, as W3C writes it; blank: none."""

    @property
    def task(self) -> str:
        """The name of the task that takes this message."""
        raise NotImplementedError

    @property
    def about(self) -> dict[str, str | int]:
        """What logs and spans of the task say of it."""
        raise NotImplementedError

    def summary(self) -> str:
        """Say in a few words what this is about, for people who look at Flower."""
        raise NotImplementedError


class CycleMessage(Message):
    """One cycle of a loop over a shard (chunk None), or one chunk of it."""

    loop: LoopName
    slot: int = Field(ge=0)
    term: int = Field(ge=0)
    due: float = 0.0
    """Unix seconds at which the slot began."""
    expires: float
    """Unix seconds after which the message is of no use: for a cycle, the end of its slot."""
    chunk: int | None = Field(default=None, ge=0)
    nodes: tuple[str, ...] = ()
    """The nodes of this chunk; empty in the message that opens the cycle."""
    unassigned: bool = False
    """Whether the chunk covers the shard's workloads that have no node."""

    @property
    def cycle(self) -> Cycle:
        """What this message belongs to."""
        return Cycle(self.term, self.slot, self.loop, self.shard, self.generation)

    @property
    def task(self) -> str:
        """The task that opens the cycle, or the one that runs a chunk."""
        return f"tasks.{self.loop}" if self.chunk is None else CHUNK_TASK

    @property
    def about(self) -> dict[str, str | int]:
        """Loop, shard and slot."""
        return {"loop": self.loop, "shard": self.shard, "cycle": self.slot}

    def summary(self) -> str:
        """Name shard, slot and term; for a chunk its loop, number and size too."""
        cycle = f"shard={self.shard} slot={self.slot} term={self.term}"
        if self.chunk is None:
            return cycle
        return f"{cycle} loop={self.loop} chunk={self.chunk} nodes={len(self.nodes)}"


class WorkloadMessage(Message):
    """Look at this workload now, do not wait for the next cycle."""

    workload_id: Identifier

    @property
    def task(self) -> str:
        """The one task for all of them."""
        return WORKLOAD_TASK

    @property
    def about(self) -> dict[str, str | int]:
        """Workload and shard."""
        return {"workload_id": self.workload_id, "shard": self.shard}

    def summary(self) -> str:
        """Name shard and workload."""
        return f"shard={self.shard} workload={self.workload_id}"
