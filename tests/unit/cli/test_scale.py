"""`fleetbeat scale`, and what the command line shows of copies."""

from __future__ import annotations

import json

import grpc
import pytest

from scheduler.cli import scale
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_front import FakeFront, View, running


def scaled(present: int, running_copies: int, wanted: int = 3) -> View:
    """Return "web" with so many copies."""
    found = running("web")
    found.desired_state = "Running"
    found.replicas, found.replicas_present, found.replicas_running = wanted, present, running_copies
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll without pauses."""
    monkeypatch.setattr(scale, "_POLL_SECONDS", 0.0)


def test_F87_scale_waits_until_the_copies_run(ask: Run, fake: FakeFront) -> None:
    """And until those too many are gone."""
    fake.views["web"] = [scaled(1, 1), scaled(3, 2), scaled(4, 3), scaled(3, 3)]
    ended = ask("scale", "web", "3")
    assert (ended.code, ended.out) == (0, "web: 1 → 3 copies\n")
    assert fake.views["web"] == [scaled(3, 3)]
    (request,) = fake.scaled
    assert (request.workload_id, request.replicas, request.validate_only) == ("web", 3, False)


def test_F87_scale_tells_how_far_it_got_when_the_time_is_over(ask: Run, fake: FakeFront) -> None:
    """The scaling goes on."""
    fake.views["web"] = [scaled(3, 1)]
    ended = ask("scale", "web", "3", "--timeout", "0.01")
    assert ended.code == 1
    assert "1 of 3 copies run" in ended.err
    assert ask("scale", "web", "3", "--no-wait").code == 0


def test_F87_scale_can_only_check(ask: Run, fake: FakeFront) -> None:
    """With the generation that is expected."""
    ended = ask("scale", "web", "3", "--dry-run", "--generation", "7", "-o", "json")
    assert json.loads(ended.out)["validate_only"] is True
    (request,) = fake.scaled
    assert (request.validate_only, request.expected_generation) == (True, 7)


def test_F87_scale_refuses_wrong_numbers_itself_and_tells_refusals(ask: Run, fake: FakeFront) -> None:
    """Exit code 1 for both."""
    assert ask("scale", "web", "0").code == 1
    assert fake.scaled == []
    fake.refusals["ScaleWorkload"] = (grpc.StatusCode.FAILED_PRECONDITION, 'one would be "web.3"')
    ended = ask("scale", "web", "3")
    assert (ended.code, 'one would be "web.3"' in ended.err) == (1, True)


def test_F87_show_tells_of_copies(ask: Run, fake: FakeFront) -> None:
    """How many run of how many, and of what a copy is one."""
    fake.views["web"] = [scaled(5, 2)]
    assert "2 of 3 run, 2 more being removed" in ask("workload", "show", "web").out
    copy = running("web.2")
    copy.replica_of, copy.replicas, copy.replicas_present = "web", 1, 1
    fake.views["web.2"] = [copy]
    out = ask("workload", "show", "web.2").out
    assert "copy of" in out
    assert "copies" not in out


def test_F87_delete_all_leaves_copies_to_their_workloads(ask: Run, fake: FakeFront) -> None:
    """They cannot be deleted by themselves."""
    copy = running("web.2")
    copy.replica_of = "web"
    fake.views |= {"web": [running("web")], "web.2": [copy]}
    assert ask("workload", "delete", "--all", "--no-wait").code == 0
    assert fake.deleted == ["web"]


def test_F87_apply_sends_and_follows_copies(ask: Run, fake: FakeFront) -> None:
    """It is done when all of them run; a manifest without the field says nothing about how many."""
    fake.views["web"] = [scaled(3, 1), scaled(3, 3)]
    manifest = b"id: web\nreplicas: 3\ncontainer: {image: nginx}\n"
    ended = ask("apply", "-f", "-", stdin=manifest)
    assert ended.code == 0
    assert "1 of 3 copies run" in ended.err
    assert fake.applied[0].spec.replicas == 3
    wrong = ask("apply", "-f", "-", "--dry-run", stdin=manifest.replace(b"3", b"1001"))
    assert (wrong.code, "1–1000" in wrong.err) == (1, True)  # noqa: RUF001 - an en dash, meant
    ask("apply", "-f", "-", "--detach", stdin=b"id: web\ncontainer: {image: nginx}\n")
    assert fake.applied[1].spec.replicas == 0
