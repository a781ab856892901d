"""The table of errors: every exception has a code, a stable reason of its own, and a bounded message."""

from __future__ import annotations

from collections import defaultdict

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from scheduler.domain import errors as domain
from scheduler.domain.errors import FleetbeatError, InvalidInput
from scheduler.front import errors
from scheduler.front.errors import CODES, LONGEST_MESSAGE, code_of, internal_status, status_of
from scheduler.store.kv import LeaseNotFound, UnknownOutcome


def rich(status: grpc.Status) -> tuple[status_pb2.Status, error_details_pb2.ErrorInfo]:
    """Return a status's details."""
    (_, packed), *_ = status.trailing_metadata
    found, info = status_pb2.Status.FromString(packed), error_details_pb2.ErrorInfo()
    found.details[0].Unpack(info)
    return found, info


def test_every_error_of_the_domain_has_a_code() -> None:
    """None falls through to INTERNAL by oversight."""
    classes = [c for m in (domain, errors) for c in vars(m).values() if isinstance(c, type)]
    for one in classes:
        if issubclass(one, FleetbeatError) and one is not FleetbeatError:
            assert any(base in CODES for base in one.__mro__), one


def test_reasons_are_not_shared_by_unrelated_errors() -> None:
    """A reason means one thing; only a subclass may share its base's."""
    by_reason = defaultdict(list)
    for one in CODES:
        by_reason[one.reason].append(one)
    for reason, classes in by_reason.items():
        base = min(classes, key=lambda c: len(c.__mro__))
        assert all(issubclass(c, base) for c in classes), reason


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UnknownOutcome("?"), grpc.StatusCode.UNAVAILABLE),
        (LeaseNotFound("?"), grpc.StatusCode.INTERNAL),
        (InvalidInput("a.b", "bad"), grpc.StatusCode.INVALID_ARGUMENT),
        (FleetbeatError("?"), grpc.StatusCode.INTERNAL),
    ],
)
def test_the_nearest_ancestor_decides(error: FleetbeatError, code: grpc.StatusCode) -> None:
    """Also for subclasses that the table does not name."""
    assert code_of(error) is code
    assert status_of(error).code is code


def test_a_status_carries_reason_domain_and_field() -> None:
    """What clients may rely on stands in the ErrorInfo, not in the text."""
    found, info = rich(status_of(InvalidInput("spec.type", "bad")))
    assert (info.reason, info.domain, dict(info.metadata)) == ("INVALID_INPUT", "fleetbeat.v1", {"field": "spec.type"})
    assert found.message == "spec.type: bad"


def test_messages_are_bounded() -> None:
    """They travel in a header."""
    found, _ = rich(status_of(FleetbeatError("x" * 100_000)))
    assert len(found.message) == LONGEST_MESSAGE + 1


def test_a_defect_is_told_without_details() -> None:
    """The caller learns that there is one."""
    found, info = rich(internal_status())
    assert (info.reason, found.code) == ("INTERNAL", grpc.StatusCode.INTERNAL.value[0])
