"""Admission of cycles and chunks: one atomic script in Redis, by Redis's own clock.

It keeps cycles of a loop and shard from overlapping, drops what is late or came twice, and
knows when the last cycle was finished. It saves work; the fence in etcd gives safety. So
where Redis does not answer, or there is none, everything is admitted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable
from enum import StrEnum
from importlib import resources
from typing import NamedTuple, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from scheduler.domain.shard import LOOPS, Cycle
from scheduler.queues.seldom import Seldom

_KEEP_SECONDS = 900.0
"""How long the state outlives the last message. Also how long a stale-looking newer world, such as an etcd
restored from a backup that hands out smaller terms again, is held up at most."""
_KEEP_LEASES = 20
_SCRIPT = resources.files(__package__).joinpath("admission.lua").read_text()


class Verdict(StrEnum):
    """Whether something may run."""

    OK = "ok"
    STALE = "stale"
    """A newer term, slot or shard map is there already."""
    DUPLICATE = "duplicate"
    """This very slot or chunk was admitted before."""
    BUSY = "busy"
    """The cycle before is still running."""
    DONE = "done"
    """This was the last chunk, and all went well."""
    FAILED = "failed"
    """This was the last chunk, and it or another did not go well."""


class CycleState(NamedTuple):
    """How far a loop is on a shard."""

    slot: int
    term: int
    finished_at: float
    """Unix seconds at which a whole cycle was last finished; 0: not known."""


class Admission:
    """Asks Redis for verdicts. Safe for any number of tasks."""

    def __init__(self, redis: Redis | None) -> None:
        """Take the connection to the telemetry Redis; None: there is none, and everything is admitted."""
        self._script = redis.register_script(_SCRIPT) if redis else None
        self._log = Seldom(logging.getLogger(__name__))
        self.verdicts: Counter[str] = Counter()
        """Verdicts by name; "unknown": Redis did not answer."""

    async def admit_cycle(self, cycle: Cycle, chunks: int, lease_seconds: float) -> Verdict:
        """Ask whether this cycle may start; if so it holds the shard until its chunks ended or fell silent."""
        keep = max(_KEEP_SECONDS, _KEEP_LEASES * lease_seconds)
        return await self._ask("admit_cycle", cycle, chunks, _ms(lease_seconds), _ms(keep))

    async def admit_chunk(self, cycle: Cycle, chunk: int) -> Verdict:
        """Ask whether this chunk may run: once, and only while its cycle is the current one."""
        return await self._ask("admit_chunk", cycle, chunk)

    async def finish_chunk(self, cycle: Cycle, *, failed: bool) -> Verdict:
        """Tell that a chunk ended; the last one frees the shard, and is told DONE or FAILED."""
        return await self._ask("finish_chunk", cycle, int(failed))

    async def renew(self, cycle: Cycle) -> Verdict:
        """Tell that somebody still works on this cycle."""
        return await self._ask("renew", cycle)

    async def release(self, cycle: Cycle) -> Verdict:
        """Give the shard back: the chunks of this cycle could not be sent."""
        return await self._ask("release", cycle)

    async def _ask(self, operation: str, cycle: Cycle, *more: int) -> Verdict:
        if self._script is None:
            return Verdict.OK
        arguments: list[str | int] = [operation, cycle.term, cycle.slot, cycle.generation, *more]
        try:
            answer = await self._script(keys=[_key(cycle.loop, cycle.shard)], args=arguments)
        except (RedisError, OSError, TimeoutError) as error:
            self._log.warning("cycles run without admission, Redis does not answer: %s", error)
            self.verdicts["unknown"] += 1
            return Verdict.OK
        verdict = Verdict(answer.decode() if isinstance(answer, bytes) else answer)
        self.verdicts[verdict] += 1
        return verdict


async def read_cycles(redis: Redis, shard_count: int) -> dict[tuple[str, int], CycleState]:
    """Return the state of each (loop, shard) that had a cycle lately. Raises redis.exceptions.RedisError."""
    wanted = [(loop, shard) for shard in range(shard_count) for loop in LOOPS]
    async with redis.pipeline(transaction=False) as pipe:
        for loop, shard in wanted:
            pipe.hmget(_key(loop, shard), ["slot", "term", "finished_at"])
        answers = await cast("Awaitable[list[list[bytes | None]]]", pipe.execute())
    return {
        name: CycleState(int(slot), int(term or 0), int(finished or 0) / 1000)
        for name, (slot, term, finished) in zip(wanted, answers, strict=True)
        if slot is not None
    }


def _key(loop: str, shard: int) -> str:
    return f"scheduler:cycle:{loop}:{shard}"


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
