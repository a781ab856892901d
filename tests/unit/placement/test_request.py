"""From a spec to what it asks of a node."""

from __future__ import annotations

import pytest

from scheduler.domain.node import Taint
from scheduler.domain.workload import ManagedVolume, Resources, VmDisk, VmSpec, WorkloadSpec
from scheduler.placement.request import LARGEST_AMOUNT, amount, host_port, parse_tolerations, request_of, workload_type
from tests.support.placement import spec


def test_a_request_is_in_millicores_megabytes_and_gigabytes() -> None:
    """Cores become whole millicores, rounded; floating-point dust does not survive."""
    request = request_of(spec(cpu=0.1 + 0.2, memory=512, disk=3))
    assert request.amounts == (300, 512, 3)


def test_a_vm_asks_for_its_own_size_where_resources_are_blank() -> None:
    """vcpus, memory and disks of a VM count (the reference system forgets them)."""
    vm = VmSpec(vcpus=2, memory_mb=1024, disks=(VmDisk(size_gb=10), VmDisk(size_gb=5)))
    assert request_of(WorkloadSpec(id="v", type="vm", vm=vm)).amounts == (2000, 1024, 15)
    stated = WorkloadSpec(id="v", type="vm", vm=vm, resources=Resources(cpu_usage=0.5, memory_usage=256))
    assert request_of(stated).amounts == (500, 256, 15)


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        ("8080:80/tcp", "8080/tcp"),
        ("8080:80", "8080/tcp"),
        ("53:53/UDP", "53/udp"),
        ("127.0.0.1:8080:80/tcp", "8080/tcp"),
        ("0:80/tcp", ""),
        (":80/tcp", ""),
        ("80/tcp", ""),
        ("80", ""),
    ],
)
def test_a_host_port_is_told_from_any_spelling(port: str, expected: str) -> None:
    """Only a fixed host port is a resource; a port without one takes none."""
    assert host_port(port) == expected


def test_one_port_is_asked_once() -> None:
    """Two container ports behind one host port are one claim."""
    assert request_of(spec(ports=("8080:80/tcp", "8080:81/tcp", "8080:80/udp"))).ports == ("8080/tcp", "8080/udp")


def test_drivers_and_types_have_one_name() -> None:
    """Aliases of the reference system lead to the same name; a blank driver is local."""
    volumes = (ManagedVolume(name="a", driver="ceph_rbd"), ManagedVolume(name="b", driver=""))
    assert request_of(spec(managed_volumes=volumes)).volume_drivers == ("ceph-rbd", "local")
    assert workload_type(" Docker-Container ") == "container"
    assert workload_type("firecracker") == "microvm"


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("gpu", True),
        ("gpu=a100", True),
        ("gpu=a100:NoSchedule", True),
        ("gpu:NoSchedule", True),
        ("other, gpu ", True),
        ("*", True),
        ("gpu=h100", False),
        ("gpu:NoExecute", False),
        ("gp", False),
        ("", False),
        (" , ", False),
    ],
)
def test_F52_a_toleration_covers_what_it_names(text: str, covered: bool) -> None:
    """A toleration matches by key, value and effect; a part that is left out matches anything."""
    taint = Taint(key="gpu", value="a100", effect="")
    assert any(t.covers(taint) for t in parse_tolerations(text)) is covered


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-3, 0), (float("nan"), 0), (float("inf"), LARGEST_AMOUNT), (2**80, LARGEST_AMOUNT), (1.5, 2), (7, 7)],
)
def test_an_amount_is_never_negative_and_never_overflows(value: float, expected: int) -> None:
    """One absurd record must not break the arithmetic for all the others."""
    assert amount(value) == expected
