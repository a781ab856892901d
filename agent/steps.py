"""What to do next with one workload: pure decisions on plain facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from agent.records import Desired, Order, State

FIRST_RESTART_SECONDS = 0.1
MAX_RESTART_SECONDS = 30.0
STABLE_SECONDS = 60.0
"""A copy that ran this long ends a series of restarts."""


class Step(Enum):
    """The next act of a workload's driver."""

    ADOPT = auto()
    REMOVE = auto()
    STOP = auto()
    START = auto()
    WAIT = auto()


@dataclass(frozen=True)
class Facts:
    """Where a workload stands."""

    order: Order
    adopted: bool
    """The runtimes have been asked for a copy that an earlier agent left."""
    deleting: bool
    parked: bool
    """The agent is ending and takes its workloads along."""
    copy_revision: str | None
    """The revision that runs; None: nothing runs."""
    held: bool
    """Nothing is started until the control plane orders it again."""
    wait_seconds: float
    """How long a restart must still wait."""


def next_step(facts: Facts) -> Step:
    """Return the next step; each step changes the facts, and then the question is asked again."""
    if not facts.adopted:
        return Step.ADOPT
    if facts.deleting:
        return Step.REMOVE
    if facts.copy_revision is not None:
        wanted = not facts.parked and _wanted(facts.order, facts.copy_revision)
        return Step.WAIT if wanted else Step.STOP
    if facts.parked:
        return Step.WAIT
    if facts.order.desired is Desired.RUNNING and not facts.held and facts.wait_seconds <= 0:
        return Step.START
    return Step.WAIT


def _wanted(order: Order, copy_revision: str) -> bool:
    return order.desired is Desired.RUNNING and order.refusal is None and order.revision == copy_revision


def is_same(known: Order, new: Order) -> bool:
    """Say whether the new order asks for what the known one asks for, epochs aside."""
    return known.revision == new.revision and known.desired == new.desired and known.type == new.type


def is_on_its_way(order: Order, state: State, *, held: bool) -> bool:
    """Say whether a repeated order has nothing to add: it is fulfilled or being worked on."""
    if order.desired is Desired.STOPPED:
        return state is not State.FAILED
    return not held and state is not State.FAILED


@dataclass(frozen=True)
class Ended:
    """How a copy ended."""

    exit_code: int | None
    """None: unknown, the agent that started it is gone."""
    ran_seconds: float


def is_new_series(ended: Ended) -> bool:
    """Say whether the copy ran long enough to forget the restarts before it."""
    return ended.ran_seconds >= STABLE_SECONDS


def restart_delay(policy: str, max_restarts: int, series: int, ended: Ended) -> float | None:
    """Return after how many seconds to start again, or None to leave it.

    `series` counts the restarts in a row so far; 100 ms doubling up to 30 s. An unknown exit counts as a failure.
    """
    if policy == "no" or (policy == "on-failure" and ended.exit_code == 0):
        return None
    if policy == "on-failure" and 0 < max_restarts <= series:
        return None
    return min(FIRST_RESTART_SECONDS * 2.0 ** min(series, 30), MAX_RESTART_SECONDS)
