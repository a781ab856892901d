"""A fake front, and a way to run a command against it."""

from __future__ import annotations

import contextlib
import io
import pathlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from scheduler.cli.main import main
from tests.unit.cli.fake_front import FakeFront, serving


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def fake() -> Iterator[FakeFront]:
    """A front with an empty cluster."""
    with serving() as front:
        yield front


@pytest.fixture
def nowhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A working directory of the test's own, and no setting that names a front."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLEETBEAT_SERVER", raising=False)
    monkeypatch.delenv("FLEETBEAT_DATA", raising=False)
    return tmp_path


@pytest.fixture
def run(nowhere: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: ARG001 - for its effect
    """Run a command line in this process, as main() does."""

    def call(*arguments: str, stdin: bytes = b"") -> Ended:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        monkeypatch.setattr(sys, "argv", ["fleetbeat", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main()
        return Ended(code, *(s.buffer.getvalue().decode() for s in (out, err)))  # type: ignore[attr-defined]

    return call


@pytest.fixture
def ask(run: Run, fake: FakeFront) -> Run:
    """Run a command against the fake front."""

    def call(*arguments: str, stdin: bytes = b"") -> Ended:
        return run("--server", fake.server, *arguments, stdin=stdin)

    return call
