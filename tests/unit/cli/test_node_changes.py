"""The commands by which operators change nodes: what is sent, what is said, and how a drain is followed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import grpc
import pytest

from scheduler.cli import drain as module
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2 as fb
from tests.unit.cli.conftest import Run
from tests.unit.cli.fake_front import FakeFront


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)


def progress(state: str = "Draining", *, left: int = 0, moving: int = 0, moved: int = 0, **states: str) -> Any:
    """Describe how far a drain has come."""
    workloads = [fb.LeavingWorkload(workload_id=w, state=s, reason="because") for w, s in states.items()]
    return fb.GetDrainResponse(
        node_id="n-1", state=state, total=3, left=left, moving=moving, moved=moved, workloads=workloads
    )


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("taint n-1 gpu=a100", pb.TaintNodeRequest(node_id="n-1", taint=pb.NodeTaint(key="gpu", value="a100"))),
        (
            "taint n-1 power:NoExecute",
            pb.TaintNodeRequest(node_id="n-1", taint=pb.NodeTaint(key="power", effect="NoExecute")),
        ),
        ("untaint n-1 gpu:NoExecute", pb.UntaintNodeRequest(node_id="n-1", key="gpu", effect="NoExecute")),
        ("untaint n-1 gpu", pb.UntaintNodeRequest(node_id="n-1", key="gpu")),
        ("label n-1 disk=ssd", pb.SetNodeLabelRequest(node_id="n-1", key="disk", value="ssd")),
        ("unlabel n-1 disk", pb.DeleteNodeLabelRequest(node_id="n-1", key="disk")),
        ("cordon n-1", fb.CordonNodeRequest(node_id="n-1")),
        ("uncordon n-1", fb.UncordonNodeRequest(node_id="n-1")),
        ("undrain n-1 --reason done", pb.UndrainNodeRequest(node_id="n-1", reason="done")),
        ("remove n-1 --force --dry-run", fb.RemoveNodeRequest(node_id="n-1", force=True, validate_only=True)),
    ],
)
def test_each_command_sends_what_it_was_given(ask: Run, fake: FakeFront, line: str, sent: Any) -> None:
    """And writes the answer, for people or as data."""
    ended = ask("node", *line.split())
    assert (ended.code, fake.node_calls) == (0, [sent])
    assert ended.out.strip()
    assert json.loads(ask("node", *line.split(), "-o", "json").out) is not None


def test_a_removal_says_what_becomes_of_the_work(ask: Run) -> None:
    """Never silently."""
    assert 'node "n-1" is removed; 2 workloads are placed anew' in ask("node", "remove", "n-1").out


def test_a_label_without_a_value_is_told_what_to_write(ask: Run, fake: FakeFront) -> None:
    """Nothing is sent."""
    ended = ask("node", "label", "n-1", "disk")
    assert (ended.code, fake.node_calls) == (1, [])
    assert "is not KEY=VALUE" in ended.err


def test_a_refusal_is_told_with_exit_code_1(ask: Run, fake: FakeFront) -> None:
    """In the front's words."""
    fake.refusals["RemoveNode"] = (grpc.StatusCode.FAILED_PRECONDITION, 'node "n-1" is heard')
    ended = ask("node", "remove", "n-1")
    assert ended.code == 1
    assert 'node "n-1" is heard' in ended.err


def test_F64_a_drain_sends_only_the_options_that_are_given(ask: Run, fake: FakeFront) -> None:
    """What is left out stays as it is; words for none and at once."""
    fake.drains = [progress("Drained")]
    ask("node", "drain", "n-1")
    assert fake.node_calls[0] == pb.DrainNodeRequest(node_id="n-1")
    options = "--max-parallel 5 --min-healthy 10s --deadline 30m --ignore-pinned --reason why --no-wait"
    ask("node", "drain", "n-1", *options.split())
    assert fake.node_calls[2] == pb.DrainNodeRequest(
        node_id="n-1", reason="why", max_parallel=5, min_healthy_seconds=10, deadline_seconds=1800, ignore_pinned=True
    )
    ask("node", "drain", "n-1", "--no-wait", "--deadline", "none", "--min-healthy", "0", "--respect-pinned")
    assert fake.node_calls[4] == pb.DrainNodeRequest(
        node_id="n-1", min_healthy_seconds=0, deadline_seconds=-1, ignore_pinned=False
    )
    ask("node", "drain", "n-1", "--dry-run", "--deadline", "0")
    assert fake.node_calls[6] == pb.DrainNodeRequest(node_id="n-1", deadline_seconds=0, validate_only=True)


@pytest.mark.parametrize("options", ["--max-parallel 0", "--deadline soon", "--min-healthy -1", "--timeout 0"])
def test_F64_an_option_that_makes_no_sense_is_not_sent(ask: Run, fake: FakeFront, options: str) -> None:
    """Wrong use."""
    ended = ask("node", "drain", "n-1", *options.split())
    assert (ended.code, fake.node_calls) == (1, [])


def test_F64_a_drain_is_followed_until_the_node_is_drained(ask: Run, fake: FakeFront) -> None:
    """One line a change on stderr, the end on stdout."""
    waiting = progress(left=2, moving=1, a="moving", b="blocked", c="waiting")
    fake.drains = [waiting, waiting, progress(left=0, moving=1, moved=2, c="moving"), progress("Drained", moved=3)]
    ended = ask("node", "drain", "n-1")
    assert ended.code == 0
    assert ended.err.splitlines() == [
        "ok",
        "n-1: Draining: 0 of 3 moved, 1 on the way, 2 left (1 blocked)",
        "n-1: Draining: 2 of 3 moved, 1 on the way, 0 left",
        "n-1: Drained: 3 of 3 moved, 0 on the way, 0 left",
    ]


@pytest.mark.parametrize(
    ("last", "options", "said"),
    [
        (progress(left=1, moved=2, db="pinned"), "", "--ignore-pinned"),
        (progress(""), "", "somebody has ended the drain"),
        (progress(left=1, b="blocked"), "--timeout 0.05", "the drain goes on"),
    ],
)
def test_F64_waiting_ends_when_there_is_nothing_to_wait_for(
    ask: Run, fake: FakeFront, last: Any, options: str, said: str
) -> None:
    """With exit code 1, the reason, and what is left."""
    fake.drains = [last]
    ended = ask("node", "drain", "n-1", *options.split())
    assert ended.code == 1
    assert said in ended.err


def test_F64_interrupting_leaves_the_drain_running_and_says_so(fake: FakeFront) -> None:
    """Ctrl-C ends the command, with the exit code of an interrupt."""
    fake.drains = [progress(left=1, b="waiting")]
    command = [sys.executable, "-m", "scheduler.cli", "node", "drain", "n-1", "--server", fake.server]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr
        said = [process.stderr.readline(), process.stderr.readline()]
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert "0 of 3 moved" in said[1]
    assert "the drain of n-1 goes on; `fleetbeat node undrain n-1` ends it" in rest
    assert process.returncode == 130
