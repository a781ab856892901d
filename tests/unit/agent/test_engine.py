"""What the engine's errors and lists mean, without an engine."""

from __future__ import annotations

import pytest

from agent.engine.copy import state_of
from agent.engine.engine import meaning_of
from agent.engine.watch import AWAY, Container, _by_workload
from agent.records import Code, State


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("driver failed programming external connectivity: Bind for 0.0.0.0:80 failed: port is already allocated",
         Code.PORT_BIND_CONFLICT),
        ("listen tcp4 0.0.0.0:80: bind: address already in use", Code.PORT_BIND_CONFLICT),
        ("write /var/lib/docker/x: no space left on device", Code.STORAGE_FULL),
        ("Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available", Code.RUNTIME_ERROR),
        ("Minimum memory limit allowed is 6MB", Code.INSUFFICIENT_RESOURCES),
        ("invalid reference format: repository name must be lowercase", Code.INVALID_IMAGE),
        ("pull access denied for x, repository does not exist or may require 'docker login': denied",
         Code.IMAGE_PULL_AUTH_FAILED),
        ("unauthorized: authentication required", Code.IMAGE_PULL_AUTH_FAILED),
        ("manifest for nginx:nope not found: manifest unknown: manifest unknown", Code.INVALID_IMAGE),
        ("dial tcp: lookup registry.example on 10.0.0.1:53: no such host", Code.DNS_RESOLUTION_FAILED),
        ("dial tcp 10.1.1.1:443: connect: network is unreachable", Code.NETWORK_UNREACHABLE),
        ("dial tcp 127.0.0.1:5000: connect: connection refused", Code.NETWORK_UNREACHABLE),
        ("net/http: TLS handshake timeout", Code.IMAGE_PULL_TIMEOUT),
        ("context deadline exceeded", Code.IMAGE_PULL_TIMEOUT),
        ('exec: "nope": executable file not found in $PATH: unknown', Code.INVALID_CONFIGURATION),
        ('invalid mount config for type "bind": bind source path does not exist: /x', Code.INVALID_CONFIGURATION),
        ("something else", Code.RUNTIME_ERROR),
    ],
)  # fmt: skip
def test_an_error_text_of_the_engine_has_a_code_of_the_reference(text: str, code: Code) -> None:
    """Texts as engines and registries write them, while pulling."""
    assert meaning_of(text, pulling=True) is code


def test_a_timeout_outside_of_a_pull_is_the_networks() -> None:
    """Only a pull has a code of its own for it."""
    assert meaning_of("i/o timeout") is Code.NETWORK_TIMEOUT


def one(state: str, code: int | None = None, service: str = "", *, unhealthy: bool = False) -> Container:
    """Return a container."""
    return Container(f"id-{service}", state, "r1", service, code, unhealthy)


@pytest.mark.parametrize(
    ("view", "state", "ended", "text"),
    [
        ((one("running"),), State.RUNNING, False, "running"),
        ((one("running", unhealthy=True),), State.RUNNING, False, "running, but its health check fails"),
        ((one("restarting", 1),), State.PENDING, False, "restarting"),
        ((one("created"),), State.PENDING, False, "created"),
        ((one("paused"),), State.UNKNOWN, False, "paused"),
        ((one("exited", 0),), State.STOPPED, True, "exited with code 0"),
        ((one("exited", 137),), State.FAILED, True, "exited with code 137"),
        ((one("dead"),), State.FAILED, True, "exited with code None"),
        ((), State.UNKNOWN, True, "container not found"),
        (AWAY, State.UNKNOWN, False, "the Docker engine does not answer"),
        ((one("running", None, "web"), one("exited", 0, "init")), State.RUNNING, False, "running"),
        ((one("running", None, "web"), one("exited", 2, "db")), State.FAILED, False, "service db: exited with code 2"),
        ((one("exited", 0, "web"), one("exited", 2, "db")), State.FAILED, True, "service db: exited with code 2"),
        ((one("exited", 0, "web"), one("exited", 0, "db")), State.STOPPED, True, "exited with code 0"),
        ((one("running", None, "a"), one("restarting", 1, "b")), State.PENDING, False, "service b: restarting"),
    ],
)
def test_the_state_of_a_workload_is_that_of_its_containers(
    view: tuple[Container, ...] | None, state: State, ended: bool, text: str
) -> None:
    """The worst that still matters; one that has done its work is no failure."""
    seen = state_of(view)
    assert (seen.state, seen.ended, seen.message) == (state, ended, text)
    assert (seen.failure is not None) == (state is State.FAILED or "health" in text or "not found" in text)


def test_a_list_of_the_engine_is_read_by_workload() -> None:
    """Exit codes and health stand only in the text that people read."""
    labels = {"fleetbeat.workload": "w", "fleetbeat.revision": "r1"}
    rows: list[dict[str, object]] = [
        {"Id": "1", "State": "exited", "Status": "Exited (137) 2 minutes ago", "Labels": labels},
        {"Id": "2", "State": "running", "Status": "Up 3 minutes (unhealthy)",
         "Labels": {**labels, "com.docker.compose.service": "web"}},
        {"Id": "3", "State": "running", "Status": "Up 3 (healthy)", "Labels": {"fleetbeat.workload": "x"}},
    ]  # fmt: skip
    assert _by_workload(rows) == {
        "w": (
            Container("1", "exited", "r1", "", 137),
            Container("2", "running", "r1", "web", None, unhealthy=True),
        ),
        "x": (Container("3", "running"),),
    }
