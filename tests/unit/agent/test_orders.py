"""Each field of an apply request is checked before anything is kept."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

import pytest

from agent.orders import InvalidRequest, order_of
from agent.records import Code, ComposeSpec, ContainerSpec, Desired
from scheduler.pb import agent_pb2 as pb
from tests.support.agent_process import order

Change = Callable[[pb.ApplyWorkloadRequest], None]


def changed(change: Change) -> pb.ApplyWorkloadRequest:
    """Return a good request with one thing changed."""
    request = order("w")
    change(request)
    return request


BAD_REQUESTS: list[tuple[str, Change]] = [
    ("id must not be blank", lambda r: setattr(r, "id", "  ")),
    ("id '../etc'", lambda r: setattr(r, "id", "../etc")),
    ("id 'a/b'", lambda r: setattr(r, "id", "a/b")),
    ("1 to 128", lambda r: setattr(r, "id", "x" * 129)),
    ("id '-a'", lambda r: setattr(r, "id", "-a")),
    ("type 0", lambda r: setattr(r, "type", 0)),
    ("type 77", lambda r: setattr(r, "type", 77)),
    ("revision_id", lambda r: setattr(r, "revision_id", "")),
    ("revision_id", lambda r: setattr(r, "revision_id", "a\x00b")),
    ("revision_id", lambda r: setattr(r, "revision_id", "x" * 129)),
    ("desired_state 0", lambda r: setattr(r, "desired_state", 0)),
    ("desired_state 9", lambda r: setattr(r, "desired_state", 9)),
    ("assignment_epoch -1", lambda r: setattr(r, "assignment_epoch", -1)),
]


@pytest.mark.parametrize(("text", "change"), BAD_REQUESTS)
def test_a_malformed_request_is_refused_with_the_name_of_the_field(text: str, change: Change) -> None:
    """Nothing of it is kept, so there is no workload whose state could tell it."""
    with pytest.raises(InvalidRequest, match=text):
        order_of(changed(change))


def _ports(*ports: tuple[int, int, str]) -> Change:
    return lambda r: r.spec.container.ports.extend(
        pb.PortMapping(host_port=h, container_port=c, protocol=p) for h, c, p in ports
    )


def _mount(host: str, container: str) -> Change:
    return lambda r: r.spec.container.volumes.append(pb.VolumeMount(host_path=host, container_path=container))


def _volume(count: int = 1, **fields: str) -> Change:
    def change(request: pb.ApplyWorkloadRequest) -> None:
        request.spec.container.managed_volumes.extend([pb.ManagedVolumeSpec(**fields)] * count)

    return change


BAD_SPECS: list[tuple[str, Change]] = [
    ("spec must carry a container", lambda r: r.ClearField("spec")),
    ("spec carries a compose", lambda r: r.spec.compose.SetInParent()),
    ("runs no vm", lambda r: (setattr(r, "type", pb.WORKLOAD_TYPE_VM), r.spec.vm.SetInParent())),
    ("runs no microvm", lambda r: (setattr(r, "type", pb.WORKLOAD_TYPE_MICROVM), r.spec.vm.SetInParent())),
    ("container.image must not be blank", lambda r: setattr(r.spec.container, "image", " ")),
    ("container.image must not contain", lambda r: setattr(r.spec.container, "image", "a b")),
    ("container.image is longer", lambda r: setattr(r.spec.container, "image", "a" * 600)),
    ("command\\[2\\] contains a NUL", lambda r: r.spec.container.command.extend(["a\x00"])),
    ("command has 2002 entries", lambda r: r.spec.container.command.extend(["a"] * 2000)),
    ("command\\[2\\] is longer", lambda r: r.spec.container.args.append("a" * 200_000)),
    ("container.env has a name", lambda r: r.spec.container.env.update({"A=B": "c"})),
    ("container.env has a name", lambda r: r.spec.container.env.update({"": "c"})),
    ("env\\[A\\] contains a NUL", lambda r: r.spec.container.env.update({"A": "b\x00"})),
    ("ports\\[0\\].host_port -1", _ports((-1, 80, ""))),
    ("ports\\[0\\].container_port 0", _ports((80, 0, ""))),
    ("ports\\[1\\]: 0/tcp is given twice", _ports((0, 80, ""), (0, 80, "tcp"))),
    ("ports\\[0\\].host_port 70000", _ports((70000, 80, ""))),
    ("ports\\[0\\].container_port -1", _ports((80, -1, ""))),
    ("ports\\[0\\].protocol", _ports((80, 80, "icmp"))),
    ("80/tcp is given twice", _ports((80, 80, "tcp"), (80, 81, ""))),
    ("volumes\\[0\\].host_path", _mount("relative", "/data")),
    ("volumes\\[0\\].container_path", _mount("/data", "/a/../b")),
    ("volumes\\[0\\].container_path", _mount("/data", "/a:ro")),
    ("restart_policy.policy 'sometimes'", lambda r: setattr(r.spec.container.restart_policy, "policy", "sometimes")),
    ("max_retry_count", lambda r: setattr(r.spec.container.restart_policy, "max_retry_count", -1)),
    ("managed_volumes\\[0\\].name", _volume(name="../v")),
    ("managed_volumes\\[0\\].volume_id", _volume(name="v", volume_id="/v")),
    ("managed_volumes\\[0\\].mount_path", _volume(name="v", mount_path="v")),
    ("one id twice", _volume(name="v", count=2)),
    ("resources.memory_mb -5", lambda r: setattr(r.resources, "memory_mb", -5)),
    ("resources.cpu_millicores", lambda r: setattr(r.resources, "cpu_millicores", 2**62)),
    ("resources.disk_gb", lambda r: setattr(r.resources, "disk_gb", -1)),
]


@pytest.mark.parametrize(("text", "change"), BAD_SPECS)
def test_a_bad_spec_becomes_a_refusal_that_names_the_field(text: str, change: Change) -> None:
    """So the workload is seen as failed, with the reason, and the code is one that ends retries."""
    refusal = order_of(changed(change)).refusal
    assert refusal
    assert (refusal.code, refusal.retryable) == (Code.INVALID_SPECIFICATION, False)
    assert re.search(text, refusal.message), refusal.message


def test_a_good_container_order_keeps_every_field() -> None:
    """Command and args are one, the restart policy has a default, limits are what was committed."""
    request = order("w", "run", epoch=7, env={"A": "1"})
    request.spec.container.args.append("--fast")
    request.spec.container.ports.add(host_port=80, container_port=8080)
    request.spec.container.volumes.add(host_path="/srv", container_path="/data", read_only=True)
    request.resources.cpu_millicores = 250
    found = order_of(request)
    assert (found.id, found.revision, found.epoch, found.desired) == ("w", "r1", 7, Desired.RUNNING)
    spec = found.spec
    assert isinstance(spec, ContainerSpec)
    assert (spec.command, spec.env, spec.restart) == (("run", "--fast"), {"A": "1"}, "no")
    assert (spec.ports[0].host, spec.ports[0].container, spec.ports[0].protocol) == (80, 8080, "tcp")
    assert (spec.mounts[0].host_path, spec.mounts[0].read_only) == ("/srv", True)
    assert (found.limits.cpu_millicores, found.refusal) == (250, None)


def test_limits_in_the_reference_units_are_understood() -> None:
    """The Persys scheduler sends cpu_shares = cores x 1000 and bytes, and no resources block."""
    request = order("w")
    request.spec.container.resources.cpu_shares = 1500
    request.spec.container.resources.memory_bytes = 64 * 2**20 + 1
    limits = order_of(request).limits
    assert (limits.cpu_millicores, limits.memory_mb) == (1500, 65)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_compose_yaml_comes_plain_or_as_base64(is_wrapped: bool) -> None:
    """The reference sends either."""
    text = "services:\n  web:\n    image: x\n"
    given = base64.b64encode(text.encode()).decode() if is_wrapped else text
    request = order("w")
    request.type = pb.WORKLOAD_TYPE_COMPOSE
    request.spec.compose.compose_yaml = given
    assert order_of(request).spec == ComposeSpec(yaml=text)


@pytest.mark.parametrize("text", ["", "   ", "no colon and no base64!", "x" * (2**20 + 1)])
def test_compose_yaml_that_cannot_be_one_is_refused(text: str) -> None:
    """Blank, neither form, too long."""
    request = order("w")
    request.type = pb.WORKLOAD_TYPE_COMPOSE
    request.spec.compose.compose_yaml = text
    refusal = order_of(request).refusal
    assert refusal
    assert "compose_yaml" in refusal.message
