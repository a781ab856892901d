"""Which front a command talks to, and what it says when that does not answer."""

from __future__ import annotations

import json
import pathlib
import time

import grpc
import pytest

from scheduler.cli import connect
from tests.support.servers import free_port
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_front import FakeFront


def write_cluster(folder: pathlib.Path, server: str) -> None:
    """Write what `fleetbeat up` writes when it is ready."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cluster.json").write_text(json.dumps({"pid": 1, "server": server}))


@pytest.mark.parametrize(
    "arguments",
    [("--server", "{}", "summary"), ("summary", "--server", "{}"), ("summary", "--server={}")],
)
def test_the_server_stands_before_or_after_the_command(run: Run, fake: FakeFront, arguments: tuple[str, ...]) -> None:
    """Both places mean the same."""
    assert run(*(a.format(fake.server) for a in arguments)).code == 0


def test_the_last_one_given_counts(run: Run, fake: FakeFront) -> None:
    """What stands after the command is nearer to it."""
    assert run("--server", "127.0.0.1:1", "node", "--server", "127.0.0.1:2", "ls", "--server", fake.server).code == 0


def test_the_output_form_may_stand_before_the_command(run: Run, fake: FakeFront) -> None:
    """-o is an option of every command."""
    assert json.loads(run("-o", "json", "--server", fake.server, "node", "ls").out)["nodes"] == []


def test_the_environment_names_a_server(run: Run, fake: FakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an option wins over it."""
    monkeypatch.setenv("FLEETBEAT_SERVER", fake.server)
    assert run("summary").code == 0
    monkeypatch.setenv("FLEETBEAT_SERVER", "127.0.0.1:1")
    assert run("summary", "--server", fake.server).code == 0


@pytest.mark.parametrize("arguments", [("--data", "d", "summary"), ("summary", "--data", "d")])
def test_without_a_server_the_cluster_of_the_data_folder_is_used(
    run: Run, fake: FakeFront, nowhere: pathlib.Path, arguments: tuple[str, ...]
) -> None:
    """--data stands before or after the command, too."""
    write_cluster(nowhere / "d", fake.server)
    assert run(*arguments).code == 0


def test_the_data_folder_is_named_by_the_environment_or_is_the_default(
    run: Run, fake: FakeFront, nowhere: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLEETBEAT_DATA, else .fleetbeat."""
    write_cluster(nowhere / ".fleetbeat", fake.server)
    assert run("summary").code == 0
    write_cluster(nowhere / "other", "127.0.0.1:1")
    monkeypatch.setenv("FLEETBEAT_DATA", "other")
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.1)
    assert run("summary").code == 1


def test_without_a_cluster_the_error_says_what_to_do(run: Run) -> None:
    """`fleetbeat up`, or --server."""
    ended = run("status")
    assert ended.code == 1
    assert "`fleetbeat up`" in ended.err
    assert "--server" in ended.err


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"server": ""}', '{"server": "nonsense"}', "\x00"])
def test_a_broken_state_file_is_an_error_not_a_traceback(run: Run, nowhere: pathlib.Path, content: str) -> None:
    """Whatever it holds."""
    (nowhere / ".fleetbeat").mkdir()
    (nowhere / ".fleetbeat" / "cluster.json").write_text(content)
    ended = run("status")
    assert ended.code == 1
    assert ended.err.startswith("Error: ")
    assert "--server" in ended.err


@pytest.mark.parametrize("server", ["front", ":8085", "front:", "front:http", "front:0", "front:65536", ",", "::1"])
def test_a_server_that_is_none_is_told(run: Run, server: str) -> None:
    """HOST:PORT."""
    ended = run("status", "--server", server)
    assert ended.code == 1
    assert "HOST:PORT" in ended.err


def test_a_front_that_does_not_answer_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback; it names the address."""
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    server = f"127.0.0.1:{free_port()}"
    ended = run("status", "--server", server)
    assert (ended.code, ended.err) == (1, f"Error: no front answers at {server}\n")


def test_a_cluster_that_has_gone_hints_at_up(run: Run, nowhere: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state file may be left from a crash."""
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.2)
    write_cluster(nowhere / ".fleetbeat", f"127.0.0.1:{free_port()}")
    assert "`fleetbeat up` starts it" in run("status").err


def test_several_servers_are_tried_in_turn(run: Run, fake: FakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that answers is used."""
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.5)
    ended = run("status", "--server", f"127.0.0.1:{free_port()},{fake.server}")
    assert ended.code == 0
    assert fake.server in ended.out


def test_a_front_that_is_down_does_not_cost_its_time_out(
    run: Run, fake: FakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fronts are tried at once: with the first one gone, no command waits for it."""
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 60.0)
    started = time.monotonic()
    ended = run("status", "--server", f"127.0.0.1:{free_port()},{fake.server}")
    assert time.monotonic() - started < 30
    assert ended.code == 0


def test_the_first_front_named_is_used_while_it_answers(run: Run, fake: FakeFront) -> None:
    """The others are not even asked: what was just written is read back where it was written."""
    ended = run("status", "--server", f"{fake.server},127.0.0.1:{free_port()}")
    assert fake.server in ended.out


def test_a_read_is_repeated_while_the_front_is_away_for_a_moment(ask: Run, fake: FakeFront) -> None:
    """UNAVAILABLE is asked again."""
    fake.away_for["GetClusterStatus"] = 3
    assert ask("status").code == 0


def test_a_read_is_not_repeated_for_ever(ask: Run, fake: FakeFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds the reason is told."""
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.5)
    fake.refusals["GetClusterStatus"] = (grpc.StatusCode.UNAVAILABLE, "etcd does not answer")
    started = time.monotonic()
    ended = ask("status")
    assert time.monotonic() - started < 10
    assert (ended.code, ended.err) == (1, f"Error: front {fake.server} is not available: etcd does not answer\n")


def test_a_write_is_not_repeated(ask: Run, fake: FakeFront) -> None:
    """Its fate is unknown; the person decides."""
    fake.away_for["RetryWorkload"] = 1
    ended = ask("workload", "retry", "a")
    assert ended.code == 1
    assert fake.retried == []
    assert "whether it was done is not known" in ended.err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "does not offer this"),
        (grpc.StatusCode.INTERNAL, "oh no (INTERNAL)"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "did not answer in time"),
        (grpc.StatusCode.PERMISSION_DENIED, "oh no (PERMISSION_DENIED)"),
    ],
)
def test_every_grpc_error_is_one_line_that_names_the_front(
    ask: Run, fake: FakeFront, code: grpc.StatusCode, said: str
) -> None:
    """Also when its text has several lines."""
    fake.refusals["GetClusterStatus"] = (code, "oh\nno")
    ended = ask("status")
    assert ended.code == 1
    assert len(ended.err.splitlines()) == 1
    assert fake.server in ended.err
    assert said in ended.err


def test_a_proxy_for_the_web_is_not_used(ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """http_proxy is for the web."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert ask("summary").code == 0


def test_F77_certificates_are_named_by_options_or_the_environment_all_three_together(
    run: Run, fake: FakeFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing, or cannot be read, is told; a front that speaks no TLS is not reached with them."""
    done = run("--server", fake.server, "--ca", "ca.pem", "summary")
    assert done.code == 1
    assert "--cert, --key is missing" in done.err
    monkeypatch.setenv("FLEETBEAT_CA", "no-such-ca.pem")
    monkeypatch.setenv("FLEETBEAT_CERT", "c.crt")
    done = run("summary", "--server", fake.server, "--key", "k.key")
    assert done.code == 1
    assert "no-such-ca.pem cannot be read" in done.err
