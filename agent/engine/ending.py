"""Ending the containers of a workload without the agent: by the engine's labels alone, in the guardian."""

from __future__ import annotations

from typing import Any

import docker
import docker.errors
import requests

from agent.engine.engine import AGENT_LABEL, WORKLOAD_LABEL
from agent.runtimes import RuntimeAway

_TIMEOUT_SECONDS = 30
_ACTIVE = ["running", "paused", "restarting"]


def running(agent_id: str, workload_id: str) -> list[str]:
    """Return the containers of a workload that run, or will again by themselves; raises RuntimeAway."""
    return [str(one.id) for one in _listed(agent_id, workload_id)]


def end(agent_id: str, workload_id: str, grace_seconds: float) -> None:
    """End the containers of a workload, and keep the engine from starting them again; raises RuntimeAway."""
    try:
        for container in _listed(agent_id, workload_id):
            container.update(restart_policy={"Name": "no"})
            if container.status == "paused":
                container.unpause()
            container.stop(timeout=max(0, int(grace_seconds)))
    except docker.errors.NotFound:
        return
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise RuntimeAway(f"the Docker engine does not answer: {error}") from None


def _listed(agent_id: str, workload_id: str) -> list[Any]:
    labels = [f"{AGENT_LABEL}={agent_id}", f"{WORKLOAD_LABEL}={workload_id}"]
    try:
        client = docker.from_env(timeout=_TIMEOUT_SECONDS)
        return list(client.containers.list(filters={"label": labels, "status": _ACTIVE}))
    except docker.errors.NotFound:
        return []
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise RuntimeAway(f"the Docker engine does not answer: {error}") from None
