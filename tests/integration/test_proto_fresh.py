"""The committed stubs are those of proto/, and proto/ is the wire of the reference systems."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("control", "agent", "scheduler", "fleetbeat", "etcdmin")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command at the root of the repository, without what `make test` hands on to any make below it."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=plain)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_stubs_are_what_make_proto_generates(tmp_path: pathlib.Path) -> None:
    """A change of proto/ without `make proto`, or a stub edited by hand, is found here."""
    tools = pathlib.Path(sys.executable).parent
    done = run("make", "-o", ".venv/.ready", "proto", f"OUT={tmp_path}", f"BIN={tools}")
    assert done.returncode == 0, done.stderr
    fresh = {path.name: path.read_text() for path in (tmp_path / "scheduler/pb").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "scheduler/pb").glob("*_pb2*.py*") if path.suffix != ".pyc"}
    assert sorted(kept) == sorted(fresh)
    assert [name for name in fresh if kept[name] != fresh[name]] == []


def test_the_wire_is_that_of_the_reference_systems(tmp_path: pathlib.Path) -> None:
    """Every service, message, field and number of wire.json is there; additions begin at 100."""
    descriptors = tmp_path / "all.pb"
    sources = [f"scheduler/pb/{name}.proto" for name in PACKAGES]
    compile_all = ("-m", "grpc_tools.protoc", "-Ischeduler/pb=proto", "--include_imports")
    done = run(sys.executable, *compile_all, f"--descriptor_set_out={descriptors}", *sources)
    assert done.returncode == 0, done.stderr
    checked = run(
        sys.executable, "tests/wire/check_wire.py", str(descriptors), "--wire", str(ROOT / "tests/wire/wire.json")
    )
    assert checked.returncode == 0, checked.stdout
