"""The tutorial is run as it is written: each command block, compared with the output block behind it."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

TUTORIAL = pathlib.Path(__file__).parents[2] / "docs" / "tutorial" / "first-cluster.md"
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STEP_SECONDS = 120.0


def steps() -> list[tuple[str, str]]:
    """Return each command block with the output that should follow."""
    blocks = _BLOCK.findall(TUTORIAL.read_text())
    assert [kind for kind, _ in blocks] == ["sh", "text"] * (len(blocks) // 2)
    return [(blocks[i][1], blocks[i + 1][1]) for i in range(0, len(blocks), 2)]


def matches(expected: str, printed: str) -> bool:
    """Compare whole outputs, blanks at line ends aside; … stands for any text, a line of it for any lines or none."""
    lines = (r"(?:.*\n)?" if line == "…" else _pattern(line) + r"\n" for line in _plain(expected).splitlines())
    return re.fullmatch("".join(lines), _plain(printed) + "\n", re.DOTALL) is not None


def _pattern(line: str) -> str:
    return re.escape(line).replace("…", r"[^\n]*")


def _plain(printed: str) -> str:
    return "\n".join(line.rstrip() for line in printed.strip().splitlines())


@pytest.fixture
def environment(tmp_path: pathlib.Path) -> Iterator[dict[str, str]]:
    """The reader's shell; whatever still runs at the end is stopped."""
    binaries = str(pathlib.Path(sys.executable).parent)
    shell = {k: v for k, v in os.environ.items() if k not in {"FLEETBEAT_SERVER", "FLEETBEAT_DATA"}}
    shell["PATH"] = f"{binaries}:{shell['PATH']}"
    yield shell
    subprocess.run(["fleetbeat", "down"], cwd=tmp_path, env=shell, check=False, capture_output=True, timeout=60)


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: pathlib.Path, environment: dict[str, str]) -> None:
    """Every block, in order, in one folder."""
    for commands, expected in steps():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=tmp_path, env=environment, text=True, timeout=_STEP_SECONDS, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        assert matches(expected, done.stdout), f"{commands}\nprinted\n{done.stdout}"


def test_the_comparison_tells_a_wrong_output_apart() -> None:
    """A missing line, another word and another order do not match."""
    assert matches("a\n…\nc 1…s", "a\nb\nc 1.5 s")
    assert matches("…\na\n…", "a")
    for wrong in ("a\nb", "c 1s\na\nb", "a\nb\nd 1s"):
        assert not matches("a\n…\nc 1…s", wrong)
