"""The decision about workloads of lost nodes, case by case."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from scheduler.convergence.actions import Policy
from scheduler.convergence.liveness import Brake
from scheduler.convergence.loss import (
    NO_FAILOVER_TARGET,
    NODE_LOST,
    ORPHANED,
    PINNED_AWAIT_NODE,
    Move,
    Stay,
    Wait,
    away,
    exclusive_silence_seconds,
    hold_reason,
    loss_over,
)
from scheduler.domain.node import Node
from scheduler.domain.policy import PINNED_REASON_KEY
from scheduler.domain.workload import Actual, ManagedVolume, Phase, Reason, StatusInfo, WorkloadSpec, WorkloadStatus
from scheduler.telemetry.pulses import FrontPulse, Pulse, PulseView

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POLICY = Policy(grace_seconds=60, lease_seconds=30, stop_after_seconds=60, orphan_after_seconds=86_400)
NEEDED = 60 + 30 + 7.5
"""Of an exclusive workload: its stop_after, a lease, and a margin of a quarter of that."""


def spec(**metadata: str) -> WorkloadSpec:
    """Return a container with this metadata; a dot is written as two underscores."""
    named = {key.replace("__", "."): value for key, value in metadata.items()}
    return WorkloadSpec(id="web", type="container", metadata=named)


def status(phase: str = Phase.RUNNING, code: str = "", **fields: object) -> WorkloadStatus:
    """Return the status of a copy on n-1."""
    reason = Reason(code=code) if code else None
    info = StatusInfo(actual_state=Actual.RUNNING, reason=reason)
    return WorkloadStatus(id="web", status=phase, node_id="n-1", epoch=3, status_info=info).replace(**fields)


def node(seconds: float = 61, **fields: object) -> Node:
    """Return a node that has been NotReady for so long."""
    since = NOW - timedelta(seconds=seconds)
    return Node(
        node_id="n-1", status="NotReady", status_reason="silent", status_updated_at=since, enforces_stop_after=True
    ).replace(**fields)


def decide(of: WorkloadSpec, at: Node, seen: WorkloadStatus | None = None, hold: str = "") -> Move | Wait | Stay:
    """Decide now."""
    return away(of, seen or status(), at, NOW, POLICY, hold)


def test_F32_a_workload_moves_when_the_grace_is_over_and_nothing_holds_it() -> None:
    """Before that, and while something holds, it waits."""
    assert isinstance(decide(spec(), node(59)), Wait)
    assert decide(spec(), node(60)) == Move("node n-1 is lost: silent")
    held = decide(spec(), node(60), hold="the brake")
    assert isinstance(held, Wait)
    assert (held.name, held.why) == ("AwaitFailover", "the brake")


def test_F34_a_pinned_workload_stays_and_says_so_once() -> None:
    """Pending, with the reason; the second look has nothing to write; allow_move lets it go at the next look."""
    pinned = spec(persys__storage__local="true")
    stays = decide(pinned, node())
    assert isinstance(stays, Stay)
    assert (stays.code, stays.phase, stays.pinned) == (PINNED_AWAIT_NODE, Phase.PENDING, True)
    told = status(Phase.PENDING, PINNED_AWAIT_NODE)
    assert isinstance(decide(pinned, node(), told), Wait)
    let_go = pinned.replace(metadata={**pinned.metadata, "persys.scheduling.allow_move": "yes"})
    assert isinstance(decide(let_go, node(), told), Move)


def test_F34_what_was_over_before_its_node_was_lost_stays_over() -> None:
    """A stopped or failed copy keeps its state."""
    for phase in (Phase.STOPPED, Phase.FAILED):
        assert isinstance(decide(spec(persys__storage__local="1"), node(10**6), status(phase)), Wait)


def test_scenario_L6_a_replacement_waits_for_its_own_delay_beyond_the_grace() -> None:
    """replace_delay counts from the end of the grace."""
    delayed = spec(fleetbeat__replace_delay="2m")
    waits = decide(delayed, node(179))
    assert isinstance(waits, Wait)
    assert waits.until == NOW + timedelta(seconds=1)
    assert isinstance(decide(delayed, node(180)), Move)


def test_scenario_L7_without_replacement_it_is_unknown_then_lost_and_never_moves() -> None:
    """lost_after changes the state only; without it the state stays unknown for ever."""
    kept = spec(fleetbeat__replace="false", fleetbeat__lost_after="10m")
    assert isinstance(decide(kept, node(599)), Wait)
    lost = decide(kept, node(600))
    assert isinstance(lost, Stay)
    assert (lost.code, lost.phase) == (NODE_LOST, Phase.LOST)
    assert isinstance(decide(kept, node(601), status(Phase.LOST, NODE_LOST)), Wait)
    assert isinstance(decide(spec(fleetbeat__replace="no"), node(3600)), Wait)


def test_scenario_L16_after_a_day_what_stayed_is_orphaned_and_what_was_over_is_not() -> None:
    """Its share of the node is released, once."""
    pinned = spec(persys__storage__local="true")
    orphan = decide(pinned, node(86_400), status(Phase.PENDING, PINNED_AWAIT_NODE))
    assert isinstance(orphan, Stay)
    assert (orphan.code, orphan.phase, orphan.releases) == (ORPHANED, Phase.ORPHANED, True)
    assert isinstance(decide(pinned, node(90_000), status(Phase.ORPHANED, ORPHANED)), Wait)
    assert isinstance(decide(pinned, node(90_000), status(Phase.STOPPED)), Wait)
    assert isinstance(decide(spec(), node(90_000)), Move), "what can move, moves"
    assert isinstance(decide(spec(), node(90_000), hold="the brake"), Stay)


def test_scenario_L15_a_fenced_node_lets_exclusive_work_go_before_the_grace() -> None:
    """Other work still waits for the grace: the fence is about copies, not about haste."""
    fenced = node(1, fenced_at=NOW, fenced_by="power off")
    assert decide(spec(fleetbeat__exclusive="true"), fenced) == Move("node n-1 is lost: power off")
    assert isinstance(decide(spec(), fenced), Wait)


@pytest.mark.parametrize(
    ("told", "metadata", "needed"),
    [
        (None, {}, NEEDED),
        (60_000, {}, NEEDED),
        (60_000, {"fleetbeat__stop_after": "10m"}, 600 + 37.5),
        (600_000, {"fleetbeat__stop_after": "1m"}, 600 + 37.5),
        (60_000, {"fleetbeat__stop_after": "1s"}, NEEDED),
        (None, {"fleetbeat__stop_after": "1s"}, 30 + 37.5),
        (0, {}, None),
    ],
)
def test_scenario_L15_the_proof_counts_with_the_longest_time_that_the_node_may_act_on(
    told: int | None, metadata: dict[str, str], needed: float | None
) -> None:
    """What it was told and what is wanted now, at least the lease; never told: no silence proves anything."""
    exclusive = spec(fleetbeat__exclusive="true", **metadata)
    assert exclusive_silence_seconds(exclusive, status(told_stop_after_ms=told), POLICY) == needed


def heard(seconds_ago: float) -> PulseView:
    """Return pulses: n-1 was heard so long ago, and a front has listened all the time."""
    return PulseView(10_000.0, {"n-1": Pulse("n-1", 10_000.0 - seconds_ago)}, [FrontPulse("f", 0.0, 10_000.0)])


@pytest.mark.parametrize(
    ("silent", "exclusive", "enforces", "fenced", "braked", "moves"),
    [
        (90, False, True, False, False, True),
        (89, False, True, False, False, False),
        (90, False, True, False, True, False),
        (90, True, True, False, False, False),
        (NEEDED, True, True, False, False, True),
        (NEEDED, True, True, False, True, False),
        (10**5, True, False, False, False, False),
        (0, True, False, True, True, True),
        (90, False, False, False, False, True),
    ],
)
def test_scenario_L15_what_holds_a_workload(
    silent: float, *, exclusive: bool, enforces: bool, fenced: bool, braked: bool, moves: bool
) -> None:
    """Silence, the brake, the proof for exclusive work, and an operator's word, which counts most."""
    at = node(enforces_stop_after=enforces, **({"fenced_at": NOW} if fenced else {}))
    brake = Brake(frozenset({"n-1"}), "3 of 4 nodes fell silent together") if braked else Brake()
    wanted = spec(fleetbeat__exclusive="true") if exclusive else spec()
    why = hold_reason(wanted, status(), at, POLICY, brake=brake, pulses=heard(silent))
    assert (why == "") == moves, why


def test_scenario_L15_who_must_confirm_is_told_how() -> None:
    """The reason names the command."""
    why = hold_reason(
        spec(fleetbeat__exclusive="1"),
        status(),
        node(enforces_stop_after=False),
        POLICY,
        brake=Brake(),
        pulses=heard(10**6),
    )
    assert "does not stop exclusive work by itself" in why
    assert "fleetbeat node fence n-1" in why


def test_without_pulses_nothing_moves_that_no_operator_vouches_for() -> None:
    """Silence that nobody can look up proves nothing."""
    assert hold_reason(spec(), status(), node(), POLICY, brake=Brake(), pulses=None)
    assert not hold_reason(spec(), status(), node(fenced_at=NOW), POLICY, brake=Brake(), pulses=None)


def test_V1_a_volume_that_one_node_writes_makes_its_workload_exclusive() -> None:
    """It waits for the proof like any other exclusive work."""
    volume = ManagedVolume(name="data", driver="ceph-rbd", access_mode="ReadWriteOnce")
    owner = WorkloadSpec(id="db", type="container", managed_volumes=(volume,))
    assert hold_reason(owner, status(), node(), POLICY, brake=Brake(), pulses=heard(91))
    assert not hold_reason(owner, status(), node(), POLICY, brake=Brake(), pulses=heard(NEEDED))


def test_what_a_loss_left_in_a_status_goes_when_the_node_is_heard() -> None:
    """The reason and the pinned reason; a reason of another kind stays."""
    lost = status(code=NO_FAILOVER_TARGET, metadata={PINNED_REASON_KEY: "x", "kept": "y"})
    over = loss_over(lost)
    assert over.status_info.reason is None
    assert over.metadata == {"kept": "y"}
    other = status(code="IMAGE_NOT_FOUND")
    assert loss_over(other) is other
