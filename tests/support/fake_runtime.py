"""A runtime in memory, for tests of what drives runtimes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence

from agent.records import CopyRef, Failure, Order, Record, State
from agent.runtimes import Remember, RuntimeAway, Sample, Seen, StartFailed


class FakeCopy:
    """A copy that runs until it is stopped or told to end."""

    def __init__(self, runtime: FakeRuntime, order: Order) -> None:
        """Run."""
        self.workload_id = order.id
        self.revision = order.revision
        self.facts: dict[str, str] = {}
        self._runtime = runtime
        self._seen: asyncio.Queue[Seen] = asyncio.Queue()

    def end(self, code: int) -> None:
        """End by itself."""
        self._runtime.running.remove(self)
        state = State.STOPPED if code == 0 else State.FAILED
        self._seen.put_nowait(Seen(state, f"exited with code {code}", ended=True, exit_code=code))

    async def changed(self) -> Seen:
        """Wait for its end."""
        return await self._seen.get()

    async def stop(self, grace_seconds: float) -> None:  # noqa: ARG002 - the protocol's
        """End it."""
        await self._runtime.pause()
        if self in self._runtime.running:
            self._runtime.running.remove(self)


class FakeRuntime:
    """Counts what runs; every act takes a random while."""

    name = "process"
    restarts_itself = False
    is_offered = True

    def __init__(self, *, most_pause_seconds: float = 0.0, seed: int = 0) -> None:
        """Run nothing yet."""
        self.running: list[FakeCopy] = []
        self.removed: list[str] = []
        self.starts = 0
        self.most_at_once = 0
        self.fails: Failure | None = None
        self.refuses: Failure | None = None
        self.away = False
        self.preparing = asyncio.Event()
        self.prepared = asyncio.Event()
        self.prepared.set()
        self._most_pause = most_pause_seconds
        self._random = random.Random(seed)  # noqa: S311 - repeatable

    async def pause(self) -> None:
        """Take a while."""
        await asyncio.sleep(self._random.uniform(0, self._most_pause))

    def refuse(self, order: Order) -> Failure | None:  # noqa: ARG002
        """Refuse as told."""
        return self.refuses

    async def prepare(self, order: Order) -> None:  # noqa: ARG002
        """Take as long as told."""
        self.preparing.set()
        await self.prepared.wait()

    async def start(self, order: Order, remember: Remember) -> FakeCopy:
        """Run a copy."""
        await remember(CopyRef(1, 1, "boot", order.revision))
        await self.pause()
        if self.fails:
            raise StartFailed(self.fails)
        copy = FakeCopy(self, order)
        self.running.append(copy)
        self.starts += 1
        same = [c for c in self.running if c.workload_id == order.id]
        self.most_at_once = max(self.most_at_once, len(same))
        return copy

    async def find(self, record: Record) -> FakeCopy | None:
        """Find what runs."""
        if self.away:
            raise RuntimeAway("the runtime is away")
        return next((c for c in self.running if c.workload_id == record.order.id), None)

    async def remove(self, workload_id: str) -> None:
        """Remove what is left."""
        await self.pause()
        if self.away:
            raise RuntimeAway("the runtime is away")
        self.removed.append(workload_id)
        self.running = [c for c in self.running if c.workload_id != workload_id]

    async def samples(self) -> Sequence[Sample]:
        """Use nothing."""
        return []

    async def output(self, workload_id: str, tail_bytes: int, *, follow: bool) -> AsyncGenerator[bytes, None]:  # noqa: ARG002
        """Say nothing."""
        yield b""

    def health(self) -> str:
        """Be well."""
        return "available"
