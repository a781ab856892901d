"""Which copies to create, change and remove."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.convergence.replicas import Change, What, changes, paced
from scheduler.domain.errors import InvalidInput
from scheduler.domain.policy import max_unavailable
from scheduler.domain.replicas import (
    check_replicas,
    follows,
    number_of,
    replica_id,
    replica_set,
    replica_spec,
    split_replica_id,
)
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import (
    Actual,
    Desired,
    StatusInfo,
    VmDisk,
    VmNetwork,
    VmSpec,
    WorkloadSpec,
    WorkloadStatus,
)
from tests.support.placement import spec


def parent(replicas: int, **changed: object) -> WorkloadSpec:
    """Return a stored workload that wants so many copies."""
    found = spec("web", replicas=replicas).replace(**changed)
    return found.replace(revision_id=revision_of(found))


def copies(of: WorkloadSpec, *numbers: int, **changed: object) -> dict[str, WorkloadSpec]:
    """Return copies as they are stored."""
    found = (replica_spec(of, number).replace(**changed) for number in numbers)
    return {copy.id: copy for copy in found}


WEB = parent(3)
CREATE, UPDATE, REMOVE = What.CREATE, What.UPDATE, What.REMOVE
DELETED = Desired.DELETED


@pytest.mark.parametrize(
    ("of", "there", "expected"),
    [
        (parent(1), {}, []),
        (WEB, {}, [(CREATE, "web.2"), (CREATE, "web.3")]),
        (WEB, copies(WEB, 2), [(CREATE, "web.3")]),
        (WEB, copies(WEB, 2, 3), []),
        (WEB, copies(WEB, 2, 3, 4, 10), [(REMOVE, "web.10"), (REMOVE, "web.4")]),
        (WEB, copies(WEB, 2, 4), [(REMOVE, "web.4"), (CREATE, "web.3")]),
        (parent(1), copies(WEB, 2, 3), [(REMOVE, "web.3"), (REMOVE, "web.2")]),
        (parent(3, image="b"), copies(WEB, 2, 3), [(UPDATE, "web.2"), (UPDATE, "web.3")]),
        (parent(3, desired_state="Stopped"), copies(WEB, 2, 3), [(UPDATE, "web.2"), (UPDATE, "web.3")]),
        (parent(2, metadata={"a": "b"}), copies(WEB, 2), [(UPDATE, "web.2")]),
        (parent(2, desired_state=DELETED), copies(WEB, 2), [(REMOVE, "web.2")]),
        (None, copies(WEB, 2, 3), [(REMOVE, "web.3"), (REMOVE, "web.2")]),
        (WEB, copies(WEB, 2, 3, desired_state=DELETED), []),
        (None, copies(WEB, 2, desired_state=DELETED), []),
        (WEB, {"web.2": spec("web.2"), **copies(WEB, 3)}, []),
        (None, {"web.2": spec("web.2")}, []),
        (parent(2, replica_of="site"), {}, []),
    ],
)
def test_F87_what_copies_need(
    of: WorkloadSpec | None, there: dict[str, WorkloadSpec], expected: list[tuple[What, str]]
) -> None:
    """Removals first, the highest first; a copy that is being removed is waited for; a user's own is left alone."""
    assert changes(of, there) == [Change(*one) for one in expected]


@given(st.integers(1, 30), st.sets(st.integers(2, 40)), st.booleans())
def test_F87_after_all_changes_there_are_the_wanted_copies(wanted: int, numbers: set[int], changed: bool) -> None:
    """And then nothing is left to do."""
    of = parent(wanted, image="new") if changed else parent(wanted)
    there = copies(WEB, *numbers)
    for change in changes(of, there):
        if change.what is REMOVE:
            del there[change.id]
        else:
            number = split_replica_id(change.id)
            assert number
            there[change.id] = replica_spec(of, number[1])
    assert sorted(map(number_of, there.values())) == list(range(2, wanted + 1))
    assert changes(of, there) == []


def test_F87_a_copy_has_the_content_and_the_policies_of_its_workload() -> None:
    """But names of its own, so that two copies on one node do not meet."""
    of = parent(
        3, type="compose", name="web", project_name="web", metadata={"fleetbeat.anti_affinity": "g"}, labels={"a": "b"}
    )
    copy = replica_spec(of, 2)
    assert (copy.id, copy.name, copy.replica_of, copy.replicas) == ("web.2", "web.2", "web", 1)
    assert copy.project_name.startswith("web-2-")
    assert (copy.labels, copy.metadata, copy.image) == (of.labels, of.metadata, of.image)
    assert copy.revision_id == revision_of(copy) != of.revision_id
    assert follows(copy, of)
    assert not follows(copy, parent(3, image="other"))
    assert (replica_set(of), replica_set(copy), replica_set(parent(1))) == ("web", "web", "")


def test_F87_the_number_of_copies_is_not_content() -> None:
    """Scaling restarts nothing."""
    assert revision_of(parent(1)) == revision_of(parent(7))


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        ("web.2", ("web", 2)),
        ("web.2.3", ("web.2", 3)),
        ("web.1000", ("web", 1000)),
        ("web.1", None),
        ("web.02", None),
        ("web.1001", None),
        ("web.99999999999999999999", None),
        ("web", None),
        ("web.x", None),
        ("web.²", None),
    ],
)
def test_F87_ids_of_copies(identifier: str, expected: tuple[str, int] | None) -> None:
    """Workload, dot, number from 2 on, in one spelling only."""
    assert split_replica_id(identifier) == expected
    assert expected is None or replica_id(*expected) == identifier


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (parent(0), "1 to 1000"),
        (parent(1001), "1 to 1000"),
        (parent(2).replace(id="x" * 127), "shorter id"),
        (parent(2, vm=VmSpec(disks=(VmDisk(path="/a.qcow2"),))), "a disk at a path"),
        (parent(2, vm=VmSpec(networks=(VmNetwork(mac_address="0:1"),))), "a fixed MAC"),
    ],
)
def test_F87_impossible_numbers_of_copies_are_refused(wanted: WorkloadSpec, words: str) -> None:
    """By name of the field and what is allowed."""
    with pytest.raises(InvalidInput, match=words) as error:
        check_replicas(wanted)
    assert error.value.field == "replicas"


def test_F87_one_copy_may_have_what_two_cannot_share() -> None:
    """The longest id, and a VM with everything fixed."""
    check_replicas(parent(1, vm=VmSpec(disks=(VmDisk(path="/a"),))).replace(id="x" * 128))


# How many get a new version at once


def runs(copy: WorkloadSpec, actual: str = Actual.RUNNING, revision: str = "") -> WorkloadStatus:
    """Return the status of a copy whose node has carried out its spec, or another one."""
    info = StatusInfo(actual_state=actual)
    return WorkloadStatus(id=copy.id, node_id="n", observed_revision=revision or copy.revision_id, status_info=info)


def rollout(pace: str, old: WorkloadSpec, new: WorkloadSpec, down: set[str], starts: bool) -> tuple[list[int], int]:
    """Roll a version out: return how many copies each turn changed, and the most that it took down at once."""
    there = {old.id: new, **copies(old, *range(2, old.replicas + 1))}
    statuses: dict[str, WorkloadStatus | None] = {
        i: runs(spec if i != old.id else old, Actual.FAILED if i in down else Actual.RUNNING)
        for i, spec in there.items()
    }
    new = there[old.id] = new.replace(metadata={"fleetbeat.max_unavailable": pace})
    turns, worst = [], 0
    for _ in range(60):
        further = {i: spec for i, spec in there.items() if i != old.id}
        due = paced(new, changes(new, further), further, statuses)
        turns.append(len(due))
        for change in due:
            split = split_replica_id(change.id)
            assert split
            there[change.id] = replica_spec(new, split[1])
        worst = max(
            worst,
            sum(
                not (s and s.actual == "Running" and s.observed_revision == there[i].revision_id)
                for i, s in statuses.items()
                if i not in down
            ),
        )
        statuses |= {
            i: runs(spec, Actual.RUNNING if starts else Actual.FAILED)
            for i, spec in there.items()
            if (status := statuses[i]) and status.observed_revision != spec.revision_id
        }
    return turns, worst


@pytest.mark.parametrize(
    ("replicas", "pace", "expected"),
    [
        (2, "", [0, 1]),
        (4, "", [0, 1, 1, 1]),
        (8, "", [1, 2, 2, 2]),
        (5, "100%", [4]),
        (5, "2", [1, 2, 1]),
        (5, "1%", [0, 1, 1, 1, 1]),
        (3, "1000", [2]),
    ],
)
def test_F87_a_new_version_goes_to_few_running_copies_at_once(replicas: int, pace: str, expected: list[int]) -> None:
    """The workload itself first; the next go when those before them run."""
    turns, _ = rollout(pace, parent(replicas), parent(replicas, image="new"), set(), starts=True)
    assert (turns[: len(expected)], sum(turns)) == (expected, replicas - 1)


def test_F87_a_version_that_does_not_start_takes_no_more_with_it() -> None:
    """Copies that ran before the new version run on with the old one."""
    turns, worst = rollout("2", parent(6), parent(6, image="bad"), set(), starts=False)
    assert (sum(turns), worst) == (1, 2)


def test_F87_copies_that_do_not_run_get_a_new_version_at_once() -> None:
    """It may be what mends them; and those that run wait until they do."""
    turns, _ = rollout("1", parent(5), parent(5, image="good"), {"web.3", "web.4"}, starts=True)
    assert (turns[:4], sum(turns)) == ([2, 1, 1, 0], 4)


def test_F87_what_restarts_nothing_or_stops_everything_waits_for_nothing() -> None:
    """Policies, stops, scaling and removal."""
    there = copies(WEB, 2, 3)
    for of in (parent(3, metadata={"a": "b"}), parent(3, image="b", desired_state="Stopped"), parent(1), None):
        found = changes(of, there)
        assert len(found) == 2
        assert paced(of, found, there, {}) == found


@given(st.integers(2, 12), st.sampled_from(["", "1", "3", "50%", "100%"]), st.sets(st.integers(2, 12)), st.booleans())
def test_F87_a_roll_out_ends_and_never_takes_too_many_down(
    replicas: int, pace: str, down: set[int], starts: bool
) -> None:
    """Whatever was down before; a version that starts reaches all copies."""
    old, broken = parent(replicas), {replica_id("web", n) for n in down if n <= replicas}
    new = parent(replicas, image="new")
    turns, worst = rollout(pace, old, new, broken, starts)
    allowed = max_unavailable(new.replace(metadata={"fleetbeat.max_unavailable": pace}))
    assert worst <= max(allowed, 1)
    if starts:
        assert sum(turns) == replicas - 1
