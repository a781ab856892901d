"""The commands that show and change single things."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
import yaml
from google.protobuf.timestamp_pb2 import Timestamp

from scheduler.cli import workload_changes
from scheduler.pb import control_pb2, fleetbeat_pb2
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_front import FakeFront, running, view


def node(node_id: str, status: str = "Ready") -> control_pb2.NodeView:
    """Return a node with four cores."""
    return control_pb2.NodeView(
        node_id=node_id,
        status=status,
        grpc_endpoint="10.0.0.1:50051",
        total_cpu_cores=4,
        allocated_cpu_cores=0.5,
        total_memory_mb=4096,
        allocated_memory_mb=512,
        total_disk_gb=20,
        workload_count=2,
        shard=1,
        schedulable=True,
        labels={"zone": "a", "arch": "arm"},
        taints=[control_pb2.NodeTaint(key="gpu", value="yes", effect="NoSchedule")],
    )


def rows(text: str) -> list[list[str]]:
    """Split aligned text into its cells."""
    return [line.split() for line in text.splitlines()]


def test_node_ls_reads_all_pages(ask: Run, fake: FakeFront) -> None:
    """Pages are joined; the table has a row a node."""
    fake.nodes = [node("n-1"), node("n-2", "NotReady"), node("n-3"), node("n-4"), node("n-5")]
    ended = ask("node", "ls")
    assert ended.code == 0
    assert [r[0] for r in rows(ended.out)] == ["ID", "n-1", "n-2", "n-3", "n-4", "n-5"]
    assert rows(ended.out)[2] == ["n-2", "NotReady", "0.5/4", "512/4096", "0/20", "2", "1", "-", "10.0.0.1:50051"]
    assert len(fake.lists) == 3
    assert {r.page_size for r in fake.lists} == {500}


def test_node_ls_filters_at_the_front(ask: Run, fake: FakeFront) -> None:
    """The filter is sent, not applied here."""
    fake.nodes = [node("n-1"), node("n-2", "NotReady")]
    ended = ask("node", "ls", "--status", "NotReady", "-o", "json")
    data = json.loads(ended.out)
    assert [n["node_id"] for n in data["nodes"]] == ["n-2"]
    assert data["nodes"][0]["total_memory_mb"] == 4096
    assert data["stale"] is False


def test_a_stale_answer_is_marked(ask: Run, fake: FakeFront) -> None:
    """Answers from a cache while etcd is away say so, on stderr and in the data."""
    fake.nodes, fake.stale = [node("n-1")], True
    ended = ask("node", "ls", "-o", "yaml")
    assert yaml.safe_load(ended.out)["stale"] is True
    assert "this may be old" in ended.err


def test_node_show_tells_the_node_and_its_workloads(ask: Run, fake: FakeFront) -> None:
    """Labels, taints, commitments and what runs there."""
    fake.nodes = [node("n-1")]
    fake.views = {"a": [running("a")], "b": [running("b", node="n-2")]}
    ended = ask("node", "show", "n-1")
    assert ended.code == 0
    assert "taints       gpu=yes:NoSchedule" in ended.out
    assert "arch=arm" in ended.out
    assert "0.5 of 4 cores committed" in ended.out
    assert "heard        never" in ended.out
    assert [r[0] for r in rows(ended.out)[-2:]] == ["ID", "a"]


@pytest.mark.parametrize("arguments", [("node", "show", "none"), ("workload", "show", "none")])
def test_what_does_not_exist_is_one_line_and_exit_code_1(ask: Run, fake: FakeFront, arguments: tuple[str, ...]) -> None:
    """The message names the front and what it said."""
    ended = ask(*arguments)
    assert ended.code == 1
    assert ended.err == f'Error: front {fake.server}: {arguments[0]} "none" does not exist (NOT_FOUND)\n'


def test_workload_ls_pages_and_filters(ask: Run, fake: FakeFront) -> None:
    """By node and by status; the reason of what does not run is shown."""
    fake.views = {f"w{i}": [running(f"w{i}")] for i in range(5)}
    fake.views["x"] = [view("x", "Pending", reason="no node\nfits")]
    ended = ask("workload", "ls")
    assert [r[0] for r in rows(ended.out)] == ["ID", "w0", "w1", "w2", "w3", "w4", "x"]
    assert ended.out.splitlines()[-1].endswith("no node fits")
    ended = ask("workload", "ls", "--node", "n-1", "--status", "Running", "-o", "json")
    assert len(json.loads(ended.out)["workloads"]) == 5
    assert {(r.node_id, r.status) for r in fake.lists[-3:]} == {("n-1", "Running")}


def test_an_empty_list_has_its_headings(ask: Run) -> None:
    """And valid JSON."""
    assert rows(ask("workload", "ls").out)[0][0] == "ID"
    assert json.loads(ask("workload", "ls", "-o", "json").out) == {"workloads": [], "stale": False}


def test_workload_show_tells_everything_known(ask: Run, fake: FakeFront) -> None:
    """State, reason, retries, epoch."""
    found = view("web", "RetryPending", node="n-1", reason="pull failed")
    found.retry_attempts, found.retry_max_attempts, found.assignment_epoch = 2, 5, 9
    found.reason.code, found.reason.message = "IMAGE_PULL_FAILED", "no route"
    fake.views["web"] = [found]
    ended = ask("workload", "show", "web")
    for part in ("RetryPending", "n-1", "pull failed", "IMAGE_PULL_FAILED: no route", "2 of 5", "epoch     9"):
        assert part in ended.out
    assert json.loads(ask("workload", "show", "web", "-o", "json").out)["workload"]["assignment_epoch"] == 9


def test_explain_counts_nodes_by_filter_and_names_the_nearest(ask: Run, fake: FakeFront) -> None:
    """F57: why a workload is nowhere."""
    fake.explanation = fleetbeat_pb2.ExplainWorkloadResponse(
        workload_id="web",
        status="Pending",
        summary="none of 3 nodes fits",
        rejections=[fleetbeat_pb2.Rejection(filter="cpu_insufficient", nodes=3, example="n-1 has 500m free of 4000m")],
        nearest=fleetbeat_pb2.NearestFit(node_id="n-1", missing="has 500m free of 4000m, 1000m asked"),
        nodes_total=3,
    )
    ended = ask("workload", "explain", "web")
    assert ended.out.splitlines()[0] == "web: Pending: none of 3 nodes fits"
    assert "cpu_insufficient  3      n-1 has 500m free of 4000m" in ended.out
    assert "nearest: n-1 has 500m free of 4000m, 1000m asked" in ended.out
    assert json.loads(ask("workload", "explain", "web", "-o", "json").out)["nodes_total"] == 3


def test_F70_a_history_is_shown_newest_first(ask: Run, fake: FakeFront) -> None:
    """As a table, as JSON and YAML; an agent's words do not drive the terminal; a limit that cannot be is refused."""
    done = fleetbeat_pb2.ReconcileOutcome
    fake.history = fleetbeat_pb2.GetWorkloadHistoryResponse(
        workload_id="web",
        outcomes=[
            done(action="ReapplyRunning", reason="E: no\x1b[2J image", attempted_at=Timestamp(seconds=1_767_268_860)),
            done(action="Assign", success=True, reason="to n-1", attempted_at=Timestamp(seconds=1_767_268_800)),
        ],
    )
    ended = ask("workload", "history", "web", "--limit", "7")
    assert [line.split() for line in ended.out.splitlines()] == [
        ["TIME", "ACTION", "RESULT", "REASON"],
        ["2026-01-01T12:01:00Z", "ReapplyRunning", "failed", "E:", "no", "[2J", "image"],
        ["2026-01-01T12:00:00Z", "Assign", "ok", "to", "n-1"],
    ]
    assert (fake.lists[-1].workload_id, fake.lists[-1].limit, ended.err) == ("web", 7, "")
    data = json.loads(ask("workload", "history", "web", "-o", "json").out)
    assert data == yaml.safe_load(ask("workload", "history", "web", "-o", "yaml").out)
    assert (data["outcomes"][1]["action"], data["outcomes"][1]["success"], data["partial"]) == ("Assign", True, False)
    for limit in ("0", "1001"):
        ended = ask("workload", "history", "web", "--limit", limit)
        assert (ended.code, ended.out) == (1, "")
        assert "1<=x<=1000" in ended.err


def test_F70_a_history_without_redis_says_so(ask: Run, fake: FakeFront) -> None:
    """On stderr, so that the data stays data."""
    fake.history = fleetbeat_pb2.GetWorkloadHistoryResponse(workload_id="web", partial=True)
    ended = ask("workload", "history", "web")
    assert ended.out == "nothing is kept of it\n"
    assert "Redis" in ended.err
    fake.refusals["GetWorkloadHistory"] = (grpc.StatusCode.NOT_FOUND, 'there is no workload "web"')
    ended = ask("workload", "history", "web")
    assert (ended.code, ended.out) == (1, "")
    assert 'there is no workload "web"' in ended.err


def test_logs_are_written_as_the_workload_wrote_them(ask: Run, fake: FakeFront) -> None:
    """Bytes, not text; --tail is a size."""
    fake.logs = ["grüße\n".encode(), b"no newline"]
    ended = ask("workload", "logs", "web", "--tail", "4K")
    assert ended.out == "grüße\nno newline"
    assert (fake.log_requests[0].tail_bytes, fake.log_requests[0].follow) == (4096, False)
    ask("workload", "logs", "web")
    assert fake.log_requests[1].tail_bytes == 65536
    assert "more than 1048576 bytes" in ask("workload", "logs", "web", "--tail", "2M").err


def test_delete_waits_until_the_workload_is_gone(ask: Run, fake: FakeFront) -> None:
    """F15: GetWorkload answers NotFound in the end."""
    fake.views = {"a": [running("a")], "b": [running("b")]}
    ended = ask("workload", "delete", "a", "b", "a")
    assert ended.code == 0
    assert sorted(fake.deleted) == ["a", "b"]
    assert rows(ended.out)[1:] == [["a", "deleted"], ["b", "deleted"]]


def test_delete_all_deletes_every_page(ask: Run, fake: FakeFront) -> None:
    """--all needs no ids."""
    fake.views = {f"w{i}": [running(f"w{i}")] for i in range(5)}
    ended = ask("workload", "delete", "--all", "-o", "json")
    assert ended.code == 0
    assert len(fake.deleted) == 5
    assert {w["result"] for w in json.loads(ended.out)["workloads"]} == {"deleted"}


def test_deleting_all_of_nothing_is_done(ask: Run) -> None:
    """An empty cluster is no error."""
    assert ask("workload", "delete", "--all").code == 0


def test_delete_that_is_not_confirmed_in_time_says_that_it_goes_on(
    ask: Run, fake: FakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1; without waiting 0."""
    monkeypatch.setattr(workload_changes, "_POLL_SECONDS", 0.01)
    fake.views, fake.stays = {"a": [view("a", "Deleting", node="n-1")]}, {"a"}
    ended = ask("workload", "delete", "a", "--timeout", "100ms")
    assert ended.code == 1
    assert "Error: a: its node has not confirmed yet; the deletion goes on" in ended.err
    assert ask("workload", "delete", "a", "--no-wait").code == 0


def test_one_id_that_fails_does_not_stop_the_others(ask: Run, fake: FakeFront) -> None:
    """Each is told; the exit code is 1."""
    fake.views = {"a": [running("a")], "b": [running("b")]}
    fake.refusals["a"] = (grpc.StatusCode.FAILED_PRECONDITION, "not now")
    ended = ask("workload", "delete", "a", "b")
    assert ended.code == 1
    assert f"Error: a: front {fake.server}: not now (FAILED_PRECONDITION)" in ended.err
    assert fake.deleted == ["b"]


@pytest.mark.parametrize("arguments", [(), ("a", "--all")])
def test_delete_wants_ids_or_all(ask: Run, arguments: tuple[str, ...]) -> None:
    """Never everything by accident."""
    ended = ask("workload", "delete", *arguments)
    assert ended.code == 1
    assert "give either workload ids or --all" in ended.err


def test_F18_retry_is_accepted_or_tells_why_not(ask: Run, fake: FakeFront) -> None:
    """F18: each id by itself."""
    fake.views = {"a": [running("a")]}
    assert ask("workload", "retry", "a").code == 0
    assert ask("workload", "retry", "none").out == ""
    ended = ask("workload", "retry", "a", "none")
    assert ended.code == 1
    assert "Error: none: there is no such workload" in ended.err


def cluster_status() -> fleetbeat_pb2.GetClusterStatusResponse:
    """Return the status of a small cluster."""
    loops = [
        fleetbeat_pb2.LoopStatus(loop="reconcile", slot=5, age_seconds=1.5),
        fleetbeat_pb2.LoopStatus(loop="monitor_nodes", age_seconds=-1),
    ]
    return fleetbeat_pb2.GetClusterStatusResponse(
        cluster_id="c-1",
        shard_map_generation=3,
        shard_count=2,
        leader=fleetbeat_pb2.Leader(instance_id="beat-1", term=12),
        shards=[
            fleetbeat_pb2.ShardStatus(shard=0, nodes=2, workloads=9, queue_length=4, loops=loops),
            fleetbeat_pb2.ShardStatus(shard=1, nodes=1, workloads=1, queue_length=-1, loops=loops[:1]),
        ],
        fronts=[fleetbeat_pb2.FrontStatus(front_id="f-1", listening_since=Timestamp(seconds=1_000_000_000))],
        summary=control_pb2.GetClusterSummaryResponse(
            total_nodes=3,
            total_workloads=10,
            nodes_by_status={"Ready": 2, "NotReady": 1},
            workloads_by_status={"Running": 9, "Pending": 1, "Failed": 0},
        ),
        flower_url="http://127.0.0.1:5555",
        notices=["shard 1: the broker is away"],
    )


def test_status_shows_the_control_plane(ask: Run, fake: FakeFront) -> None:
    """Leader, shards with the age of each cycle, fronts, counts, notices."""
    fake.status = cluster_status()
    ended = ask("status")
    assert ended.code == 0
    for part in ("c-1", "beat-1 (term 12)", "3: 1 NotReady, 2 Ready", "10: 1 Pending, 9 Running", "f-1", "5555"):
        assert part in ended.out
    assert "! shard 1: the broker is away" in ended.out
    table = [line.split("  ") for line in ended.out.splitlines()]
    shard0 = next(line for line in table if line[0].strip() == "0")
    assert [c.strip() for c in shard0 if c.strip()] == ["0", "2", "9", "4", "1s ago", "never"]
    assert "broker away" in ended.out


def test_status_as_data_has_the_wires_names(ask: Run, fake: FakeFront) -> None:
    """Numbers are numbers."""
    fake.status = cluster_status()
    data: dict[str, Any] = json.loads(ask("status", "-o", "json").out)
    assert data["leader"] == {"instance_id": "beat-1", "term": 12}
    assert data["shards"][0]["loops"][0]["age_seconds"] == 1.5
    assert data["fronts"][0]["listening_since"] == "2001-09-09T01:46:40Z"
    assert data["summary"]["workloads_by_status"] == {"Failed": 0, "Pending": 1, "Running": 9}


def test_status_without_a_leader_says_so(ask: Run) -> None:
    """Nobody has to read a blank."""
    assert "leader     nobody leads" in ask("status").out


def test_F88_summary_counts_every_status(ask: Run, fake: FakeFront) -> None:
    """F88: no status is left out."""
    fake.status = cluster_status()
    ended = ask("summary")
    assert ended.out == "nodes      3: 1 NotReady, 2 Ready\nworkloads  10: 1 Pending, 9 Running\n"
    assert json.loads(ask("summary", "-o", "json").out)["total_nodes"] == 3


def test_what_an_agent_says_cannot_drive_the_terminal(ask: Run, fake: FakeFront) -> None:
    """Escape sequences in messages become blanks."""
    fake.views["x"] = [view("x", "Failed", node="n-1", reason="\x1b[2J\x1b]0;owned\x07bad")]
    for command in (("workload", "ls"), ("workload", "show", "x")):
        assert "\x1b" not in ask(*command).out
