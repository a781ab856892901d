"""Runs compose projects by the docker compose command."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence

from agent.durable import write_durably
from agent.engine.copy import ContainersCopy
from agent.engine.engine import AGENT_LABEL, EPOCH_LABEL, REVISION_LABEL, WORKLOAD_LABEL, Engine, meaning_of
from agent.engine.output import read_output
from agent.engine.usage import ContainerMeter
from agent.engine.watch import Watch
from agent.records import Code, ComposeSpec, Failure, Order, Record
from agent.runtimes import Remember, RuntimeAway, Sample, StartFailed
from agent.shelf import Identity, Shelf

_PULL_SECONDS = 900.0
_COMMAND_SECONDS = 120.0
_PROBE_SECONDS = 5.0
_KEPT = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "XDG_RUNTIME_DIR")
_RESERVED = re.compile(r"DOCKER_.*|COMPOSE_.*|LD_.*|PATH|HOME")
"""Variables that would turn the docker command itself, not the project."""
_FILE = "compose.yaml"
_LABELS_FILE = "fleetbeat-labels.json"


class CommandError(Exception):
    """A docker compose command failed."""


async def has_compose() -> bool:
    """Say whether the docker compose command works here."""
    if not shutil.which("docker"):
        return False
    try:
        await _run("compose", "version", "--short", seconds=_PROBE_SECONDS)
    except CommandError:
        return False
    return True


class ComposeRuntime:
    """The runtime `compose`."""

    name = "compose"
    restarts_itself = True
    is_offered = True

    def __init__(self, engine: Engine, watch: Watch, identity: Identity, shelf: Shelf) -> None:
        """Run projects whose containers bear the mark of this agent."""
        self._engine = engine
        self._watch = watch
        self._identity = identity
        self._shelf = shelf
        self._meter = ContainerMeter(engine, self.name)
        self._started: set[str] = set()

    def refuse(self, order: Order) -> Failure | None:
        """Say why the project cannot run."""
        taken = [name for name in _spec(order).env if _RESERVED.fullmatch(name)]
        if taken:
            return Failure(Code.INVALID_SPECIFICATION, f"compose.env must not set {', '.join(sorted(taken)[:5])}")
        return None

    async def prepare(self, order: Order) -> None:
        """Check the project, mark its services, and have its images."""
        spec = _spec(order)
        folder = await asyncio.to_thread(self._shelf.work_folder, order.id)
        await asyncio.to_thread(write_durably, folder / _FILE, spec.yaml.encode())
        try:
            listed = await self._compose(order.id, folder, spec.env, "config", "--services", only_project=True)
        except CommandError as error:
            raise StartFailed(Failure(Code.INVALID_SPECIFICATION, f"docker compose config: {error}")) from None
        services = listed.split()
        if not services:
            raise StartFailed(Failure(Code.INVALID_SPECIFICATION, "compose.compose_yaml has no services"))
        labels = {
            AGENT_LABEL: self._identity.agent_id,
            WORKLOAD_LABEL: order.id,
            REVISION_LABEL: order.revision,
            EPOCH_LABEL: str(order.epoch),
        }
        # The engine starts others again when the machine is started; an exclusive one may run elsewhere by then.
        own: dict[str, object] = {"restart": "no"} if order.exclusive else {}
        extra = {"services": {name: {"labels": labels, **own} for name in services}}
        await asyncio.to_thread(write_durably, folder / _LABELS_FILE, json.dumps(extra).encode())
        try:
            pull = ("pull", "--quiet", "--policy", "missing", "--ignore-buildable")
            await self._compose(order.id, folder, spec.env, *pull, seconds=_PULL_SECONDS)
        except CommandError as error:
            raise StartFailed(_failure("pull", error, pulling=True)) from None

    async def start(self, order: Order, remember: Remember) -> ContainersCopy:  # noqa: ARG002 - labels name the containers
        """Bring the project up."""
        folder = self._shelf.work_folder(order.id)
        try:
            await self._compose(order.id, folder, _spec(order).env, "up", "--detach", "--remove-orphans")
        except CommandError as error:
            await self._down(order.id)
            raise StartFailed(_failure("up", error)) from None
        await self._watch.refresh()
        return self._copy(order.id, order.revision)

    async def find(self, record: Record) -> ContainersCopy | None:
        """Return the project of this workload when any of it runs."""
        workload_id = record.order.id
        active = [c for c in await self._watch.look(workload_id) if c.is_active]
        return self._copy(workload_id, active[0].revision) if active else None

    async def remove(self, workload_id: str) -> None:
        """Take the project down, its volumes and networks included."""
        self._started.discard(workload_id)
        try:
            await self._down(workload_id)
        except CommandError as error:
            raise RuntimeAway(f"docker compose down: {error}") from None
        await self._watch.refresh()

    async def samples(self) -> Sequence[Sample]:
        """Return what each running project uses."""
        found = [await self._meter.measure(key, self._watch.latest(key) or ()) for key in sorted(self._started)]
        return [sample for sample in found if sample]

    def output(self, workload_id: str, tail_bytes: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """Yield the logs of all services, by time."""
        return read_output(self._engine, self._watch, workload_id, tail_bytes, follow=follow)

    def health(self) -> str:
        """Say what limits are in force."""
        return "available; limits of single services are those of the project's own file"

    def _copy(self, workload_id: str, revision: str) -> ContainersCopy:
        async def stop(grace_seconds: float) -> None:
            seconds = str(max(0, round(grace_seconds)))
            try:
                await _run("compose", "--project-name", self._project(workload_id), "stop", "--timeout", seconds)
            except CommandError as error:
                raise RuntimeAway(f"docker compose stop: {error}") from None

        self._started.add(workload_id)
        return ContainersCopy(workload_id, revision, self._watch, stop)

    async def _compose(
        self,
        workload_id: str,
        folder: pathlib.Path,
        env: Mapping[str, str],
        *command: str,
        only_project: bool = False,
        seconds: float = _COMMAND_SECONDS,
    ) -> str:
        files = [folder / _FILE] if only_project else [folder / _FILE, folder / _LABELS_FILE]
        named = [part for file in files for part in ("--file", str(file))]
        project = ("compose", "--project-name", self._project(workload_id), "--project-directory", str(folder))
        return await _run(*project, *named, *command, env=env, seconds=seconds)

    async def _down(self, workload_id: str) -> None:
        project = ("compose", "--project-name", self._project(workload_id))
        await _run(*project, "down", "--volumes", "--remove-orphans", "--timeout", "0")

    def _project(self, workload_id: str) -> str:
        """Return a project name that no other workload on this engine has."""
        digest = hashlib.sha256(f"{self._identity.agent_id}/{workload_id}".encode()).hexdigest()[:10]
        return f"{re.sub(r'[^a-z0-9_-]', '-', workload_id.lower())[:40]}-{digest}"


def _spec(order: Order) -> ComposeSpec:
    assert isinstance(order.spec, ComposeSpec)  # noqa: S101 - the order was picked for this runtime
    return order.spec


def _failure(what: str, error: CommandError, *, pulling: bool = False) -> Failure:
    return Failure(meaning_of(str(error), pulling=pulling), f"docker compose {what}: {error}")


async def _run(*command: str, env: Mapping[str, str] | None = None, seconds: float = _COMMAND_SECONDS) -> str:
    """Run docker with this command; return what it says; raises CommandError with the end of its complaint."""
    own = {name: os.environ[name] for name in _KEPT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        "docker",
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**(env or {}), **own},
    )
    try:
        async with asyncio.timeout(seconds):
            out, complaint = await process.communicate()
    except TimeoutError:
        raise CommandError(f"timed out after {seconds:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise CommandError(complaint.decode(errors="replace").strip()[-1000:] or f"exit code {process.returncode}")
    return out.decode(errors="replace")
