"""What `fleetbeat up` tells."""

from __future__ import annotations

import pathlib
import sys

import pytest

from scheduler.devcluster.child import Backoff
from scheduler.devcluster.display import PlainDisplay, Snapshot, rows
from scheduler.devcluster.folder import Folder
from scheduler.devcluster.status import ClusterStatus, ShardLine
from scheduler.devcluster.wanted import Wanted
from tests.unit.devcluster.test_plan import site

STATUS = ClusterStatus(
    cluster_id="c1",
    nodes=3,
    nodes_ready=2,
    leader="beat@here",
    shards=(ShardLine(0, 2, 0, 0.4), ShardLine(1, 1, 7, -1.0)),
    workloads={"Pending": 1, "Running": 20},
    notices=("the brake holds shard 0",),
)


def test_the_status_tells_nodes_shards_leader_places_and_what_to_type_next(tmp_path: pathlib.Path) -> None:
    """All that item 2 of the main job asks for, in one table."""
    told = dict(rows(Snapshot(site(tmp_path), STATUS, {"beat": "backing off"})))
    assert told["nodes"] == "2 of 3 ready"
    assert told["shards"] == (
        "shard-0: 2 nodes, queue 0, reconciled 0.4 s ago; shard-1: 1 nodes, queue 7, not reconciled yet"
    )
    assert told["leader"] == "beat@here"
    assert told["workloads"] == "1 Pending, 20 Running"
    assert told["notice"] == "the brake holds shard 0"
    assert told["trouble"] == "beat: backing off"
    assert told["Flower"].startswith("http://127.0.0.1:")
    assert told["metrics"].endswith("/metrics")
    assert f"--data {tmp_path} apply --image host" in told["next"]


def test_a_cluster_without_a_front_is_told_as_such(tmp_path: pathlib.Path) -> None:
    """Old numbers are not shown as if they were true."""
    told = dict(rows(Snapshot(site(tmp_path), ClusterStatus(), {"front-1": "starting"})))
    assert told["cluster"] == "no front answers"
    assert "nodes" not in told


def test_plain_lines_tell_changes_only(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log file must not fill with the same status every second."""
    display = PlainDisplay()
    display.ready(Snapshot(site(tmp_path), STATUS, {}), 3.21)
    assert "ready after 3.2 s" in capsys.readouterr().out
    display.show(Snapshot(site(tmp_path), STATUS, {}))
    assert capsys.readouterr().out == ""
    display.show(Snapshot(site(tmp_path), ClusterStatus(cluster_id="c1", nodes=3, nodes_ready=3, leader="x"), {}))
    assert sorted(capsys.readouterr().out.splitlines()) == ["leader: x", "nodes: 3 of 3 ready", "notice: none"]


def test_nobody_reading_is_no_reason_to_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fleetbeat up | head` closes the pipe; the cluster must still be stopped properly later."""

    class Closed:
        def write(self, _text: str) -> None:
            raise BrokenPipeError

        def flush(self) -> None:
            """Nothing to flush."""

    monkeypatch.setattr(sys, "stdout", Closed())
    display = PlainDisplay()
    display.say("one")
    display.say("two")
    sys.stdout.close()


def test_the_default_folder_needs_no_flag() -> None:
    """The next command is as short as it can be."""
    assert not Folder(pathlib.Path(".fleetbeat")).flag
    assert Folder(pathlib.Path("my data")).flag == "--data 'my data' "


def test_waits_between_restarts_double_to_ten_seconds_and_start_anew_after_a_stable_run() -> None:
    """0.5 s at first; a child that ran for ten seconds is not punished for its past."""
    backoff = Backoff()
    assert [backoff.after(1) for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, 10]
    assert backoff.after(10) == 0.5


def test_detaching_repeats_the_users_options() -> None:
    """What is left to us is left out."""
    wanted = Wanted(pathlib.Path("d"), 3, None, 1, 1, 9085, None)
    assert wanted.arguments() == [
        "--data", "d", "--agents", "3", "--workers-per-shard", "1", "--fronts", "1", "--port", "9085",
    ]  # fmt: skip
