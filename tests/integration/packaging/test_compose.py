"""compose.yaml, the Dockerfile and the HAProxy configuration fit together."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from tests.support import beds

ROOT = pathlib.Path(__file__).parents[3]
SECRETS = {"REDIS_PASSWORD": "r3", "FLOWER_PASSWORD": "f7"}


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """The file as YAML, anchors resolved."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    """Its services."""
    found: dict[str, Any] = compose["services"]
    return found


def has_compose() -> bool:
    """Say whether `docker compose` is there; it needs no engine to check a file."""
    docker = shutil.which("docker")
    return (
        docker is not None
        and subprocess.run([docker, "compose", "version"], check=False, capture_output=True).returncode == 0
    )


def test_docker_compose_accepts_the_file_and_insists_on_the_secrets() -> None:
    """The real judge, where it is installed."""
    beds.need("compose", has_compose(), "docker compose is not installed; the rules below hold without it")
    check = ["docker", "compose", "--env-file", "/dev/null", "config", "-q"]
    bare = {name: value for name, value in os.environ.items() if name not in SECRETS}
    good = subprocess.run(check, cwd=ROOT, env={**bare, **SECRETS}, capture_output=True, text=True, check=False)
    assert good.returncode == 0, good.stderr
    refused = subprocess.run(check, cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "copy deploy/example.env to .env" in refused.stderr


def test_the_layout_is_that_of_the_design(services: dict[str, Any]) -> None:
    """etcd, Redis, 2 fronts behind HAProxy, 2 beats, a worker a shard, Flower, 2 agents."""
    replicas = {name: service.get("deploy", {}).get("replicas", 1) for name, service in services.items()}
    assert replicas == {
        "etcd": 1, "redis": 1, "front": 2, "haproxy": 1, "beat": 2,
        "worker-0": 1, "worker-1": 1, "flower": 1, "agent-1": 1, "agent-2": 1,
    }  # fmt: skip
    shards = int(services["beat"]["environment"]["SCHEDULER_SHARD_COUNT"])
    consumed = {word for service in services.values() for word in service.get("command", [])}
    assert {f"shard-{k}" for k in range(shards)} <= consumed


def test_what_a_service_refers_to_exists(compose: dict[str, Any], services: dict[str, Any]) -> None:
    """Networks, volumes, files and the services waited for; those waited for as healthy have a health check."""
    for name, service in services.items():
        assert set(service["networks"]) <= set(compose["networks"]), name
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}, name
            assert "healthcheck" in services[other], f"{name} waits for {other}"
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in compose["volumes"], volume


def test_every_service_is_watched_bounded_and_without_privileges(services: dict[str, Any]) -> None:
    """Health check, restart, bounded logs, no capability, no host network, time to stop."""
    for name, service in services.items():
        assert service["healthcheck"]["test"][0] in {"CMD", "CMD-SHELL"}, name
        assert service["restart"] == "unless-stopped", name
        assert service["logging"]["options"]["max-size"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not {"privileged", "network_mode", "pid", "ipc", "cap_add", "devices"} & set(service), name
        assert not any("docker.sock" in volume for volume in service.get("volumes", [])), name
        assert re.fullmatch(r"\d+s", service["stop_grace_period"]), name


def test_our_image_runs_as_a_user_on_a_read_only_root(services: dict[str, Any]) -> None:
    """The user of the Dockerfile is that of compose.yaml."""
    user = re.search(r"^USER (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user
    for name, service in services.items():
        if service["image"].startswith("fleetbeat:"):
            assert service["user"] == user[1], name
            assert service["read_only"] is True, name


def test_workers_may_finish_what_they_run(services: dict[str, Any]) -> None:
    """A worker that is stopped gets longer than the hard limit of its tasks."""
    from scheduler.queues.config import hard_limit_seconds  # noqa: PLC0415 - only this test needs it
    from scheduler.settings import Settings  # noqa: PLC0415

    for name in ("worker-0", "worker-1"):
        grace = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace > hard_limit_seconds(Settings()), name


def test_only_the_load_balancer_and_flower_are_reachable_from_the_host(
    compose: dict[str, Any], services: dict[str, Any]
) -> None:
    """Etcd and Redis stay on a network that leads nowhere; published ports are bound to the loopback by default."""
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert sorted(published) == ["flower", "haproxy"]
    assert all(port.startswith("${BIND_ADDRESS:-127.0.0.1}:") for ports in published.values() for port in ports)
    assert compose["networks"]["control"]["internal"] is True


def test_secrets_come_from_the_environment_and_stay_off_command_lines(services: dict[str, Any]) -> None:
    """No value of a secret in the file, none in a command that `ps` shows, and Flower's API cannot change anything."""
    text = (ROOT / "compose.yaml").read_text()
    uses = re.findall(r"(?<!\$)\$\{(\w*PASSWORD)([^}]*)\}", text)
    assert {name for name, _ in uses} == set(SECRETS)
    assert all(rest.startswith(":?") for _, rest in uses), "a secret must not have a default"
    example = (ROOT / "deploy/example.env").read_text()
    assert all(re.search(rf"^{name}=$", example, re.MULTILINE) for name in SECRETS)
    for name, service in services.items():
        for word in service.get("command", []):
            assert not re.search(r"(?<!\$)\$\{?\w*PASSWORD", word), name
    assert "--read_only=True" in services["flower"]["command"]
    assert "FLOWER_BASIC_AUTH" in services["flower"]["environment"]
    assert not any("UNAUTHENTICATED" in key for key in services["flower"]["environment"])


def test_every_variable_of_the_file_is_explained(services: dict[str, Any]) -> None:
    """deploy/example.env lists all that compose.yaml reads, and nothing that it does not."""
    assert services
    read = set(re.findall(r"(?<!\$)\$\{(\w+)", (ROOT / "compose.yaml").read_text()))
    listed = set(re.findall(r"^(\w+)=", (ROOT / "deploy/example.env").read_text(), re.MULTILINE))
    assert read == listed


def test_the_image_is_built_from_what_is_copied_and_sent() -> None:
    """Every COPY source exists and passes .dockerignore; the wheel's packages are all among them."""
    copied = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            copied |= {word.removeprefix("./") for word in line.split()[1:-1]}
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == sent
    assert all((ROOT / source).exists() for source in copied)
    assert {"scheduler", "tasks", "agent", "beat_schedule.py", "requirements.lock"} <= copied


def test_haproxy_accepts_its_configuration(tmp_path: pathlib.Path) -> None:
    """Checked by HAProxy itself, where it is installed."""
    haproxy = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    beds.need("haproxy", haproxy, "haproxy is not installed")
    check = [str(haproxy), "-c", "-f", str(ROOT / "deploy/haproxy.cfg")]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_haproxy_balances_over_the_fronts_ports(services: dict[str, Any]) -> None:
    """The ports of the settings' defaults, the name of the service, and a check of readiness."""
    config = (ROOT / "deploy/haproxy.cfg").read_text()
    assert re.search(r"server-template front- \d+ front:8085 resolvers docker", config)
    assert "check port 8084" in config
    assert "httpchk GET /readyz" in config
    assert services["haproxy"]["ports"][0].endswith(":8085")
