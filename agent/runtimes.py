"""What a runtime offers to the drivers of workloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.records import Code, ContainerSpec, CopyRef, Failure, Order, Record, State
from agent.volumes import foreign_driver


class StartFailed(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """A workload could not be started."""

    def __init__(self, failure: Failure) -> None:
        """Take the reason."""
        super().__init__(failure.message)
        self.failure = failure


class Trouble(Exception):  # noqa: N818 - reads as a sentence where it is raised
    """Something cannot be done now, but may be soon."""


class RuntimeAway(Trouble):
    """The runtime does not answer now; what it holds is unknown."""


@dataclass(frozen=True)
class Seen:
    """What a copy is seen to do."""

    state: State
    message: str
    ended: bool = False
    """The copy has ended by itself and the runtime will not start it again."""
    exit_code: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True)
class Sample:
    """What a copy uses, fields as on the wire; counters grow from its start."""

    workload_id: str
    cpu_percent: float
    memory_bytes: int
    disk_read_bytes: int = 0
    disk_write_bytes: int = 0
    net_rx_bytes: int = 0
    net_tx_bytes: int = 0
    source: str = "process"


class Copy(Protocol):
    """One running copy of a workload."""

    revision: str
    facts: dict[str, str]
    """Small facts for the status metadata."""

    async def changed(self) -> Seen:
        """Wait until something else is seen than the last time, and return it."""

    async def stop(self, grace_seconds: float) -> None:
        """Ask it to end, make it end after the grace, and return when nothing of it runs."""


Remember = Callable[[CopyRef], Awaitable[None]]
"""Brings the reference of a copy to disk; called before the copy does anything."""


class Runtime(Protocol):
    """One way to run workloads."""

    name: str
    restarts_itself: bool
    """The runtime carries out the restart policy; else the driver does."""

    @property
    def is_offered(self) -> bool:
        """Say whether orders can be run now."""

    def refuse(self, order: Order) -> Failure | None:
        """Say why this runtime cannot run the order, if so."""

    async def prepare(self, order: Order) -> None:
        """Do what may take long and leaves no copy (pull an image); may be cancelled; raises StartFailed."""

    async def start(self, order: Order, remember: Remember) -> Copy:
        """Start a copy; raises StartFailed. An end of the agent at any point leaves no copy that find() misses."""

    async def find(self, record: Record) -> Copy | None:
        """Return the running copy that an earlier agent left; raises RuntimeAway."""

    async def remove(self, workload_id: str) -> None:
        """Remove whatever this runtime holds of the workload; raises RuntimeAway."""

    async def samples(self) -> Sequence[Sample]:
        """Return what each running copy uses."""

    def output(self, workload_id: str, tail_bytes: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """Yield the last output, then, when following, what comes."""

    def health(self) -> str:
        """Say in a few words how the runtime is."""


HOST_IMAGE = "host"


class Runtimes:
    """The runtimes of this node, by name."""

    def __init__(self) -> None:
        """Begin with none."""
        self._by_name: dict[str, Runtime] = {}

    def offer(self, runtime: Runtime) -> None:
        """Have this runtime from now on."""
        self._by_name[runtime.name] = runtime

    def __contains__(self, name: str) -> bool:
        """Say whether the runtime is offered."""
        return name in self._by_name

    def __iter__(self) -> Iterator[Runtime]:
        """Go through the offered runtimes."""
        return iter(list(self._by_name.values()))

    def names(self) -> list[str]:
        """Return the names of the offered runtimes."""
        return list(self._by_name)

    def get(self, name: str) -> Runtime:
        """Return the runtime; raises RuntimeAway when it is not offered (any more)."""
        runtime = self._by_name.get(name)
        if runtime is None:
            raise RuntimeAway(f"runtime not available: this agent has no {name} runtime now")
        return runtime

    def pick(self, order: Order) -> Runtime:
        """Return the runtime that is to run the order; raises StartFailed when this node has none."""
        spec = order.spec
        if isinstance(spec, ContainerSpec):
            name = "process" if spec.image == HOST_IMAGE else "docker"
            text = f"image {spec.image!r} needs a Docker engine on the node; none answers"
        else:
            name = "compose"
            text = "a compose project needs a Docker engine and docker compose on the node; none answers"
        if name not in self._by_name:
            raise StartFailed(Failure(Code.RUNTIME_ERROR, f"{text} (runtime not available)"))
        return self._by_name[name]

    def refusal(self, order: Order) -> Failure | None:
        """Say why this node cannot run the order, if so."""
        if order.refusal:
            return order.refusal
        if foreign := foreign_driver(order):
            return foreign
        try:
            return self.pick(order).refuse(order)
        except StartFailed as error:
            return error.failure
