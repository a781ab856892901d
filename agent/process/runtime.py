"""Runs workloads as processes of the node: image `host`, each in a session of its own.

A copy is its session, its control groups and every process that carries its mark in the
environment. It has ended when its first process has; what is left of it is killed then, so
that a restart never meets a remainder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence

import structlog

from agent.process import spawn, table
from agent.process.cgroups import Cgroups, entrances, remove
from agent.process.copy import ProcessCopy
from agent.process.output import Output
from agent.process.tree import Trees, reap
from agent.process.usage import UsageMeter
from agent.records import Code, ContainerSpec, CopyRef, Failure, Order, Record
from agent.runtimes import Remember, Sample, StartFailed
from agent.shelf import Identity, Shelf
from agent.volumes import variables

log = structlog.get_logger(__name__)

_CUT_SECONDS = 0.5
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNLIMITED_NICE = 5
"""Niceness where no group bounds the CPU, so that the agent stays able to act."""


class ProcessRuntime:
    """The runtime `process`."""

    name = "process"
    restarts_itself = False

    def __init__(
        self,
        identity: Identity,
        shelf: Shelf,
        cgroups: Cgroups,
        *,
        allowed: bool,
        output_most_bytes: int,
        not_after: Callable[[Order], float] = lambda _order: 0.0,
    ) -> None:
        """Take the agent's identity and folders; `allowed` says whether the operator permits host processes.

        not_after: from which second since boot on an order's copy must not begin; 0: there is none.
        """
        self._identity = identity
        self._shelf = shelf
        self._cgroups = cgroups
        self.is_offered = allowed
        self._most = output_most_bytes
        self._not_after = not_after
        self._trees = Trees(identity.agent_id)
        self._copies: dict[str, ProcessCopy] = {}
        self._outputs: dict[str, Output] = {}
        self._meter = UsageMeter()

    def refuse(self, order: Order) -> Failure | None:
        """Say why the order cannot run as a process."""
        if not self.is_offered:
            return _invalid(
                "image 'host' runs a process of the node, which this agent does not allow: "
                "start it with --allow-host-processes, or use a container image"
            )
        spec = order.spec
        if not isinstance(spec, ContainerSpec) or not spec.command or not spec.command[0]:
            return _invalid("container.command must not be blank with the image 'host'")
        if spec.mounts:
            return _invalid("container.volumes cannot be mounted with the image 'host': use paths of the node")
        return None

    async def prepare(self, order: Order) -> None:
        """Nothing takes long beforehand."""

    async def start(self, order: Order, remember: Remember) -> ProcessCopy:
        """Start the command; the record names the process before it runs anything."""
        try:
            folder = await asyncio.to_thread(self._shelf.work_folder, order.id)
            groups = await asyncio.to_thread(self._cgroups.create, order.id, order.limits)
        except OSError as error:
            raise StartFailed(Failure(Code.INSUFFICIENT_RESOURCES, f"cannot set the limits: {error}")) from None
        try:
            launch = spawn.begin(self._marks(order), self._output(order.id).path)
        except StartFailed:
            await asyncio.to_thread(remove, groups)
            raise
        ref = CopyRef(launch.pid, launch.start_ticks, self._trees.boot_id, order.revision, groups)
        try:
            await remember(ref)
        except BaseException:
            spawn.abandon(launch)
            await self._clear_away(order.id, ref)
            raise
        try:
            await asyncio.to_thread(spawn.release, launch, self._instruction(order, str(folder), entrances(groups)))
        except StartFailed:
            await self._clear_away(order.id, ref)
            raise
        return self._keep(ProcessCopy(self._trees, order.id, ref))

    async def _clear_away(self, workload_id: str, ref: CopyRef) -> None:
        """Leave nothing of a start that failed."""
        await self._trees.kill(workload_id, ref, watched=True)
        await reap(ref)
        await asyncio.to_thread(remove, ref.groups)

    async def find(self, record: Record) -> ProcessCopy | None:
        """Return the copy that the record names, or a marked one that no record names; else kill any remainder."""
        workload_id, ref = record.order.id, record.process
        if not ref or not self._trees.is_alive(ref):
            ref = await asyncio.to_thread(self._trees.leader, record.order)
        if ref is None:
            await self._trees.kill(workload_id, record.process, watched=False)
            await asyncio.to_thread(remove, record.process.groups if record.process else ())
            return None
        return self._keep(ProcessCopy(self._trees, workload_id, ref, adopted=True))

    async def remove(self, workload_id: str) -> None:
        """End whatever is left of the workload and forget its output."""
        copy = self._copies.pop(workload_id, None)
        watched = copy is not None and not copy.has_ended()
        await self._trees.kill(workload_id, copy.ref if copy else None, watched=watched)
        self._outputs.pop(workload_id, None)

    async def kill_orphans(self, known: set[str]) -> None:
        """Kill the processes of an earlier run of this agent whose workload it has no record of."""
        for workload_id in await asyncio.to_thread(self._trees.orphans, known):
            log.warning("orphan_killed", workload=workload_id)
            await self._trees.kill(workload_id, None, watched=False)

    async def samples(self) -> Sequence[Sample]:
        """Return what each running copy uses, all from one look at the process table."""
        sessions = {copy.ref.pid: key for key, copy in self._copies.items() if not copy.has_ended()}
        return await asyncio.to_thread(self._meter.measure, sessions) if sessions else []

    def output(self, workload_id: str, tail_bytes: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """Yield the kept output."""
        output = self._output(workload_id)
        return output.tail(tail_bytes, follow=follow, ended=lambda: self._outputs.get(workload_id) is not output)

    def health(self) -> str:
        """Say whether host processes are allowed and what is limited."""
        return f"available; {self._cgroups.summary()}" if self.is_offered else "not allowed"

    async def cut_outputs(self) -> None:
        """Bound the outputs, for ever."""
        while True:
            for workload_id, output in list(self._outputs.items()):
                try:
                    await output.cut()
                except OSError as error:
                    log.warning("output_not_cut", workload=workload_id, error=str(error))
            await asyncio.sleep(_CUT_SECONDS)

    def close(self) -> None:
        """Stop watching; what runs, runs on."""
        for copy in self._copies.values():
            copy.let_go()
        self._cgroups.close()

    def _keep(self, copy: ProcessCopy) -> ProcessCopy:
        self._copies[copy.workload_id] = copy
        self._output(copy.workload_id)
        return copy

    def _output(self, workload_id: str) -> Output:
        if workload_id not in self._outputs:
            self._outputs[workload_id] = Output(self._shelf.output / f"{workload_id}.log", self._most)
        return self._outputs[workload_id]

    def _marks(self, order: Order) -> dict[str, str]:
        return {
            table.WORKLOAD_MARK: order.id,
            table.EPOCH_MARK: str(order.epoch),
            table.REVISION_MARK: order.revision,
            table.AGENT_MARK: self._identity.agent_id,
            "FLEETBEAT_NODE_ID": self._identity.node_id,
        }

    def _instruction(self, order: Order, folder: str, cgroups: Sequence[str]) -> spawn.Instruction:
        spec = order.spec
        assert isinstance(spec, ContainerSpec)  # noqa: S101 - refuse() has been asked
        base = {"PATH": os.environ.get("PATH", _DEFAULT_PATH), "HOME": folder, "PWD": folder, "LANG": "C.UTF-8"}
        return spawn.Instruction(
            command=spec.command,
            env=base | spec.env | variables(self._shelf, spec.volumes) | self._marks(order),
            folder=folder,
            cgroups=cgroups,
            file_bytes=order.limits.disk_gb * 2**30,
            nice=0 if "cpu" in self._cgroups else _UNLIMITED_NICE,
            not_after=self._not_after(order),
        )


def _invalid(message: str) -> Failure:
    return Failure(Code.INVALID_SPECIFICATION, message)
