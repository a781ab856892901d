"""Compose files from git: fetched when a workload is applied, so that agents get a text as they always do.

Nothing of a repository is run or unpacked into files: one commit is fetched into an empty bare
repository, and the compose file is read out of it. So there are no hooks, no filters, no submodules
and no links to follow. What a fetch may reach is bounded by FLEETBEAT_GIT_HOSTS, redirects are
not followed, nothing is ever asked for, and time, size and number of fetches are limited.

Applying the same request again fetches again: a branch that has moved makes a new revision.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from scheduler.domain.errors import InvalidInput
from scheduler.domain.workload import WorkloadSpec
from scheduler.front import fields
from scheduler.front.compose import MAX_BYTES, check_compose

FILES = ("compose.yaml", "compose.yml", "docker-compose.yml", "docker-compose.yaml")
"""Where the file is looked for, in the order of docker compose."""
MAX_FETCHES = 4
"""At once in one front; further ones wait, as long as one fetch may take."""
MAX_PACK_MB = 64
"""A commit whose files are larger than this together is not fetched. It is the size of one file that git may write."""
_REPO = "spec.compose.git_repo"
_REF = "spec.compose.git_ref"
_SCP = re.compile(r"([A-Za-z0-9_.-]+@)?([A-Za-z0-9.-]+):(?!//)([^:]+)")
_REF_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@+-]{0,254}")
_COMMIT = re.compile(rb"[0-9a-f]{40,64}")
_USER = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRETS = re.compile(r"//[^/@\s]*@")
_KEPT = ("PATH", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "SSL_CERT_FILE",
         "SSL_CERT_DIR", "GIT_SSL_CAINFO", "SSH_AUTH_SOCK")  # fmt: skip
_FIXED = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "true",
    "SSH_ASKPASS": "true",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes -o StrictHostKeyChecking=yes",
}
_CONFIG = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "credential.helper=", "http.followRedirects=false",
    "fetch.unpackLimit=1", "fetch.recurseSubmodules=false", "transfer.fsckObjects=true", "transfer.bundleURI=false",
    "gc.auto=0", "maintenance.auto=false", "protocol.allow=never",
)  # fmt: skip


class GitError(Exception):
    """A git command failed; the text says why, without secrets."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A compose file and the commit that it is of."""

    text: str
    commit: str


class GitSource:
    """Fetches compose files for one front."""

    def __init__(self, origins: Sequence[str], timeout_seconds: float) -> None:
        """Take what may be fetched from, as the setting has it, and how long that may take."""
        self._origins = tuple(origins)
        self._timeout = timeout_seconds
        self._turns = asyncio.Semaphore(MAX_FETCHES)

    async def resolved(self, spec: WorkloadSpec) -> WorkloadSpec:
        """Return the spec with its compose file, if that is to come from git. Raises InvalidInput."""
        if not spec.git_repo:
            return spec
        url = checked_url(spec.git_repo, self._origins)
        ref = _checked_ref(spec.git_branch)
        if not shutil.which("git"):
            raise InvalidInput(_REPO, "cannot be fetched: this front has no git; install it, or send the file inline")
        try:
            async with asyncio.timeout(self._timeout), self._turns:
                fetched = await _fetch(url, ref)
        except TimeoutError:
            raise InvalidInput(_REPO, f"could not be fetched in {self._timeout:g} s") from None
        except GitError as error:
            raise InvalidInput(_REPO, f"cannot be fetched: {error}") from None
        text = await asyncio.to_thread(check_compose, _REPO, fetched.text)
        return spec.replace(compose_yaml=text, git_commit=fetched.commit)


def checked_url(repo: str, origins: Sequence[str]) -> str:
    """Return the URL to fetch from, if the operator allows it. Raises InvalidInput."""
    if not origins:
        raise InvalidInput(
            _REPO, "compose files from git are not allowed here; an operator allows hosts with FLEETBEAT_GIT_HOSTS"
        )
    short = _SCP.fullmatch(repo)
    url = urlsplit(f"ssh://{short[1] or ''}{short[2]}/{short[3].lstrip('/')}" if short else repo)
    _check_user(url)
    origin = f"{url.scheme}://{url.netloc.rpartition('@')[2].lower()}"
    if url.scheme == "file" and not url.netloc:
        within = (o for o in origins if o.startswith("file://") and f"file://{url.path}/".startswith(f"{o}/"))
        if ".." in url.path.split("/") or next(within, None) is None:
            raise _not_allowed(origins)
    elif origin not in origins:
        raise _not_allowed(origins)
    if url.query or url.fragment or not url.path.strip("/"):
        raise InvalidInput(_REPO, "must be the URL of a repository, without ? and #")
    return url.geturl()


def _check_user(url: SplitResult) -> None:
    """Refuse secrets in a URL: it is stored, shown, and an argument of git."""
    user, at, _ = url.netloc.rpartition("@")
    if at and (url.scheme != "ssh" or not _USER.fullmatch(user)):
        raise InvalidInput(_REPO, "must not carry a user or a password; for ssh a user name alone is allowed")


def _not_allowed(origins: Sequence[str]) -> InvalidInput:
    return InvalidInput(_REPO, f"is not allowed by FLEETBEAT_GIT_HOSTS; it must be below {', '.join(origins)}")


def _checked_ref(ref: str) -> str:
    if not ref:
        return "HEAD"
    fields.matching(_REF, ref, _REF_FORM, "a branch, a tag or a whole commit id")
    if ".." in ref or "@{" in ref or ref.endswith((".lock", "/", ".")):
        raise InvalidInput(_REF, f"{fields.shown(ref)} must be a branch, a tag or a whole commit id")
    return ref


async def _fetch(url: str, ref: str) -> Fetched:
    folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="fleetbeat-git-")
    try:
        scheme = urlsplit(url).scheme
        await _git(folder, scheme, "init", "--quiet", "--bare", "--template=", ".")
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
        await _git(folder, scheme, "fetch", *options, "--", url, f"+{ref}:refs/fetched")
        commit = (await _git(folder, scheme, "rev-parse", "refs/fetched^{commit}")).strip()
        if not _COMMIT.fullmatch(commit):
            raise GitError("git names no commit")
        return Fetched(await _compose_file(folder, scheme), commit.decode())
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def _compose_file(folder: str, scheme: str) -> str:
    listed = await _git(folder, scheme, "ls-tree", "-z", "-l", "refs/fetched^{commit}", "--", *FILES)
    found: dict[str, tuple[str, str]] = {}
    for line in filter(None, listed.decode(errors="replace").split("\0")):
        about, _, name = line.partition("\t")
        mode, _, _, size = about.split()
        found[name] = (mode, size)
    name = next((name for name in FILES if name in found), "")
    if not name:
        raise GitError(f"it has none of {', '.join(FILES)} at its top")
    mode, size = found[name]
    if not mode.startswith("100"):
        raise GitError(f"{name} is not a plain file")
    if int(size) > MAX_BYTES:
        raise GitError(f"{name} has {size} bytes, at most {MAX_BYTES} are allowed")
    content = await _git(folder, scheme, "cat-file", "blob", f"refs/fetched:{name}")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise GitError(f"{name} is not UTF-8") from None


async def _git(folder: str, scheme: str, *command: str) -> bytes:
    """Run git in a folder and return what it says; it ends with all its children when this is cancelled."""
    config = (part for each in (*_CONFIG, f"protocol.{scheme}.allow=always") for part in ("-c", each))
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # The limit is that of the shell's ulimit: blocks of 512 bytes.
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'ulimit -f "$0" && exec "$@"', str(MAX_PACK_MB * 2048), "git", *config, *command,
        cwd=folder,
        env={**own, **_FIXED, "HOME": folder, "GIT_ALLOW_PROTOCOL": scheme, "GIT_CEILING_DIRECTORIES": folder},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        out, complaint = await process.communicate()
    finally:
        await _end(process)
    if process.returncode:
        raise GitError(_in_words(complaint, process.returncode))
    return out


async def _end(process: asyncio.subprocess.Process) -> None:
    """End git and the helpers that it has started, which are in its session."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _in_words(complaint: bytes, code: int) -> str:
    """Return the first line that says what is wrong; a user in a URL is left out."""
    if code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        return f"it is larger than {MAX_PACK_MB} MB"
    lines = complaint.decode(errors="replace").splitlines()
    said = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "")
    return _SECRETS.sub("//", said.strip()[:200]) or f"git ended with code {code}"
