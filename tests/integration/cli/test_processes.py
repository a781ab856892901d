"""The command as a process: exit codes, plain output without a terminal, colours with one, Ctrl-C, closed pipes."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.unit.cli.fake_front import FakeFront, running, serving, view

FLEETBEAT = (sys.executable, "-m", "scheduler.cli")
_LONG_SECONDS = 20.0


@pytest.fixture
def fake() -> Iterator[FakeFront]:
    """A front with an empty cluster."""
    with serving() as front:
        yield front


@pytest.fixture
def environment(fake: FakeFront) -> dict[str, str]:
    """An environment that names the fake front."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("FLEETBEAT_")}
    return {**kept, "FLEETBEAT_SERVER": fake.server, "PYTHONPATH": str(pathlib.Path(__file__).parents[3])}


def run(environment: dict[str, str], *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal."""
    return subprocess.run(
        [*FLEETBEAT, *arguments], env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_data_on_stdout_messages_on_stderr_and_exit_code_0(fake: FakeFront, environment: dict[str, str]) -> None:
    """Without a terminal there is no colour and no control character."""
    fake.views["web"] = [view("web", "Pending", reason="no node yet"), running("web")]
    done = run(environment, "apply", "-f", "-", "-o", "json", stdin="id: web\ncontainer: {image: x}\n")
    assert done.returncode == 0
    assert json.loads(done.stdout)["workloads"][0]["status"] == "Running"
    assert done.stderr.splitlines()[-1] == "web: Running on n-1"
    assert "\x1b" not in done.stdout + done.stderr


def test_exit_code_2_when_nothing_was_placed(fake: FakeFront, environment: dict[str, str]) -> None:
    """Only then."""
    fake.views["web"] = [view("web", "Pending", reason="full")]
    done = run(environment, "apply", "--image", "x", "--id", "web", "--timeout", "300ms")
    assert done.returncode == 2
    assert done.stdout.splitlines()[1].split()[:2] == ["web", "Pending"]
    assert done.stderr.splitlines()[-1] == "web: Pending: not Running after 0.3s: full"


@pytest.mark.parametrize("arguments", [("status", "--server", "127.0.0.1:1"), ("apply", "-f", "none"), ("nonsense",)])
def test_exit_code_1_and_no_traceback_on_errors(environment: dict[str, str], arguments: tuple[str, ...]) -> None:
    """Unreachable, wrong input, wrong use."""
    done = run(environment, *arguments)
    assert done.returncode == 1
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_ctrl_c_leaves_the_workload_going_and_says_so(fake: FakeFront, environment: dict[str, str]) -> None:
    """Exit code 130, and no traceback."""
    fake.views["web"] = [view("web", "Scheduled", node="n-1")]
    command = [*FLEETBEAT, "apply", "--image", "x", "--id", "web"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr
        for line in child.stderr:
            if "Scheduled" in line:
                break
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=_LONG_SECONDS)
    assert child.returncode == 130
    assert "web: goes on without this command" in err
    assert "Traceback" not in err
    assert out == ""
    assert fake.deleted == []


def test_a_following_log_goes_on_until_ctrl_c(fake: FakeFront, environment: dict[str, str]) -> None:
    """What there is comes at once."""
    fake.logs = [b"one\n", b"two\n"]
    command = [*FLEETBEAT, "workload", "logs", "-f", "web"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout
        assert [child.stdout.readline(), child.stdout.readline()] == [b"one\n", b"two\n"]
        assert child.poll() is None
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=_LONG_SECONDS)
    assert child.returncode == 130
    assert err.strip() == b""


def test_a_reader_that_goes_away_is_no_traceback(fake: FakeFront, environment: dict[str, str]) -> None:
    """`fleetbeat workload ls | head -1`."""
    fake.page_size = 500
    fake.views = {f"w{i:05}": [running(f"w{i:05}")] for i in range(5000)}
    command = [*FLEETBEAT, "workload", "ls"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stderr
        child.stdout.readline()
        child.stdout.close()
        err = child.stderr.read()
        child.wait(_LONG_SECONDS)
    assert child.returncode == 1
    assert err == b""


def on_a_terminal(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run a command whose output is a terminal; return the exit code and everything written."""
    main, side = pty.openpty()
    with subprocess.Popen(
        [*FLEETBEAT, *arguments], env={**environment, "TERM": "xterm-256color", "COLUMNS": "120"},
        stdin=side, stdout=side, stderr=side,
    ) as child:  # fmt: skip
        os.close(side)
        written = b""
        deadline = time.monotonic() + _LONG_SECONDS
        while time.monotonic() < deadline and select.select([main], [], [], _LONG_SECONDS)[0]:
            try:
                part = os.read(main, 65536)
            except OSError:  # the other side has closed
                break
            written += part
        code = child.wait(_LONG_SECONDS)
    os.close(main)
    return code, written.decode()


def test_on_a_terminal_states_have_colours(fake: FakeFront, environment: dict[str, str]) -> None:
    """People see at a glance."""
    fake.views = {"web": [running("web")], "x": [view("x", "Failed", node="n-1", reason="exit 1")]}
    code, written = on_a_terminal(environment, "workload", "ls")
    assert code == 0
    assert "\x1b[32mRunning" in written
    assert "\x1b[31mFailed" in written


def test_on_a_terminal_apply_keeps_a_line_current(fake: FakeFront, environment: dict[str, str]) -> None:
    """And ends with the table; what did not work out is told."""
    fake.views["web"] = [view("web", "Scheduled", node="n-1"), running("web")]
    code, written = on_a_terminal(environment, "apply", "--image", "x", "--id", "web")
    assert code == 0
    assert "web: Scheduled on n-1" in written
    assert "\x1b[32mRunning" in written.splitlines()[-1]
    fake.views["web"] = [view("web", "Pending", reason="no node fits")]
    code, written = on_a_terminal(environment, "apply", "--image", "x", "--id", "web", "--timeout", "500ms")
    assert code == 2
    assert "web: Pending: not Running after 0.5s: no node fits" in written


def test_the_shells_completion_knows_the_commands(environment: dict[str, str]) -> None:
    """It comes with click; nothing is imported for names."""
    for words, expected in (("fleetbeat wo", "workload"), ("fleetbeat workload ex", "explain")):
        asked = {
            **environment,
            "_FLEETBEAT_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
        }
        done = run(asked)
        assert f"plain,{expected}" in done.stdout
