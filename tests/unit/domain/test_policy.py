"""Policies of workloads: parsed, defaulted, and classed by the reference system's table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.domain import policy
from scheduler.domain.errors import InvalidInput
from scheduler.domain.policy import OnReturn, Persistence
from scheduler.domain.workload import ManagedVolume, WorkloadSpec
from scheduler.front.metadata import checked_metadata

LOCAL, NFS = ManagedVolume(name="a", driver="local"), ManagedVolume(name="b", driver="nfs")
BLOCK = ManagedVolume(name="c", driver="ceph-rbd", access_mode="ReadWriteOnce")


def spec(
    kind: str = "container", *volumes: ManagedVolume, binds: tuple[str, ...] = (), **metadata: str
) -> WorkloadSpec:
    """Return a spec; in names of metadata two underscores are a dot."""
    named = {key.replace("__", "."): value for key, value in metadata.items()}
    return WorkloadSpec(id="w", type=kind, metadata=named, managed_volumes=volumes, volumes=binds)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (spec(persys__scheduling__persistence_class="node-local"), Persistence.NODE_LOCAL),
        (spec("vm", persys__scheduling__persistence_class="Ephemeral"), Persistence.EPHEMERAL),
        (spec(persys__scheduling__persistence_class="nonsense"), Persistence.EPHEMERAL),
        (spec("vm"), Persistence.NODE_LOCAL),
        (spec("microvm"), Persistence.NODE_LOCAL),
        (spec("vm", persys__storage__shared="yes"), Persistence.SHARED_STORAGE),
        (spec("vm", persys__storage__local="true"), Persistence.NODE_LOCAL),
        (spec(), Persistence.EPHEMERAL),
        (spec(persys__storage__local="1"), Persistence.NODE_LOCAL),
        (spec(persys__storage__shared="true"), Persistence.SHARED_STORAGE),
        (spec(persys__storage__shared="true", persys__storage__local="true"), Persistence.NODE_LOCAL),
        (spec(my__host_path="/data"), Persistence.NODE_LOCAL),
        (spec(bind_mount_1="/data"), Persistence.NODE_LOCAL),
        (spec(my__host_path=""), Persistence.EPHEMERAL),
        (spec(binds=("/srv:/data",)), Persistence.NODE_LOCAL),
        (spec("container", LOCAL), Persistence.NODE_LOCAL),
        (spec("container", NFS, LOCAL), Persistence.NODE_LOCAL),
        (spec("container", NFS), Persistence.SHARED_STORAGE),
        (spec(binds=("/srv:/data",), persys__storage__shared="true"), Persistence.SHARED_STORAGE),
    ],
)
def test_F35_the_persistence_class_follows_the_table_and_what_is_really_mounted(
    of: WorkloadSpec, expected: Persistence
) -> None:
    """What the metadata says first, then the kind, then mounts and volumes."""
    assert policy.persistence_of(of) == expected


@pytest.mark.parametrize("key", ["allow_move", "persys.scheduling.allow_move"])
@pytest.mark.parametrize(("value", "pinned"), [("true", False), ("1", False), ("YES", False), ("no", True), ("", True)])
def test_F34_a_node_local_workload_is_pinned_unless_it_may_move(key: str, value: str, *, pinned: bool) -> None:
    """Both keys of the reference system."""
    assert policy.is_pinned(spec("vm").replace(metadata={key: value})) is pinned


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (spec(), False),
        (spec("vm"), True),
        (spec("vm", fleetbeat__exclusive="false"), False),
        (spec("container", BLOCK), True),
        (spec("container", LOCAL), False),
        (spec(fleetbeat__exclusive="True"), True),
        (spec(fleetbeat__exclusive="perhaps"), False),
    ],
)
def test_scenario_L15_machines_and_sole_writers_are_exclusive_by_default(of: WorkloadSpec, *, expected: bool) -> None:
    """What the metadata says wins."""
    assert policy.is_exclusive(of) is expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("2d", 172_800), ("7", 7), ("1.5s", 1.5), ("0", 0),
        ("", None), ("soon", None), ("-1", None), ("1h5", None), ("366d", None), ("inf", None), ("9" * 40, None),
    ],
)  # fmt: skip
def test_durations_are_read_or_refused(text: str, seconds: float | None) -> None:
    """Units, sums of them, plain seconds; nothing beyond a year."""
    assert policy.parse_duration(text) == seconds


@given(st.dictionaries(st.sampled_from([
    policy.EXCLUSIVE_KEY, policy.STOP_AFTER_KEY, policy.LOST_AFTER_KEY, policy.REPLACE_KEY, policy.REPLACE_DELAY_KEY,
    policy.ON_RETURN_KEY, policy.PERSISTENCE_KEY, "allow_move",
]), st.text(max_size=40)))  # fmt: skip
def test_whatever_is_stored_has_a_reading(metadata: dict[str, str]) -> None:
    """Older than the checks or written by others: a default, never an error."""
    of = WorkloadSpec(id="w", type="container", metadata=metadata)
    assert isinstance(policy.is_exclusive(of), bool)
    assert isinstance(policy.may_replace(of), bool)
    assert policy.stop_after_seconds(of, 60, 30) >= 30
    assert policy.replace_delay_seconds(of) >= 0
    assert policy.lost_after_seconds(of) is None or policy.lost_after_seconds(of) >= 0
    assert policy.on_return(of) in OnReturn
    assert policy.persistence_of(of) in Persistence


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("fleetbeat.exclusive", "maybe", "true or false"),
        ("fleetbeat.replace", "2", "true or false"),
        ("fleetbeat.stop_after", "soon", "a duration such as 90s"),
        ("fleetbeat.stop_after", "10ms", "at least 1s"),
        ("fleetbeat.lost_after", "-3", "a duration"),
        ("fleetbeat.replace_delay", "400d", "at most 365d"),
        ("fleetbeat.on_return", "coin", "keep_replacement"),
        ("fleetbeat.unheard_of", "x", "is not known; known are"),
        ("persys.scheduling.persistence_class", "forever", "node-local"),
        ("persys.scheduling.pinned_reason", "x", "kept by the system"),
    ],
)
def test_a_policy_that_cannot_be_read_is_refused_with_what_is_allowed(key: str, value: str, allowed: str) -> None:
    """Named by its key, before anything is stored."""
    with pytest.raises(InvalidInput) as refused:
        checked_metadata("spec.metadata", {key: value})
    assert refused.value.field == f"spec.metadata.{key}"
    assert allowed in refused.value.problem


def test_a_blank_policy_means_the_default() -> None:
    """As everywhere on this wire."""
    blank = dict.fromkeys(["fleetbeat.exclusive", "fleetbeat.stop_after", "fleetbeat.on_return"], "")
    assert checked_metadata("spec.metadata", blank) == blank


@pytest.mark.parametrize("bad", ["0", "-1", "0%", "101%", "few", "1.5", "%", "1001"])
def test_F87_a_pace_of_new_versions_that_cannot_be_read_is_refused(bad: str) -> None:
    """By the front; what is stored all the same counts as the default."""
    with pytest.raises(InvalidInput, match="1 to 1000, or 1% to 100%"):
        checked_metadata("spec.metadata", {policy.MAX_UNAVAILABLE_KEY: bad})
    stored = WorkloadSpec(id="w", type="container", replicas=8, metadata={policy.MAX_UNAVAILABLE_KEY: bad})
    assert policy.max_unavailable(stored) == 2
