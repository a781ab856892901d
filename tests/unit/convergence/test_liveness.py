"""Silence, and when it may be believed."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.convergence.liveness import Listening, brake, listening, silence_seconds, silent_nodes
from scheduler.domain.node import Node
from scheduler.domain.record import utc

LEASE = 30.0
NOW = 1_000_000.0


@dataclass(frozen=True)
class Heard:
    """A pulse."""

    at: float


@dataclass(frozen=True)
class Front:
    """A front's stretch of listening."""

    since: float
    at: float


@dataclass(frozen=True)
class Log:
    """What was heard."""

    now: float = NOW
    pulses: dict[str, Heard] = field(default_factory=dict)
    fronts: list[Front] = field(default_factory=list)
    period_seconds: float = 0.0


def node(name: str = "n1", *, ready: bool = True, since: float = NOW - 3600) -> Node:
    """Return a node that has been in its state since then."""
    return Node(node_id=name, status="Ready" if ready else "NotReady", status_updated_at=utc(since))


def log(heard: float | None, *fronts: Front, now: float = NOW) -> Log:
    """Return a log in which n1 was heard so many seconds ago."""
    pulses = {} if heard is None else {"n1": Heard(NOW - heard)}
    return Log(now, pulses, list(fronts or (Front(NOW - 3600, NOW),)))


def silent(view: Log, *nodes: Node) -> list[str]:
    """Return who is silent."""
    return sorted(silent_nodes(nodes or (node(),), view, lease_seconds=LEASE))


def test_F7_a_node_is_silent_after_its_lease_and_not_before() -> None:
    """Judged to the second, with the reference system's words."""
    assert silent(log(29.9)) == []
    assert silent(log(30.0)) == ["n1"]
    reason = silent_nodes([node()], log(30.0), lease_seconds=LEASE)["n1"]
    assert reason == f"heartbeat expired: last heartbeat {utc(NOW - 30).isoformat()}"


def test_F7_a_node_that_is_not_ready_is_not_judged_again() -> None:
    """A transition happens once."""
    assert silent(log(500.0), node(ready=False)) == []


def test_F7_a_node_that_never_spoke_is_silent_once_somebody_listened_for_the_lease() -> None:
    """No pulse counts from when listening began, or from its registration if that is later."""
    assert silent(log(None, Front(NOW - 31, NOW))) == ["n1"]
    assert silent(log(None, Front(NOW - 29, NOW))) == []
    assert silent(log(None, Front(NOW - 3600, NOW)), node(since=NOW - 5)) == []


def test_scenario_L8_nobody_is_silent_while_no_front_listened_for_the_lease() -> None:
    """After an outage of all fronts every node has the time to speak first."""
    assert silent(log(3600.0, Front(NOW - 29.9, NOW))) == []
    assert silent(log(3600.0, Front(NOW - 30.0, NOW))) == ["n1"]
    assert silent(Log(NOW, {"n1": Heard(NOW - 3600)}, [])) == []


def test_scenario_L8_a_gap_between_two_fronts_starts_the_count_anew() -> None:
    """Stretches that overlap count as one; those that do not, do not, however short the gap."""
    first, second = Front(NOW - 3600, NOW - 10), Front(NOW - 10, NOW)
    assert silent(log(60.0, first, second)) == ["n1"]
    assert silent(log(60.0, Front(NOW - 3600, NOW - 10.1), second)) == []


def test_scenario_L12_fronts_restarted_one_by_one_leave_no_gap() -> None:
    """Each restart overlaps the other front's listening, so listening never stopped."""
    fronts = [Front(NOW - 100, NOW - 60), Front(NOW - 70, NOW - 20), Front(NOW - 30, NOW)]
    assert listening(fronts, NOW, 1.0) == Listening(NOW - 100, NOW)


def test_9_2_silence_ends_with_the_last_proof_of_listening() -> None:
    """A front that stalls makes nobody silent, and after the slack nobody is judged at all."""
    assert silent(log(33.0, Front(NOW - 3600, NOW - 4))) == []
    assert silent(log(34.0, Front(NOW - 3600, NOW - 4))) == ["n1"]
    assert silent(log(3600.0, Front(NOW - 7200, NOW - 8))) == []


def test_9_2_times_from_the_future_prove_nothing() -> None:
    """After Redis's clock was set back, a pulse ahead of it neither saves nor condemns a node."""
    assert silence_seconds(node(), log(-100.0, Front(NOW - 10, NOW)), 1.0) == 10.0
    assert listening([Front(NOW - 3600, NOW + 5)], NOW, 1.0) is None


def test_9_2_a_front_whose_clock_runs_ahead_does_not_keep_a_dead_node_alive() -> None:
    """A record's time an hour in the future is no sign of life; one within a second is."""
    assert silent(log(60.0), node(since=NOW + 3600)) == ["n1"]
    assert silent(log(60.0), node(since=NOW + 1)) == []


def fleet(lost: dict[str, float], total: int) -> list[Node]:
    """Return so many nodes, of which these were lost so many seconds ago."""
    gone = [node(name, ready=False, since=NOW - ago) for name, ago in lost.items()]
    return gone + [node(f"ready-{i}") for i in range(total - len(gone))]


def held(nodes: list[Node]) -> set[str]:
    """Return whom the brake holds, with a third, three nodes and 90 seconds."""
    return set(brake(nodes, share=1 / 3, min_nodes=3, window_seconds=90).held)


def test_scenario_L14_many_nodes_silent_at_once_hold_all_moves() -> None:
    """Six of ten within a minute: none of them moves, and the reason says so."""
    nodes = fleet({f"n{i}": 60 - 10 * i for i in range(6)}, 10)
    assert held(nodes) == {f"n{i}" for i in range(6)}
    assert "6 of 10" in brake(nodes, share=1 / 3, min_nodes=3, window_seconds=90).reason


def test_scenario_L14_single_losses_are_not_held() -> None:
    """A third of the nodes or fewer, or fewer than three, move at once."""
    assert held(fleet({"n1": 10}, 10)) == set()
    assert held(fleet({"n1": 10, "n2": 11}, 3)) == set()
    assert held(fleet({"n1": 10, "n2": 11, "n3": 12}, 9)) == set()
    assert held(fleet({"n1": 10, "n2": 11, "n3": 12}, 8)) == {"n1", "n2", "n3"}
    assert held([]) == set()


def test_scenario_L14_nodes_lost_long_ago_neither_count_nor_are_held() -> None:
    """Four dead nodes of ten do not keep a fifth from being replaced, days later."""
    old = {f"old{i}": 864_000.0 + 600 * i for i in range(4)}
    assert held(fleet({**old, "n1": 10}, 10)) == set()
    assert held(fleet({**old, "n1": 10, "n2": 11, "n3": 12}, 10)) == {"n1", "n2", "n3"}
    assert held(fleet({**old, "n1": 10, "n2": 11, "n3": 12}, 13)) == set()


def test_scenario_L14_the_brake_stays_while_its_nodes_stay_silent() -> None:
    """It does not let go because time passes, only because nodes come back or an operator acts."""
    lost = {f"n{i}": 36_000.0 + i for i in range(4)}
    assert held(fleet(lost, 6)) == set(lost)
    back = fleet(dict(list(lost.items())[:2]), 6)
    assert held(back) == set()
