"""Messages: strict where it matters, lenient towards newer senders."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from scheduler.domain.shard import Cycle
from scheduler.queues.messages import CycleMessage, WorkloadMessage

CYCLE: dict[str, Any] = {
    "loop": "reconcile",
    "shard": 2,
    "slot": 340_000_001,
    "term": 77,
    "generation": 3,
    "expires": 1_700_000_005.0,
}


def test_a_cycle_survives_the_wire() -> None:
    """JSON and back, chunk included."""
    sent = CycleMessage(**CYCLE, chunk=1, nodes=("n-1", "n-2"), unassigned=True)
    assert CycleMessage(**json.loads(sent.model_dump_json(exclude_defaults=True))) == sent
    assert sent.cycle == Cycle(77, 340_000_001, "reconcile", 2, 3)


def test_the_task_follows_from_the_message() -> None:
    """Openers, chunks and wake-ups have their own tasks."""
    assert CycleMessage(**CYCLE).task == "tasks.reconcile"
    assert CycleMessage(**CYCLE, chunk=0).task == "tasks.chunk"
    assert WorkloadMessage(shard=0, generation=1, workload_id="web").task == "tasks.reconcile_workload"


def test_summaries_say_shard_slot_and_term() -> None:
    """What Flower shows in the column kwargs."""
    assert CycleMessage(**CYCLE).summary() == "shard=2 slot=340000001 term=77"
    assert CycleMessage(**CYCLE, chunk=1, nodes=("a", "b")).summary() == (
        "shard=2 slot=340000001 term=77 loop=reconcile chunk=1 nodes=2"
    )
    assert WorkloadMessage(shard=0, generation=1, workload_id="web").summary() == "shard=0 workload=web"


def test_fields_of_a_newer_version_are_ignored() -> None:
    """A rolling upgrade has newer beats and older workers."""
    assert CycleMessage(**CYCLE, colour="blue") == CycleMessage(**CYCLE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"loop": "reconcyle"},
        {"shard": -1},
        {"shard": 1024},
        {"slot": -1},
        {"term": "x"},
        {"generation": None},
        {"chunk": -1},
        {"expires": "soon"},
    ],
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    """A message that is no cycle fails at the edge of the task."""
    with pytest.raises(ValidationError):
        CycleMessage(**{**CYCLE, **wrong})


@pytest.mark.parametrize("workload_id", ["", "a/b", "../x", "x" * 129, "-a"])
def test_a_wake_up_names_a_possible_workload(workload_id: str) -> None:
    """Ids become parts of keys."""
    with pytest.raises(ValidationError):
        WorkloadMessage(shard=0, generation=1, workload_id=workload_id)
