"""Who is silent, and whether silence may be believed.

A node's silence counts only while at least one front was listening without a gap: it is
measured from when the node was last heard, or from when listening began if that is later,
to when a front last proved that it listened. All these times come from one clock, Redis's.
After an outage of the control plane nobody is lost until everybody had the time to speak.

When many nodes of a shard fall silent at about the same time the cause is more likely
between us and them than in each of them: the brake holds, and nothing moves away from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from scheduler.domain.node import Drain, Node
from scheduler.domain.record import utc

CLOCK_TOLERANCE_SECONDS = 1.0
"""How far the clock of a front may be ahead of Redis's and its word still be taken."""


class HeardAt(Protocol):
    """When a node was last heard."""

    @property
    def at(self) -> float:
        """Unix seconds."""
        ...


class Listened(Protocol):
    """A front listened without a gap."""

    @property
    def since(self) -> float:
        """From these unix seconds on."""
        ...

    @property
    def at(self) -> float:
        """To these unix seconds."""
        ...


class PulseLog(Protocol):
    """Everything that was heard, at one moment."""

    @property
    def now(self) -> float:
        """The moment, in unix seconds."""
        ...

    @property
    def pulses(self) -> Mapping[str, HeardAt]:
        """Nodes by id; one that was never heard is not in it."""
        ...

    @property
    def fronts(self) -> Sequence[Listened]:
        """Fronts that listen or did lately."""
        ...

    @property
    def period_seconds(self) -> float:
        """How far apart what a front tells is, in seconds; a proof that it listens may be so much older."""
        ...


@dataclass(frozen=True, slots=True)
class Listening:
    """The last stretch of time in which somebody listened without a gap."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Brake:
    """Nodes that nothing may move away from, and why; no nodes when the brake is off."""

    held: frozenset[str] = frozenset()
    reason: str = ""


def listening(fronts: Iterable[Listened], now: float, slack_seconds: float) -> Listening | None:
    """Join the fronts' stretches that overlap into the latest one; None when it ended longer ago than the slack.

    Stretches that merely come close are not joined: a beat may have been lost between them.
    """
    start = end = None
    for front in sorted(fronts, key=lambda front: front.at, reverse=True):
        if front.at > now:  # the clock was set back: proves nothing
            continue
        if start is None:
            start, end = front.since, front.at
        elif front.at >= start:
            start = min(start, front.since)
    if start is None or end is None or end < now - slack_seconds:
        return None
    return Listening(start, end)


def silence_seconds(node: Node, log: PulseLog, slack_seconds: float) -> float:
    """Return how long the node has provably been silent; 0 when nobody can tell."""
    stretch = listening(log.fronts, log.now, slack_seconds + log.period_seconds)
    return 0.0 if stretch is None else _silence(node, log, stretch)


def silent_nodes(nodes: Iterable[Node], log: PulseLog, *, lease_seconds: float) -> dict[str, str]:
    """Return those Ready nodes that have been silent for the lease, each with the reason to record."""
    stretch = listening(log.fronts, log.now, slack_of(lease_seconds) + log.period_seconds)
    if stretch is None:
        return {}
    ready = (node for node in nodes if node.is_ready)
    return {n.node_id: _expired(n, log) for n in ready if _silence(n, log, stretch) >= lease_seconds}


def slack_of(lease_seconds: float) -> float:
    """Return how old the proof that we listen may be: a quarter of the lease."""
    return lease_seconds / 4


def brake(
    nodes: Collection[Node], *, share: float, min_nodes: int, window_seconds: float, of_what: str = "shard"
) -> Brake:
    """Hold the nodes of a shard, or of whatever these are the nodes of, that fell silent together.

    Nodes that became NotReady within one window count together. They are held when they are
    at least `min_nodes` and more than `share` of the nodes that were there when the window
    began; nodes lost long before neither count nor are held. Neither do drained nodes: they
    are empty, and to be switched off.
    """
    nodes = [node for node in nodes if node.drain != Drain.DRAINED]
    lost = sorted(((_since(n), n.node_id) for n in nodes if not n.is_ready), key=lambda one: one[0])
    window = timedelta(seconds=window_seconds)
    held: set[str] = set()
    worst, worst_of = 0, 0
    first = 0
    for last, (since, _) in enumerate(lost):
        while since - lost[first][0] > window:
            first += 1
        together = last - first + 1
        there = len(nodes) - first
        if together >= min_nodes and together > share * there:
            held.update(node_id for _, node_id in lost[first : last + 1])
            worst, worst_of = max((worst, worst_of), (together, there))
    if not held:
        return Brake()
    whose = "the shard" if of_what == "shard" else of_what
    return Brake(frozenset(held), f"{worst} of {worst_of} nodes of {whose} fell silent together; nothing moves")


def _since(node: Node) -> datetime:
    return node.status_updated_at or utc(0)


def _silence(node: Node, log: PulseLog, stretch: Listening) -> float:
    """Silence ends at the last proof of listening, so a front that stalls or dies makes nobody silent.

    A pulse from the future proves nothing (the clock was set back). A node that registered or
    was heard again, but whose pulse has not been written yet, counts from that moment; its
    record carries another clock's time, which is only believed while it is near ours.
    """
    pulse = log.pulses.get(node.node_id)
    heard = pulse.at if pulse and pulse.at <= log.now else stretch.start
    since = node.status_updated_at.timestamp() if node.is_ready and node.status_updated_at else 0.0
    if since <= log.now + CLOCK_TOLERANCE_SECONDS:
        heard = max(heard, min(since, log.now))
    return max(0.0, stretch.end - max(heard, stretch.start))


def _expired(node: Node, log: PulseLog) -> str:
    pulse = log.pulses.get(node.node_id)
    last = utc(pulse.at).isoformat() if pulse else "never"
    return f"heartbeat expired: last heartbeat {last}"
