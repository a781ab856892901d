"""Compose files from git, out of real repositories: what is fetched, and what is refused."""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import tempfile
import time
from typing import Any

import pytest

from scheduler.domain.errors import InvalidInput
from scheduler.domain.workload import WorkloadSpec
from scheduler.front.git import GitSource, checked_url
from scheduler.pb import control_pb2 as pb
from scheduler.settings import Settings
from scheduler.store.keys import SPECS
from tests.support.fronts import front_on

ONE = "services:\n  a: {image: nginx}\n"
TWO = "services:\n  b: {image: redis}\n"


class Repository:
    """A git repository in a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Make it, with one commit."""
        self.folder = folder
        self.url = f"file://{folder}"
        folder.mkdir()
        self.run("init", "--quiet", "--initial-branch=main")
        self.first = self.commit(ONE)

    def run(self, *command: str) -> str:
        """Run git there."""
        env = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
        }  # fmt: skip
        done = subprocess.run(["git", *command], cwd=self.folder, env=env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, content: str, name: str = "compose.yaml") -> str:
        """Commit a file; return the commit's id."""
        (self.folder / name).write_text(content)
        self.run("add", "--all")
        self.run("commit", "--quiet", "--message", "x")
        return self.run("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: pathlib.Path) -> Repository:
    """A repository."""
    return Repository(tmp_path / "repo")


def stack(repository: Repository, ref: str = "") -> pb.WorkloadSpec:
    """Describe a project that comes from the repository."""
    compose = pb.ComposeSpec(source_type="git", git_repo=repository.url, git_ref=ref)
    return pb.WorkloadSpec(type="compose", compose=compose)


def wanted(repository: Repository, ref: str = "") -> WorkloadSpec:
    """Return the spec before its file is fetched."""
    return WorkloadSpec(id="a", type="compose", git_repo=repository.url, git_branch=ref)


async def test_F10_a_project_from_git_is_stored_with_its_file_and_its_commit(
    repository: Repository, tmp_path: pathlib.Path
) -> None:
    """The same request again is another revision once the branch has moved, and the same as long as it has not."""
    async with front_on(git_hosts=(f"file://{tmp_path}",)) as rig:
        first = await rig.apply(spec=stack(repository, "main"))
        spec = (await rig.parts.store.get(SPECS, "web")).record
        assert (first.success, first.error_message) == (True, "")
        assert spec
        assert (spec.compose_yaml, spec.git_commit, spec.git_branch) == (ONE, repository.first, "main")
        assert (await rig.apply(spec=stack(repository, "main"))).revision_id == first.revision_id
        repository.commit(TWO)
        assert (await rig.apply(spec=stack(repository, "main"))).revision_id != first.revision_id
        pinned = await rig.apply("pinned", spec=stack(repository, repository.first))
        assert pinned.success


async def test_F10_without_the_setting_git_is_refused_by_its_name(repository: Repository) -> None:
    """Nothing is fetched and nothing stored."""
    async with front_on() as rig:
        answer = await rig.apply(spec=stack(repository))
        assert (answer.success, answer.failure_reason) == (False, pb.INVALID_SPEC)
        assert "FLEETBEAT_GIT_HOSTS" in answer.error_message
        assert (await rig.parts.store.get(SPECS, "web")).record is None


@pytest.mark.parametrize("kind", ["tag", "branch", "commit", "default"])
async def test_a_branch_a_tag_and_a_commit_are_found(repository: Repository, tmp_path: pathlib.Path, kind: str) -> None:
    """Each names one commit, whatever came later."""
    repository.run("tag", "v1")
    repository.run("branch", "side")
    last = repository.commit(TWO)
    ref = {"tag": "v1", "branch": "side", "commit": repository.first, "default": ""}[kind]
    found = await GitSource([f"file://{tmp_path}"], 20).resolved(wanted(repository, ref))
    assert found.git_commit == (last if kind == "default" else repository.first)


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("none", "couldn't find remote ref none"),
        ("--upload-pack=x", "git_ref"),
        ("a..b", "git_ref"),
        ("a b", "git_ref"),
    ],
)
async def test_a_ref_that_is_none_is_told(repository: Repository, tmp_path: pathlib.Path, ref: str, said: str) -> None:
    """And never becomes an option of git."""
    with pytest.raises(InvalidInput, match=said):
        await GitSource([f"file://{tmp_path}"], 20).resolved(wanted(repository, ref))


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        ("x", "README", "it has none of compose.yaml"),
        ("services: {", "compose.yaml", "is not YAML"),
        ("a" * 200_000, "compose.yaml", "at most 131072"),
    ],
)
async def test_a_file_that_is_no_project_is_told(tmp_path: pathlib.Path, content: str, name: str, said: str) -> None:
    """As if it had been sent inline."""
    repository = Repository(tmp_path / "repo")
    repository.run("rm", "--quiet", "compose.yaml")
    repository.commit(content, name)
    with pytest.raises(InvalidInput, match=said):
        await GitSource([f"file://{tmp_path}"], 20).resolved(wanted(repository))


async def test_a_link_is_not_followed(repository: Repository, tmp_path: pathlib.Path) -> None:
    """Not even to a file of the repository."""
    (repository.folder / "compose.yaml").unlink()
    (repository.folder / "compose.yaml").symlink_to("/etc/passwd")
    repository.run("add", "--all")
    repository.run("commit", "--quiet", "--message", "x")
    with pytest.raises(InvalidInput, match="is not a plain file"):
        await GitSource([f"file://{tmp_path}"], 20).resolved(wanted(repository))


async def test_nothing_of_a_fetch_is_left(
    repository: Repository, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder, also after a failure."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    source = GitSource([f"file://{tmp_path}"], 20)
    await source.resolved(wanted(repository))
    with pytest.raises(InvalidInput):
        await source.resolved(wanted(repository, "none"))
    assert list(folder.iterdir()) == []


async def test_a_fetch_that_hangs_is_ended_with_all_its_helpers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is that of the setting; nothing is left running."""
    marker = tmp_path / "pid"
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {marker}\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    source = GitSource([f"file://{tmp_path}"], 0.5)
    with pytest.raises(InvalidInput, match=r"could not be fetched in 0\.5 s"):
        await source.resolved(WorkloadSpec(id="a", type="compose", git_repo=f"file://{tmp_path}/x"))
    deadline = time.monotonic() + 10
    while alive(int(marker.read_text())):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Say whether a process runs; one that only waits to be collected does not."""
    try:
        return ") Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def test_a_front_without_git_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the name of what is missing."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidInput, match="this front has no git"):
        await GitSource(["https://example.org"], 5).resolved(
            WorkloadSpec(id="a", type="compose", git_repo="https://example.org/x.git")
        )


ORIGINS = ("https://example.org", "ssh://example.org", "file:///srv/git")


@pytest.mark.parametrize(
    ("repo", "url"),
    [
        ("https://example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://EXAMPLE.org/a", "https://EXAMPLE.org/a"),
        ("ssh://git@example.org/a", "ssh://git@example.org/a"),
        ("git@example.org:a/b.git", "ssh://git@example.org/a/b.git"),
        ("file:///srv/git/a", "file:///srv/git/a"),
    ],
)
def test_a_repository_below_an_allowed_host_is_taken(repo: str, url: str) -> None:
    """In each of the forms that git takes."""
    assert checked_url(repo, ORIGINS) == url


@pytest.mark.parametrize(
    "repo",
    [
        "https://example.org.evil.net/a", "https://evil.net/example.org", "http://example.org/a", "ftp://example.org/a",
        "https://user:pass@example.org/a", "https://user@example.org/a", "ssh://git:pass@example.org/a",
        "ssh://-oProxyCommand=x/a", "-oProxyCommand=x:a", "ext::sh -c x", "file:///srv/git/../x", "file:///srv/github/a",
        "file://host/srv/git/a", "https://example.org", "https://example.org/a?b", "https://example.org:444/a",
        "/srv/git/a", "../a", "evil.net:a/b",
    ],
)  # fmt: skip
def test_any_other_repository_is_refused(repo: str) -> None:
    """Before anything is run."""
    with pytest.raises(InvalidInput, match=r"spec\.compose\.git_repo") as caught:
        checked_url(repo, ORIGINS)
    assert "pass" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize("text", ["https://a/b", "ftp://a", "https://u@a", "file://relative", "file:///a/../b", "a b"])
def test_a_wrong_host_in_the_setting_is_refused_at_the_start(text: str) -> None:
    """The settings are checked when they are read."""
    wrong: dict[str, Any] = {"git_hosts": text}
    with pytest.raises(ValueError, match=r"git|host|folder|begin"):
        Settings(**wrong)
