"""What a failed call means, and which member is asked next."""

from __future__ import annotations

import grpc
import pytest

from scheduler.store.endpoints import _OPTIONS, Endpoints, Failure, failure_of, metadata_of
from scheduler.store.etcd import risk_of_version
from scheduler.store.watch import range_end

CODES = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "failure"),
    [
        (CODES.UNAVAILABLE, "Socket closed", Failure.UNCLEAR),
        (CODES.UNAVAILABLE, "etcdserver: leader changed", Failure.UNCLEAR),
        (CODES.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure", Failure.UNCLEAR),
        (CODES.UNAVAILABLE, "etcdserver: server stopped", Failure.UNCLEAR),
        (CODES.DEADLINE_EXCEEDED, "Deadline Exceeded", Failure.UNCLEAR),
        (CODES.CANCELLED, "", Failure.UNCLEAR),
        (CODES.INTERNAL, "stream reset", Failure.UNCLEAR),
        (CODES.UNKNOWN, "", Failure.UNCLEAR),
        (CODES.UNAVAILABLE, "etcdserver: no leader", Failure.NOT_SENT),
        (CODES.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Failure.NOT_SENT),
        (CODES.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision", Failure.NOT_SENT),
        (CODES.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Failure.COMPACTED),
        (CODES.UNAUTHENTICATED, "etcdserver: invalid auth token", Failure.SIGN_IN),
        (CODES.INVALID_ARGUMENT, "etcdserver: user name is empty", Failure.SIGN_IN),
        (CODES.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Failure.SIGN_IN),
        (CODES.NOT_FOUND, "etcdserver: requested lease not found", Failure.LEASE_GONE),
        (CODES.INVALID_ARGUMENT, "etcdserver: request is too large", Failure.REFUSED),
        (CODES.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Failure.REFUSED),
        (CODES.PERMISSION_DENIED, "etcdserver: permission denied", Failure.REFUSED),
    ],
)
def test_components_F10_only_what_surely_was_not_applied_counts_as_that(
    code: CODES, details: str, failure: Failure
) -> None:
    """Every failure that may hide an applied write is unclear; the others have their own treatment."""
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
    assert failure_of(error) is failure


def test_members_are_used_in_turn_and_one_failure_moves_on_once() -> None:
    """Ten calls that fail at the same member move on by one, not by ten."""
    members = Endpoints(["a:1", "b:2", "c:3"])
    failed = members.current
    for _ in range(10):
        members.move_on(failed)
    assert members.current.address == "b:2"
    members.move_on(members.current)
    members.move_on(members.current)
    assert members.current is failed


def test_there_must_be_a_member() -> None:
    """No endpoints at all is a mistake of the caller."""
    with pytest.raises(ValueError, match="at least one endpoint"):
        Endpoints([])


def test_a_scheme_before_an_address_is_cut_off() -> None:
    """Both spellings that people use are understood."""
    assert [e.address for e in Endpoints(["http://a:1", "https://b:2"]).all] == ["a:1", "b:2"]


def test_components_F6b_every_call_asks_for_a_leader() -> None:
    """Without it, a member cut off from the quorum looks healthy."""
    assert metadata_of("") == (("hasleader", "true"),)
    assert metadata_of("t") == (("hasleader", "true"), ("token", "t"))


def test_components_F9_channels_do_not_ping_while_idle_and_never_repeat_a_call() -> None:
    """Etcd hangs up on clients that ping idle channels; a write that gRPC repeats could be applied twice."""
    options = dict(_OPTIONS)
    assert options["grpc.keepalive_permit_without_calls"] == 0
    assert options["grpc.keepalive_time_ms"] == 10_000
    assert options["grpc.keepalive_timeout_ms"] == 3_000
    assert options["grpc.enable_retries"] == 0
    assert options["grpc.max_receive_message_length"] == 64 << 20


@pytest.mark.parametrize(
    ("version", "risky"),
    [
        ("3.3.27", True), ("3.4.21", True), ("3.4.22", False), ("3.4.23", False),
        ("3.5.0", True), ("3.5.1", True), ("3.5.5", True), ("3.5.6", False), ("3.5.23", False), ("3.6.1-rc.0", False),
    ],
)  # fmt: skip
def test_releases_that_lose_writes_are_known(version: str, risky: bool) -> None:
    """Below 3.4.22, and 3.5 below 3.5.6, there is something to say."""
    assert bool(risk_of_version(version)) is risky


def test_a_range_ends_after_the_last_key_with_the_prefix() -> None:
    """The end is the prefix with its last byte raised; everything has the end of etcd's own spelling."""
    assert range_end(b"/a/") == b"/a0"
    assert range_end(b"") == b"\0"
