"""Offers the Docker runtimes where, and as soon as, an engine answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from agent.engine.compose import ComposeRuntime, has_compose
from agent.engine.containers import ContainerRuntime
from agent.engine.engine import Engine
from agent.engine.watch import Watch
from agent.runtimes import Runtimes
from agent.shelf import Identity, Shelf

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 30.0


class DockerOffer:
    """What the node's Docker engine, if there is one, lets the agent offer."""

    def __init__(self, identity: Identity, shelf: Shelf, *, allow_privileged: bool = False) -> None:
        """Look for nothing yet."""
        self._identity = identity
        self._shelf = shelf
        self._allow_privileged = allow_privileged
        self._engine = Engine()
        self._watch = Watch(self._engine, identity.agent_id)
        self._watching: asyncio.Task[None] | None = None

    async def look(self, runtimes: Runtimes) -> bool:
        """Offer what answers now and did not before; say whether there was something new.

        What was offered once stays: while the engine is away its workloads are in an unknown state, not gone.
        """
        if not ({"docker", "compose"} - set(runtimes.names())) or not await self._engine.probe():
            return False
        found = False
        if "docker" not in runtimes:
            runtimes.offer(
                ContainerRuntime(
                    self._engine,
                    self._watch,
                    self._identity,
                    self._shelf,
                    allow_privileged=self._allow_privileged,
                )
            )
            self._watching = asyncio.create_task(self._watch.run(), name="docker-watch")
            found = True
        if "compose" not in runtimes and await has_compose():
            runtimes.offer(ComposeRuntime(self._engine, self._watch, self._identity, self._shelf))
            found = True
        if found:
            log.info("docker_offered", engine=self._engine.version, compose="compose" in runtimes)
        return found

    async def keep_looking(self, runtimes: Runtimes, tell: Callable[[], None]) -> None:
        """Look again now and then, for ever; tell when something new is offered."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if await self.look(runtimes):
                tell()

    def close(self) -> None:
        """Stop watching; containers run on."""
        if self._watching:
            self._watching.cancel()
        self._engine.close()
