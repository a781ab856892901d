"""What the reference scheduler has stored, read as ours."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from scheduler.domain.errors import InvalidInput
from scheduler.domain.legacy import LegacyWorkload, in_our_form, is_foreign, legacy_flaw, legacy_pair
from scheduler.domain.node import Node
from scheduler.domain.policy import allows_move, is_exclusive
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.placement.request import LARGEST_AMOUNT, request_of
from tests.support.legacy import REVISION, spec_json, status_json, unassigned, whole_json


def whole(**fields: Any) -> tuple[WorkloadSpec, WorkloadStatus]:
    """Read a whole record."""
    return legacy_pair("web", LegacyWorkload.from_json(whole_json(**fields)))


def two_keys(spec: dict[str, Any], status: dict[str, Any]) -> tuple[WorkloadSpec, WorkloadStatus]:
    """Read a spec and a status."""
    return in_our_form(WorkloadSpec.from_json(spec_json(**spec)), WorkloadStatus.from_json(status_json(**status)))


def test_F86_both_forms_of_the_reference_mean_the_same() -> None:
    """One whole record, or two: the same workload, running where it ran, at its revision."""
    assert whole() == two_keys({}, {})
    spec, status = whole()
    assert (spec.type, spec.revision_id, spec.ports, spec.env_vars) == (
        "container", REVISION, ("8080:80/tcp",), {"MODE": "live"}
    )  # fmt: skip
    assert (status.node_id, status.actual, status.observed_revision) == ("n-1", "Running", REVISION)
    assert status.observed_generation == spec.generation


def test_F86_what_the_user_said_is_told_from_the_schedulers_notes() -> None:
    """Policies go into the spec's metadata; notes, logs and usage go nowhere."""
    spec, status = whole()
    assert spec.metadata == {"allow_move": "true", "persys.scheduling.persistence_class": "ephemeral"}
    assert allows_move(spec)
    assert status.metadata == {}
    assert b"line" not in status.to_json()


def test_F86_the_token_for_git_is_kept_nowhere() -> None:
    """Ours has no use for it, so it is not copied."""
    spec, status = whole()
    assert b"ghp_secret" not in spec.to_json() + status.to_json()


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"type": "lambda"}, "type"),
        ({"workload_id": "other"}, "id"),
        ({"ports": "8080"}, "ports"),
        ({"desiredState": "Paused"}, "desiredState"),
        ({"resources": {"cpu_usage": "much"}}, "resources.cpu_usage"),
        ({"assignedNode": "a/b"}, "assignedNode"),
    ],
)
def test_F86_a_flaw_names_its_field(fields: dict[str, Any], word: str) -> None:
    """And reading it raises nothing."""
    assert word in legacy_flaw("web", LegacyWorkload.from_json(whole_json(**fields)))


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"\xff", b"1" * 5000, b"[" * 100_000])
def test_F86_what_is_no_record_is_a_flaw(value: bytes) -> None:
    """Whatever the bytes are."""
    assert legacy_flaw("web", LegacyWorkload.from_json(value))


def test_F86_a_bad_id_is_a_flaw_of_the_key() -> None:
    """It could not be addressed by any call."""
    assert "the key" in legacy_flaw("-x", LegacyWorkload.from_json(whole_json("-x")))
    with pytest.raises(InvalidInput):
        legacy_pair("-x", LegacyWorkload.from_json(whole_json("-x")))


@pytest.mark.parametrize(
    ("fields", "seen", "told"),
    [
        ({"status": "Running"}, True, True),
        ({"status": "Updating"}, False, True),
        ({"status": "Scheduled"}, False, True),
        ({"desiredState": "Stopped"}, True, False),
        (unassigned(), False, False),
    ],
)
def test_F86_only_what_agreed_is_taken_as_done(fields: dict[str, Any], seen: bool, told: bool) -> None:
    """What was on its way is ordered once more; that restarts nothing where the revision is the same."""
    spec, status = whole(**fields)
    assert (status.observed_revision == spec.revision_id) == seen
    assert (status.observed_generation == spec.generation) == told


def test_F86_failures_are_kept_where_they_mean_something() -> None:
    """Attempts and the next one; what was over stays over; Go's zero time is none."""
    failed = {"status": "Failed", "statusInfo": {"actualState": "Failed", "failureReason": "no image"}}
    due = {"attempts": 2, "maxAttempts": 5, "nextRetryAt": "2025-11-02T11:00:00Z"}
    _, waiting = whole(**failed, retry=due)
    assert (waiting.retry.attempts, waiting.terminal) == (2, "")
    assert waiting.retry.next_retry_at
    _, over = whole(**failed, retry={"attempts": 5, "maxAttempts": 5, "nextRetryAt": "0001-01-01T00:00:00Z"})
    assert over.terminal == "RETRIES_EXHAUSTED"
    assert over.retry.next_retry_at is None
    _, fine = whole()
    assert fine.terminal == ""


def test_F86_what_is_being_deleted_stays_so() -> None:
    """Deletion is a one-way flag, also across the takeover."""
    spec, status = whole(status="Deleting")
    assert (spec.desired_state, status.status) == ("Deleted", "Deleting")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("epoch", {"epoch": 2**70}),
        ("generation", {"generation": 2**63 - 1}),
        ("interruptions", {"interruptions": 2**31 - 1}),
        ("retry.attempts", {"retry": {"attempts": 2**40}}),
        ("replicas", {"replicas": 1_000_000}),
        (
            "not Unicode",
            {
                "statusInfo": {"actualState": "Failed"},
                "metadata": {"retry_terminal": "true", "reason_code": "\ud800"},
            },
        ),
    ],
)
def test_F86_what_no_answer_could_show_is_a_flaw(field: str, wrong: dict[str, Any]) -> None:
    """Shown, it would break each list that it is in; stored, it could not be read again."""
    flawed = LegacyWorkload.from_json(whole_json(**wrong))
    assert field in legacy_flaw("web", flawed)


def test_F86_a_time_that_has_no_year_in_utc_is_none() -> None:
    """The wire could not say it."""
    spec, _ = whole(createdAt="9999-12-31T23:59:59-23:00")
    assert spec.created_at is None


def test_F86_it_is_no_copy_of_another_workload() -> None:
    """As one it would be removed: that workload wants none."""
    spec, _ = whole(replicaOf="db", replicaRevision="r")
    assert (spec.replica_of, spec.replica_revision) == ("", "")


def test_F86_an_amount_of_any_size_is_cut_off() -> None:
    """Also one that no floating-point number can hold."""
    spec, _ = whole(type="vm", vm={"name": "v", "vcpus": 10**400}, resources={})
    assert request_of(spec).cpu_millicores == LARGEST_AMOUNT


def test_F86_a_machine_stays_exclusive() -> None:
    """Under each name of its type."""
    spec, _ = whole(type="firecracker", vm={"name": "v", "vcpus": 2, "memoryMb": 512, "disks": None, "networks": None})
    assert spec.type == "microvm"
    assert is_exclusive(spec)


def test_F86_volumes_of_a_machine_are_the_workloads() -> None:
    """Each once; who writes alone is known in whatever way it is spelled; a name that no key can have is a flaw."""
    inner = {"name": "a", "driver": "CEPH_RBD", "accessMode": "readwriteonce", "retainPolicy": "retain"}
    outer = {"name": "b", "driver": "", "accessMode": "RWO"}
    spec, _ = whole(type="vm", vm={"name": "v", "managedVolumes": [inner, outer]}, managedVolumes=[outer])
    assert [(v.name, v.driver, v.access_mode, v.retain_policy) for v in spec.managed_volumes] == [
        ("b", "local", "ReadWriteOnce", "Delete"), ("a", "ceph-rbd", "ReadWriteOnce", "Retain"),
    ]  # fmt: skip
    assert spec.vm
    assert not spec.vm.model_extra
    for wrong in ("x", [{"driver": "local"}], [{"name": "../x"}]):
        flawed = LegacyWorkload.from_json(whole_json(type="vm", vm={"managedVolumes": wrong}))
        assert "anagedVolumes" in legacy_flaw("web", flawed)


def test_F86_ours_are_told_from_foreign_ones_by_their_generation() -> None:
    """Ours always tell it, also after the takeover."""
    assert is_foreign(WorkloadSpec.from_json(spec_json()))
    spec, _ = whole()
    assert not is_foreign(spec)
    assert not is_foreign(WorkloadSpec.from_json(spec.to_json()))


def test_F86_null_is_absent_in_every_record() -> None:
    """So Go writes lists and maps that are empty; a field that must be there is missed all the same."""
    node = Node.from_json(b'{"nodeId":"n-1","labels":null,"taints":null,"status":"Ready","lastHeartbeat":null}')
    assert (node.labels, node.taints) == ({}, ())
    with pytest.raises(ValidationError):
        Node.from_json(b'{"nodeId":null}')
