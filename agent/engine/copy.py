"""One copy of a workload in containers: what is seen of them, as one state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from agent.engine.watch import AWAY, Container, View, Watch
from agent.records import Code, Failure, State
from agent.runtimes import Seen


class ContainersCopy:
    """A copy that consists of one container, or of those of a compose project."""

    def __init__(self, workload_id: str, revision: str, watch: Watch, stop: Callable[[float], Awaitable[None]]) -> None:
        """Take a started copy; `stop` ends its containers."""
        self.revision = revision
        self.facts: dict[str, str] = {}
        self._workload_id = workload_id
        self._watch = watch
        self._stop = stop
        self._seen: View | None = (Container("", ""),)  # what nothing ever looks like

    async def changed(self) -> Seen:
        """Wait until the containers look different."""
        self._seen = view = await self._watch.other_than(self._workload_id, self._seen)
        return state_of(view)

    async def stop(self, grace_seconds: float) -> None:
        """End the containers; they stay, for their logs."""
        await self._stop(grace_seconds)


def state_of(view: View | None) -> Seen:
    """Return the one state of all containers of a workload: the worst of what still matters."""
    if view is AWAY:
        return Seen(State.UNKNOWN, "the Docker engine does not answer")
    if not view:
        failure = Failure(Code.RUNTIME_RESOURCE_MISSING, "container not found")
        return Seen(State.UNKNOWN, failure.message, ended=True, failure=failure)
    ended = [c for c in view if c.state in ("exited", "dead")]
    broken = [c for c in ended if c.exit_code != 0]
    if len(ended) == len(view):
        return _end_of((broken or ended)[0])
    return _broken(broken[0]) if broken else _life_of(view)


def _life_of(view: View) -> Seen:
    """Return the state of containers of which none has failed and some live."""
    for state, shown in (("restarting", State.PENDING), ("created", State.PENDING), ("paused", State.UNKNOWN)):
        found = next((c for c in view if c.state == state), None)
        if found:
            return Seen(shown, _told(found, state))
    sick = next((c for c in view if c.unhealthy), None)
    if sick:
        text = _told(sick, "running, but its health check fails")
        return Seen(State.RUNNING, text, failure=Failure(Code.RUNTIME_UNHEALTHY, text))
    return Seen(State.RUNNING, "running")


def _end_of(container: Container) -> Seen:
    """Return the state of containers that have all ended, by the one that matters most."""
    if container.exit_code == 0:
        return Seen(State.STOPPED, "exited with code 0", ended=True, exit_code=0)
    return replace(_broken(container), ended=True, exit_code=container.exit_code)


def _broken(container: Container) -> Seen:
    text = _told(container, f"exited with code {container.exit_code}")
    return Seen(State.FAILED, text, failure=Failure(Code.RUNTIME_ERROR, text))


def _told(container: Container, text: str) -> str:
    return f"service {container.service}: {text}" if container.service else text
