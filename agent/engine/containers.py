"""Runs workloads as single containers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import docker.errors

from agent.engine.copy import ContainersCopy
from agent.engine.engine import (
    AGENT_LABEL,
    EPOCH_LABEL,
    REVISION_LABEL,
    WORKLOAD_LABEL,
    Engine,
    failure_of,
)
from agent.engine.output import read_output
from agent.engine.usage import ContainerMeter
from agent.engine.watch import Watch
from agent.records import Code, ContainerSpec, Failure, Order, Record
from agent.runtimes import Remember, Sample, StartFailed
from agent.shelf import Identity, Shelf
from agent.volumes import mount_path

_LOG_BOUNDS = {"max-size": "4m", "max-file": "2"}
_RESTARTS = {"no": "no", "on-failure": "on-failure", "always": "unless-stopped", "unless-stopped": "unless-stopped"}
"""`always` would start a container that we stopped when the engine restarts."""


class ContainerRuntime:
    """The runtime `docker`."""

    name = "docker"
    restarts_itself = True
    is_offered = True

    def __init__(
        self, engine: Engine, watch: Watch, identity: Identity, shelf: Shelf, *, allow_privileged: bool = False
    ) -> None:
        """Run containers that bear the mark of this agent."""
        self._shelf = shelf
        self._allow_privileged = allow_privileged
        self._engine = engine
        self._watch = watch
        self._identity = identity
        self._meter = ContainerMeter(engine, self.name)
        self._started: set[str] = set()

    def refuse(self, order: Order) -> Failure | None:
        """Say why the container cannot run."""
        if _spec(order).privileged and not self._allow_privileged:
            text = "container.privileged is not allowed by this agent: start it with --allow-privileged"
            return Failure(Code.INVALID_SPECIFICATION, text)
        return None

    async def prepare(self, order: Order) -> None:
        """Have the image; pull it when it is not there."""
        spec = _spec(order)
        try:
            await self._engine.call(lambda client: client.images.get(spec.image))
        except docker.errors.ImageNotFound:
            await self._pull(spec.image)
        except docker.errors.APIError as error:
            raise StartFailed(failure_of(error, f"image {spec.image}")) from None

    async def _pull(self, image: str) -> None:
        try:
            await self._engine.call(lambda client: _pull(client, image))
        except (docker.errors.APIError, PullError) as error:
            raise StartFailed(failure_of(error, f"cannot pull image {image}", pulling=True)) from None

    async def start(self, order: Order, remember: Remember) -> ContainersCopy:  # noqa: ARG002 - its name and labels name a container
        """Create and start the container, in the place of any that an earlier order left."""
        try:
            await self._remove_container(order.id)
            options = self._options(order, _spec(order))
            await self._engine.call(lambda client: _run(client, options))
        except docker.errors.APIError as error:
            raise StartFailed(failure_of(error, "cannot start the container")) from None
        await self._watch.refresh()
        return self._copy(order.id, order.revision)

    async def find(self, record: Record) -> ContainersCopy | None:
        """Return the container of this workload when it runs."""
        workload_id = record.order.id
        active = [c for c in await self._watch.look(workload_id) if c.is_active]
        return self._copy(workload_id, active[0].revision) if active else None

    async def remove(self, workload_id: str) -> None:
        """Remove the container."""
        self._started.discard(workload_id)
        await self._remove_container(workload_id)
        await self._watch.refresh()

    async def samples(self) -> Sequence[Sample]:
        """Return what each running container uses."""
        found = [await self._meter.measure(key, self._watch.latest(key) or ()) for key in sorted(self._started)]
        return [sample for sample in found if sample]

    def output(self, workload_id: str, tail_bytes: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """Yield the container's log."""
        return read_output(self._engine, self._watch, workload_id, tail_bytes, follow=follow)

    def health(self) -> str:
        """Name the engine's version."""
        return f"available; Docker {self._engine.version}"

    def _copy(self, workload_id: str, revision: str) -> ContainersCopy:
        async def stop(grace_seconds: float) -> None:
            await self._engine.call(lambda client: _stop(client, self._name(workload_id), grace_seconds))

        self._started.add(workload_id)
        return ContainersCopy(workload_id, revision, self._watch, stop)

    async def _remove_container(self, workload_id: str) -> None:
        await self._engine.call(lambda client: _remove(client, self._name(workload_id), self._identity.agent_id))

    def _name(self, workload_id: str) -> str:
        return f"fleetbeat-{workload_id}-{self._identity.agent_id[:8]}"

    def _options(self, order: Order, spec: ContainerSpec) -> dict[str, Any]:
        # The engine starts others again when the machine is started; an exclusive one may run elsewhere by then.
        policy: dict[str, Any] = {"Name": "no" if order.exclusive else _RESTARTS[spec.restart]}
        if not order.exclusive and spec.restart == "on-failure" and spec.max_restarts:
            policy["MaximumRetryCount"] = spec.max_restarts
        options: dict[str, Any] = {
            "image": spec.image,
            "command": list(spec.command) or None,
            "name": self._name(order.id),
            "environment": spec.env,
            "labels": spec.labels
            | {
                AGENT_LABEL: self._identity.agent_id,
                WORKLOAD_LABEL: order.id,
                REVISION_LABEL: order.revision,
                EPOCH_LABEL: str(order.epoch),
            },
            "ports": {f"{p.container}/{p.protocol}": [] for p in spec.ports},
            "mounts": [
                docker.types.Mount(m.container_path, m.host_path, type="bind", read_only=m.read_only)
                for m in spec.mounts
            ]
            + [
                docker.types.Mount(
                    mount_path(v), str(self._shelf.volume_folder(v.id)), type="bind", read_only=v.read_only
                )
                for v in spec.volumes
            ],
            "privileged": spec.privileged,
            "restart_policy": policy,
            "log_config": docker.types.LogConfig(type="json-file", config=_LOG_BOUNDS),
        }
        for port in spec.ports:
            options["ports"][f"{port.container}/{port.protocol}"].append(port.host)
        if order.limits.cpu_millicores:
            options["nano_cpus"] = order.limits.cpu_millicores * 1_000_000
        if order.limits.memory_mb:
            options["mem_limit"] = order.limits.memory_mb * 2**20
        return options


class PullError(Exception):
    """A registry did not give the image."""


def _spec(order: Order) -> ContainerSpec:
    assert isinstance(order.spec, ContainerSpec)  # noqa: S101 - the order was picked for this runtime
    return order.spec


def _pull(client: Any, image: str) -> None:
    for line in client.api.pull(image, stream=True, decode=True):
        if "error" in line:
            raise PullError(str(line["error"]))


def _run(client: Any, options: dict[str, Any]) -> None:
    container = client.containers.create(**options)
    try:
        container.start()
    except docker.errors.APIError:
        container.remove(force=True, v=True)
        raise


def _stop(client: Any, name: str, grace_seconds: float) -> None:
    try:
        client.containers.get(name).stop(timeout=max(0, round(grace_seconds)))
    except docker.errors.NotFound:
        return


def _remove(client: Any, name: str, agent_id: str) -> None:
    """Remove the container of that name when it is ours."""
    try:
        container = client.containers.get(name)
        if container.labels.get(AGENT_LABEL) == agent_id:
            container.remove(force=True, v=True)
    except docker.errors.NotFound:
        return
