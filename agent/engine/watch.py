"""What the engine's containers do: one list a second for all of this agent's, however many."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import docker.errors

from agent.engine.engine import AGENT_LABEL, REVISION_LABEL, WORKLOAD_LABEL, Engine
from agent.runtimes import RuntimeAway

_POLL_SECONDS = 1.0
_EXIT = re.compile(r"\((\d+)\)")
_SERVICE_LABEL = "com.docker.compose.service"


@dataclass(frozen=True, slots=True)
class Container:
    """One container as the engine lists it."""

    id: str
    state: str
    """created, running, paused, restarting, removing, exited or dead."""
    revision: str = ""
    service: str = ""
    """Of a compose project."""
    exit_code: int | None = None
    unhealthy: bool = False

    @property
    def is_active(self) -> bool:
        """Say whether it runs or will run again by itself."""
        return self.state in ("running", "paused", "restarting")


View = tuple[Container, ...]
AWAY = None
"""What is seen of any workload while the engine does not answer."""


class Watch:
    """The latest list, by workload."""

    def __init__(self, engine: Engine, agent_id: str) -> None:
        """Watch the containers with this agent's label."""
        self._engine = engine
        self._filters = {"label": f"{AGENT_LABEL}={agent_id}"}
        self._views: Mapping[str, View] | None = {}
        self._listing = asyncio.Lock()
        self._news = asyncio.Condition()

    async def run(self) -> None:
        """List for ever."""
        while True:
            with contextlib.suppress(RuntimeAway):  # then everybody sees AWAY
                await self.refresh()
            await asyncio.sleep(_POLL_SECONDS)

    async def refresh(self) -> None:
        """List now; what was done before this call is in the list. Raises RuntimeAway."""
        async with self._listing:
            try:
                rows = await self._engine.call(lambda client: client.api.containers(all=True, filters=self._filters))
                self._views = _by_workload(rows)
            except docker.errors.APIError as error:
                self._views = AWAY
                raise RuntimeAway(f"the Docker engine does not list its containers: {error.explanation}") from None
            except RuntimeAway:
                self._views = AWAY
                raise
            finally:
                async with self._news:
                    self._news.notify_all()

    async def look(self, workload_id: str) -> View:
        """Return the workload's containers as they are now; raises RuntimeAway."""
        await self.refresh()
        return self.latest(workload_id) or ()

    def latest(self, workload_id: str) -> View | None:
        """Return the workload's containers as last listed; AWAY when the engine did not answer."""
        return AWAY if self._views is None else self._views.get(workload_id, ())

    async def other_than(self, workload_id: str, seen: View | None) -> View | None:
        """Wait until the workload's containers look different."""
        async with self._news:
            await self._news.wait_for(lambda: self.latest(workload_id) != seen)
            return self.latest(workload_id)


def _by_workload(rows: list[dict[str, object]]) -> dict[str, View]:
    found: dict[str, list[Container]] = defaultdict(list)
    for row in rows:
        labels = row.get("Labels")
        if isinstance(labels, dict):
            found[str(labels.get(WORKLOAD_LABEL, ""))].append(_container(row, labels))
    return {key: tuple(sorted(each, key=lambda c: (c.service, c.id))) for key, each in found.items()}


def _container(row: dict[str, object], labels: dict[str, str]) -> Container:
    text = str(row.get("Status", ""))
    code = _EXIT.search(text) if text.startswith(("Exited", "Restarting")) else None
    return Container(
        id=str(row["Id"]),
        state=str(row.get("State", "")),
        revision=labels.get(REVISION_LABEL, ""),
        service=labels.get(_SERVICE_LABEL, ""),
        exit_code=int(code.group(1)) if code else None,
        unhealthy="(unhealthy)" in text,
    )
