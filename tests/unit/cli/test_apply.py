# ruff: noqa: RUF001 - rows are named as their table names them; messages have en dashes
"""`fleetbeat apply` against a front: what is sent, what is said, and the exit code."""

from __future__ import annotations

import json
import pathlib

import grpc
import pytest
import yaml

from scheduler.cli import follow
from scheduler.pb import control_pb2
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_front import FakeFront, running, view

WEB = "id: web\ncontainer: {image: 'nginx:1.27'}\n"
DB = "id: db\ncontainer: {image: 'postgres:17'}\n"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often than people need it."""
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(follow, "FAILED_SECONDS", 0.1)


def test_a_workload_is_followed_until_it_runs(ask: Run, fake: FakeFront, nowhere: pathlib.Path) -> None:
    """Each change is one line on stderr, the result is data on stdout, the exit code is 0."""
    (nowhere / "web.yaml").write_text(WEB)
    fake.views["web"] = [
        view("web", "Pending", reason="no node yet"),
        view("web", "Scheduled", node="n-2"),
        running("web", node="n-2"),
    ]
    ended = ask("apply", "-f", "web.yaml")
    assert ended.code == 0
    assert ended.err.splitlines() == [
        "web: Pending",
        "web: Pending: no node yet",
        "web: Scheduled on n-2",
        "web: Running on n-2",
    ]
    assert [line.split() for line in ended.out.splitlines()] == [
        ["ID", "STATUS", "NODE", "REVISION", "REASON"],
        ["web", "Running", "n-2", "r1", "-"],
    ]
    assert fake.applied[0].spec.container.image == "nginx:1.27"


def test_documents_of_several_files_and_stdin_are_sent_in_order(
    ask: Run, fake: FakeFront, nowhere: pathlib.Path
) -> None:
    """-f is repeatable, - is stdin, and a file may hold several workloads."""
    (nowhere / "a.yaml").write_text(WEB + "---\n" + DB)
    ended = ask("apply", "-f", "a.yaml", "-f", "-", "-o", "json", stdin=b"id: x\ncontainer: {image: x}\n")
    assert ended.code == 0
    assert [r.workload_id for r in fake.applied] == ["web", "db", "x"]
    assert [w["outcome"] for w in json.loads(ended.out)["workloads"]] == ["done"] * 3


def test_nothing_is_sent_when_one_document_is_wrong(ask: Run, fake: FakeFront, nowhere: pathlib.Path) -> None:
    """All documents of all files are checked first."""
    (nowhere / "a.yaml").write_text(WEB)
    (nowhere / "b.yaml").write_text(DB + "---\nid: c\ncontainer: {image: c, ports: [{container_port: 70000}]}\n")
    ended = ask("apply", "-f", "a.yaml", "-f", "b.yaml")
    assert ended.code == 1
    assert fake.applied == []
    assert "b.yaml:5: container.ports[0].container_port: 70000 is not a port; allowed 1–65535" in ended.err


def test_an_id_that_stands_twice_is_told_with_both_places(ask: Run, fake: FakeFront, nowhere: pathlib.Path) -> None:
    """Also over several files."""
    (nowhere / "a.yaml").write_text(WEB)
    (nowhere / "b.yaml").write_text(DB + "---\n" + WEB)
    ended = ask("apply", "-f", "a.yaml", "-f", "b.yaml")
    assert ended.code == 1
    assert 'b.yaml:4: id: "web" stands twice, first in a.yaml:1' in ended.err
    assert fake.applied == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-f", "none.yaml"), "none.yaml: No such file or directory"),
        (("-f", "."), ".: Is a directory"),
        (("-f", "empty.yaml"), "empty.yaml: there is no workload in it"),
        (("-f", "big.yaml"), "big.yaml: is larger than 1048576 bytes"),
        ((), "give either -f FILE or --image IMAGE"),
        (("-f", "empty.yaml", "--image", "x"), "give either -f FILE or --image IMAGE"),
        (("--id", "x"), "--image IMAGE is missing"),
        (("-f", "empty.yaml", "--", "sh"), "give either -f FILE or --image IMAGE"),
        (("--image", "x", "--cpu", "many"), "'many' is not an amount of CPU"),
        (("--image", "x", "--cpu", "0.0001"), "'0.0001' is not an amount of CPU"),
        (("--image", "x", "--memory", "64Q"), "'64Q' is not a size"),
        (("--image", "x", "--env", "A"), "'A' is not NAME=VALUE"),
        (("--image", "x", "--port", "http"), "'http' is not HOST[:CONTAINER]"),
        (("--image", "x", "--port", "70000"), "command line: container.ports[0].host_port: 70000 is not a port"),
        (("--image", "x", "--restart", "maybe"), "command line: container.restart_policy"),
        (("--image", "a b"), "command line: container.image"),
        (("--image", "host", "--id", "x"), "command line: container.command: must name the program"),
        (("--image", "x", "--id", "-"), "command line: id: '-' must consist of"),
        (("--image", "x", "--timeout", "0"), "'0' must be more than 0"),
        (("--image", "x", "--timeout", "soon"), "'soon' is not a duration"),
        (("--image", "x", "--comand"), "No such option"),
    ],
)
def test_wrong_use_is_one_clear_message_and_exit_code_1(
    ask: Run, fake: FakeFront, nowhere: pathlib.Path, arguments: tuple[str, ...], said: str
) -> None:
    """Exit code 2 is kept for "placed nothing"."""
    (nowhere / "empty.yaml").write_text("# nothing\n---\n")
    (nowhere / "big.yaml").write_text("#" + "x" * 1024 * 1024)
    ended = ask("apply", *arguments)
    assert ended.code == 1
    assert said in ended.err
    assert ended.out == ""
    assert fake.applied == []


def test_options_describe_a_workload(ask: Run, fake: FakeFront) -> None:
    """Everything a small container needs, without a file."""
    ended = ask(
        "apply", "--image", "nginx", "--id", "web", "--cpu", "0.25", "--memory", "1Gi", "--disk", "10", "--env",
        "A=b=c", "--port", "8080:80/udp", "--port", "9000", "--restart", "always", "--", "nginx", "-g", "daemon off;",
    )  # fmt: skip
    assert ended.code == 0
    request = fake.applied[0]
    assert request.workload_id == "web"
    resources = request.spec.resources
    assert (resources.cpu_millicores, resources.memory_mb, resources.disk_gb) == (250, 1024, 10)
    assert dict(request.spec.container.env) == {"A": "b=c"}
    assert [(p.host_port, p.container_port, p.protocol) for p in request.spec.container.ports] == [
        (8080, 80, "udp"),
        (9000, 9000, "tcp"),
    ]
    assert list(request.spec.container.command) == ["nginx", "-g", "daemon off;"]
    assert request.spec.container.restart_policy == "always"


@pytest.mark.parametrize(
    ("image", "command", "base"),
    [
        ("registry:5000/team/web:1.2", (), "web-"),
        ("web@sha256:aa", (), "web-"),
        ("host", ("/usr/bin/sleep", "5"), "sleep-"),
    ],
)
def test_an_id_is_made_from_the_image(
    ask: Run, fake: FakeFront, image: str, command: tuple[str, ...], base: str
) -> None:
    """With a part by chance, so that two of the same image do not become one."""
    for _ in range(2):
        assert ask("apply", "--image", image, "--detach", "--", *command).code == 0
    first, second = (r.workload_id for r in fake.applied)
    assert first.startswith(base)
    assert first != second


def test_dry_run_needs_no_front_and_prints_what_can_be_applied(run: Run, nowhere: pathlib.Path) -> None:
    """The YAML it prints is a manifest."""
    (nowhere / "a.yaml").write_text(WEB + "---\n" + DB)
    ended = run("apply", "-f", "a.yaml", "--dry-run", "-o", "yaml")
    assert ended.code == 0
    assert "nothing was sent" in ended.err
    assert [d["id"] for d in yaml.safe_load_all(ended.out)] == ["web", "db"]
    again = run("apply", "-f", "-", "--dry-run", "-o", "yaml", stdin=ended.out.encode())
    assert again.out == ended.out


def test_detach_sends_and_returns(ask: Run, fake: FakeFront) -> None:
    """Nothing is followed; the exit code is 0 while no answer says that no node was found."""
    fake.views["web"] = [view("web", "Pending")]
    ended = ask("apply", "--image", "x", "--id", "web", "--detach", "-o", "json")
    assert ended.code == 0
    assert json.loads(ended.out)["workloads"][0]["outcome"] == "stored"


def test_detach_with_a_pending_answer_is_exit_code_2(ask: Run, fake: FakeFront) -> None:
    """The front placed nothing, and said why."""
    fake.answers["web"] = control_pb2.ApplyWorkloadResponse(
        success=True, status="Pending", pending_reason="no node has 4 GB of memory"
    )
    ended = ask("apply", "--image", "x", "--id", "web", "--detach")
    assert ended.code == 2
    assert "web: Pending: no node has 4 GB of memory" in ended.err


def test_F11_pending_until_the_time_is_over_is_exit_code_2_and_tells_why(ask: Run, fake: FakeFront) -> None:
    """F11: the workload is stored and the reason is told."""
    fake.views["web"] = [view("web", "Pending", reason="3 nodes: cpu_insufficient")]
    ended = ask("apply", "--image", "x", "--id", "web", "--timeout", "200ms")
    assert ended.code == 2
    assert "web: Pending: not Running after 0.2s: 3 nodes: cpu_insufficient" in ended.err


def test_some_placed_and_some_not_is_exit_code_1(ask: Run, fake: FakeFront, nowhere: pathlib.Path) -> None:
    """2 means that nothing at all was placed."""
    (nowhere / "a.yaml").write_text(WEB + "---\n" + DB)
    fake.views["web"] = [view("web", "Pending", reason="full")]
    assert ask("apply", "-f", "a.yaml", "--timeout", "200ms").code == 1


def test_placed_but_not_running_in_time_is_an_error(ask: Run, fake: FakeFront) -> None:
    """It has a node; the message says what it was last."""
    fake.views["web"] = [view("web", "Scheduled", node="n-1")]
    ended = ask("apply", "--image", "x", "--id", "web", "--timeout", "200ms")
    assert ended.code == 1
    assert "web: Scheduled on n-1: not Running after 0.2s" in ended.err


def test_a_failure_that_lasts_is_told_and_ends_with_1(ask: Run, fake: FakeFront) -> None:
    """With the reason and the next command."""
    fake.views["web"] = [view("web", "Failed", node="n-1", reason="image not found:\nnginx:9")]
    ended = ask("apply", "--image", "x", "--id", "web")
    assert ended.code == 1
    assert "web: Failed on n-1: image not found: nginx:9" in ended.err
    assert "see `fleetbeat workload logs web`" in ended.err


def test_a_failure_that_passes_is_no_failure(ask: Run, fake: FakeFront) -> None:
    """The control plane starts a dead copy again; that is not the end."""
    fake.views["web"] = [view("web", "Failed", node="n-1", reason="exit 1"), running("web")]
    assert ask("apply", "--image", "x", "--id", "web").code == 0


def test_a_refusal_in_the_answer_is_told(ask: Run, fake: FakeFront) -> None:
    """success=false carries a code and a text."""
    fake.answers["web"] = control_pb2.ApplyWorkloadResponse(
        success=False, failure_reason=control_pb2.INVALID_SPEC, error_message="it is being deleted"
    )
    ended = ask("apply", "--image", "x", "--id", "web")
    assert ended.code == 1
    assert "web: Refused: it is being deleted (INVALID_SPEC)" in ended.err


def test_a_refused_workload_does_not_keep_the_others_from_being_sent(
    ask: Run, fake: FakeFront, nowhere: pathlib.Path
) -> None:
    """Each is told by itself; the exit code is 1."""
    (nowhere / "a.yaml").write_text(WEB + "---\n" + DB)
    fake.refusals["web"] = (grpc.StatusCode.INVALID_ARGUMENT, "spec.container.image: no such thing")
    ended = ask("apply", "-f", "a.yaml")
    assert ended.code == 1
    assert f"web: Refused: front {fake.server}: spec.container.image: no such thing (INVALID_ARGUMENT)" in ended.err
    assert [r.workload_id for r in fake.applied] == ["db"]
    assert "db: Running on n-1" in ended.err


def test_a_front_that_goes_away_while_sending_ends_it_and_says_what_was_sent(
    ask: Run, fake: FakeFront, nowhere: pathlib.Path
) -> None:
    """A write is not repeated by itself; the person is told that repeating is safe."""
    (nowhere / "a.yaml").write_text(WEB + "---\n" + DB)
    fake.refusals["db"] = (grpc.StatusCode.UNAVAILABLE, "etcd does not answer")
    ended = ask("apply", "-f", "a.yaml")
    assert ended.code == 1
    assert "web: goes on without this command" in ended.err
    assert "db: not known to be sent" in ended.err
    assert "etcd does not answer; whether it was done is not known, it is safe to repeat the command" in ended.err
    assert "Traceback" not in ended.err


def test_a_front_that_is_away_for_a_moment_does_not_end_the_following(ask: Run, fake: FakeFront) -> None:
    """Reads are asked again."""
    fake.away_for["GetWorkload"] = 3
    assert ask("apply", "--image", "x", "--id", "web").code == 0


def test_a_view_of_an_older_revision_is_not_taken_for_the_new_one(ask: Run, fake: FakeFront) -> None:
    """F13: after an update the old copy still runs; that is not success."""
    fake.views["web"] = [running("web", revision="r0"), view("web", "Updating", node="n-1"), running("web")]
    ended = ask("apply", "--image", "x", "--id", "web")
    assert ended.code == 0
    assert "the front shows revision r0, not yet r1" in ended.err


def test_a_workload_that_is_deleted_meanwhile_is_an_error(ask: Run, fake: FakeFront) -> None:
    """Nobody waits for what will never run."""
    fake.refusals["GetWorkload"] = (grpc.StatusCode.NOT_FOUND, 'workload "web" does not exist')
    ended = ask("apply", "--image", "x", "--id", "web")
    assert ended.code == 1
    assert "web: Deleted: somebody deleted it" in ended.err


def test_F19_a_stopped_workload_is_followed_until_it_is_stopped(ask: Run, fake: FakeFront) -> None:
    """F19: desired Stopped is reached when the status is."""
    fake.views["web"] = [running("web"), view("web", "Stopped", node="n-1")]
    ended = ask("apply", "-f", "-", stdin=(WEB + "desired_state: Stopped\n").encode())
    assert ended.code == 0
    assert fake.applied[0].desired_state == "Stopped"


def test_a_vm_that_runs_with_an_address_runs(ask: Run, fake: FakeFront) -> None:
    """The reference system writes `Running (ip=…)`."""
    fake.views["web"] = [view("web", "Running (ip=10.0.0.7)", node="n-1")]
    assert ask("apply", "--image", "x", "--id", "web").code == 0
