"""What a worker logs while it runs tasks: every line says what it is about, and no line has a secret in it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[3]
SECRET = "hunter2-is-not-to-be-seen"  # noqa: S105 - the same as in the program


@dataclass(frozen=True)
class Said:
    """What the program said."""

    form: str
    everything: str
    sections: dict[str, str]

    def lines(self, section: str) -> list[dict[str, Any]]:
        """Return the fields of each line of a section; tracebacks of the text form are not lines."""
        text = self.sections[section].splitlines()
        if self.form == "json":
            return [json.loads(line) for line in text]
        stamped = [line for line in text if re.match(r"\d{4}-\d\d-\d\dT", line)]
        return [dict(re.findall(r"(\w+)=('[^']*'|\S+)", line)) for line in stamped]


@pytest.fixture(scope="module", params=["json", "text"])
def said(request: pytest.FixtureRequest) -> Said:
    """Run the worker's tasks, at the finest level."""
    own = {"REDIS_ADDR": "127.0.0.1:1", "REDIS_PASSWORD": SECRET, "LOG_LEVEL": "debug", "LOG_FORMAT": request.param}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.talkative_worker", "worker"],
        cwd=ROOT, env={"PATH": os.environ["PATH"], **own}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    parts = re.split(r"(?m)^== (\S+)\n", ran.stderr)
    return Said(request.param, ran.stdout + ran.stderr, dict(zip(parts[1::2], parts[2::2], strict=True)))


def test_every_line_of_a_cycle_names_its_loop_its_shard_and_its_slot(said: Said) -> None:
    """Celery's own line, too; what concerns a workload or a node names it, by one name each."""
    found = said.lines("cycle")
    assert found
    for line in found:
        assert (line["loop"], str(line["shard"]), str(line["cycle"])) == ("reconcile", "0", "7"), line
        assert line["component"] == "worker"
        assert not {"workload", "node_id"} & line.keys()
    (ordered,) = (line for line in found if line.get("workload_id"))
    assert (ordered["workload_id"], ordered["node"]) == ("desk", "n-1")


def test_every_line_of_a_wake_up_names_its_workload_and_its_shard(said: Said) -> None:
    """And no cycle, for it belongs to none."""
    found = said.lines("wake-up")
    assert found
    assert {(line["workload_id"], str(line["shard"])) for line in found} == {("web", "0")}
    assert not any({"cycle", "loop"} & line.keys() for line in found)


def test_a_defect_in_a_look_is_found_by_its_workload(said: Said) -> None:
    """With its traceback, and still by loop, shard and slot."""
    assert "ZeroDivisionError" in said.sections["defects"]
    defects = [line for line in said.lines("defects") if "workload_id" in line]
    assert {line["workload_id"] for line in defects} == {"web", "desk"}
    assert all((line["loop"], str(line["cycle"])) == ("reconcile", "7") for line in defects)


def test_9_25_no_secret_is_in_anything_that_a_worker_prints(said: Said) -> None:
    """Environment, cloud-init, Redis's password: with orders, refusals and tracebacks, at the finest level."""
    assert len(said.everything) > 1000
    assert SECRET not in said.everything
