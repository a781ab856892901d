"""`fleetbeat drift`: removing a copy that nobody knows."""

from __future__ import annotations

import grpc

from scheduler.pb import fleetbeat_pb2 as fb
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_front import FakeFront


def test_F36_a_copy_is_removed_only_when_it_is_confirmed(ask: Run, fake: FakeFront) -> None:
    """By an answer, or by --yes; the reason goes with it."""
    assert ask("drift", "delete", "n-1", "web", stdin=b"n\n").code != 0
    assert fake.node_calls == []
    assert "web is removed from n-1" in ask("drift", "delete", "n-1", "web", stdin=b"y\n").out
    assert ask("drift", "delete", "n-1", "web", "--yes", "--reason", "ticket 12").code == 0
    request = fb.DeleteUnknownRequest(node_id="n-1", workload_id="web")
    assert fake.node_calls == [request, fb.DeleteUnknownRequest(node_id="n-1", workload_id="web", reason="ticket 12")]


def test_F36_a_refused_removal_is_told_with_exit_code_1(ask: Run, fake: FakeFront) -> None:
    """In the front's words."""
    fake.refusals["DeleteUnknown"] = (grpc.StatusCode.FAILED_PRECONDITION, 'workload "web" has a record')
    ended = ask("drift", "delete", "n-1", "web", "--yes")
    assert ended.code == 1
    assert "has a record" in ended.err
