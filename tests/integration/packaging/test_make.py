"""`make setup` says clearly what a machine lacks."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[3]
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
"""The environment without what `make test` hands on to any make below it."""


def make_setup(venv: pathlib.Path, python: str) -> str:
    """Run `make setup` with some Python into a folder of its own; return what it complains about."""
    done = subprocess.run(
        ["make", "setup", f"VENV={venv}", f"PYTHON={python}"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env=PLAIN,
    )  # fmt: skip
    assert done.returncode != 0
    assert not venv.exists()
    return done.stderr


def test_without_a_new_enough_python_make_says_which_is_needed(tmp_path: pathlib.Path) -> None:
    """No Python was found: the version that is needed, the packages, and how to name another one."""
    told = make_setup(tmp_path / "venv", "")
    assert "needs Python 3.11 or later" in told
    assert "apt-get install python3 python3-venv" in told
    assert "PYTHON=/path/to/" in told


def test_without_the_venv_module_make_says_what_to_install(tmp_path: pathlib.Path) -> None:
    """Debian ships Python without ensurepip; pip's own message would not say what to do."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    told = make_setup(tmp_path / "venv", str(python))
    assert f"{python} cannot make virtual environments" in told
    assert "apt-get install python3-venv" in told


@pytest.mark.parametrize("target", ["setup", "up", "test", "lint", "proto", "lock", "docs", "bench", "clean"])
def test_make_help_lists_every_target(target: str) -> None:
    """`make` alone tells what there is."""
    told = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True, env=PLAIN).stdout
    assert any(line.split()[0] == target for line in told.splitlines())
