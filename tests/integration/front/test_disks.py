"""Disks and volumes over the wire: row F82, the phases of F81, and what binds them to workloads."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from scheduler.pb import control_pb2 as pb
from scheduler.store.keys import SPECS
from scheduler.store.kv import EtcdApi
from tests.support.fronts import Heartbeat, Rig, container, front_on, refused, status

DRIVERS: dict[str, Any] = {"supported_storage_drivers": ["local", "nfs", "ceph-rbd"]}


async def create(rig: Rig, **fields: Any) -> pb.DiskView:
    """Make a disk."""
    answer = await rig.control.CreateDisk(pb.CreateDiskRequest(**{"name": "d", "driver": "nfs", **fields}))
    disk: pb.DiskView = answer.disk
    return disk


async def show(rig: Rig, disk_id: str) -> pb.DiskView:
    """Read a disk."""
    disk: pb.DiskView = (await rig.control.GetDisk(pb.GetDiskRequest(disk_id=disk_id))).disk
    return disk


async def delete(rig: Rig, disk_id: str, *, force: bool = False) -> pb.DeleteDiskResponse:
    """Delete a disk."""
    answer: pb.DeleteDiskResponse = await rig.control.DeleteDisk(pb.DeleteDiskRequest(disk_id=disk_id, force=force))
    return answer


def binding(ids: str, key: str = "persys.disk.ids", **fields: Any) -> pb.WorkloadSpec:
    """Describe a container that binds disks."""
    spec = container(**fields)
    spec.metadata[key] = ids
    return spec


async def test_F82_a_disk_has_the_defaults_of_its_driver(etcd: EtcdApi) -> None:
    """And is listed together with the volumes that workloads make, ordered by id."""
    async with front_on(etcd) as rig:
        local, rbd = await create(rig, driver="local"), await create(rig, driver="rbd", size_gb=-3)
        assert (local.phase, local.fs_type, local.device, local.size_gb) == ("Pending", "", "", 1)
        assert (rbd.phase, rbd.driver, rbd.fs_type, rbd.device, rbd.size_gb) == (
            "Available", "ceph-rbd", "ext4", "rbd:d", 1
        )  # fmt: skip
        for disk in (local, rbd):
            assert disk.id.startswith("disk-")
            assert (disk.access_mode, disk.retain_policy, disk.mount_path) == ("ReadWriteOnce", "Delete", "/data")
            assert disk.standalone
            assert disk.created_at.seconds
        await rig.register(**DRIVERS)
        await rig.apply(spec=container(managed_volumes=[pb.ManagedVolumeSpec(name="v", mount_path="/v")]))
        listed = (await rig.control.ListDisks(pb.ListDisksRequest())).disks
        assert [d.id for d in listed] == sorted([local.id, rbd.id, "local:v"])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"driver": ""}, "driver"),
        ({"driver": "floppy"}, "driver"),
        ({"size_gb": 2**50}, "size_gb"),
        ({"fs_type": "EXT 4"}, "fs_type"),
        ({"access_mode": "sometimes"}, "access_mode"),
        ({"retain_policy": "maybe"}, "retain_policy"),
        ({"mount_path": "data"}, "mount_path"),
        ({"driver": "local", "node_id": "n-9"}, "node_id"),
        ({"node_id": "n1"}, "node_id"),
    ],
)
async def test_F82_a_bad_disk_is_refused_by_the_name_of_the_field(fields: dict[str, Any], field: str) -> None:
    """And nothing is stored."""
    async with front_on() as rig:
        before = await rig.stored()
        with refused(grpc.StatusCode.INVALID_ARGUMENT, f"{field}:"):
            await create(rig, **fields)
        assert await rig.stored() == before


async def test_F82_a_disk_is_bound_by_its_id_and_survives(etcd: EtcdApi) -> None:
    """It becomes a volume of the workload; while it is used it is not deleted; afterwards it is as it was."""
    async with front_on(etcd) as rig:
        await rig.register(**DRIVERS)
        first, second = await create(rig, driver="local"), await create(rig, name="e", mount_path="/e")
        answer = await rig.apply(spec=binding(f" {first.id}; {second.id},"))
        assert answer.assigned_node_id == "n1"
        spec = (await rig.parts.store.get(SPECS, "web")).record
        assert spec
        assert [(v.name, v.disk_id, v.mount_path) for v in spec.managed_volumes] == [
            ("d", first.id, "/data"), ("e", second.id, "/e")
        ]  # fmt: skip
        report = status("web", "Running", epoch=await epoch(rig), revision=answer.revision_id)
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[report]))
        await rig.settled()
        bound = await show(rig, first.id)
        assert (bound.phase, bound.node_id) == ("Attached", "n1")
        assert (list(bound.workload_refs), list(bound.attached_nodes)) == (["web"], ["n1"])
        told = await delete(rig, first.id)
        assert (told.success, '"web"' in told.error_message) == (False, True)
        again = await rig.apply(spec=binding(f"{first.id} {second.id}"))
        assert again.success
        assert (await delete(rig, "disk-none")).success
        with refused(grpc.StatusCode.NOT_FOUND, "disk-none"):
            await show(rig, "disk-none")
        assert (await delete(rig, second.id, force=True)).success


async def epoch(rig: Rig) -> int:
    """Return the epoch of the workload."""
    return (await rig.workload()).assignment_epoch


@pytest.mark.parametrize("key", ["persys.disk.ids", "disk_ids"])
async def test_F82_what_cannot_be_bound_is_told_at_once(key: str) -> None:
    """An unknown disk, a volume that is none, two disks in one place, and a workload that cannot have any."""
    async with front_on() as rig:
        await rig.register(**DRIVERS)
        one, two = await create(rig), await create(rig, name="e")
        await rig.apply("other", spec=container(managed_volumes=[pb.ManagedVolumeSpec(name="v", mount_path="/v")]))
        stack = pb.WorkloadSpec(
            type="compose", compose=pb.ComposeSpec(inline_yaml="services: {a: {image: x}}"), metadata={key: one.id}
        )
        for spec, said in [
            (binding("disk-none", key), "there is no disk 'disk-none'"),
            (binding("local:v", key), "there is no disk 'local:v'"),
            (binding(f"{one.id},{two.id}", key), "mount_path '/data' is given twice"),
            (stack, "compose"),
        ]:
            answer = await rig.apply(spec=spec)
            assert (answer.success, answer.failure_reason) == (False, pb.INVALID_SPEC)
            assert said in answer.error_message
            assert key in answer.error_message


async def test_F81_a_volume_of_another_mode_is_refused_in_the_answer() -> None:
    """Nothing of the second workload is stored."""
    async with front_on() as rig:
        await rig.register(**DRIVERS)
        mine = pb.ManagedVolumeSpec(name="v", driver="nfs", access_mode="ReadWriteOnce")
        theirs = pb.ManagedVolumeSpec(name="v", driver="nfs", access_mode="ReadWriteMany")
        assert (await rig.apply(spec=container(managed_volumes=[mine]))).success
        answer = await rig.apply("second", spec=container(managed_volumes=[theirs]))
        assert (answer.success, 'used by "web"' in answer.error_message) == (False, True)
        assert (await rig.parts.store.get(SPECS, "second")).record is None


async def test_9_25_secrets_of_a_spec_are_in_no_log_event_or_error(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environment, cloud-init and passwords: also where the spec is refused for something else."""
    secret = "hunter2-is-not-to-be-seen"  # noqa: S105 - a secret of nobody
    vm = pb.VMSpec(
        vcpus=1, memory_mb=64, os_image="x", cloud_init=pb.CloudInitConfig(user_data=secret, vendor_data=secret)
    )
    specs = [
        container(env={"TOKEN": secret}),
        container(env={"TOKEN": secret}, image=""),
        container(env={"TOKEN": f"{secret}\0"}),
        pb.WorkloadSpec(type="vm", vm=vm, metadata={"persys.vm.password": secret}),
        pb.WorkloadSpec(type="vm", vm=pb.VMSpec(vcpus=0, cloud_init=pb.CloudInitConfig(user_data=secret))),
        pb.WorkloadSpec(type="container", container=pb.ContainerSpec(env={"TOKEN": secret}), metadata={"x y": secret}),
    ]
    told = []
    async with front_on() as rig:
        events: list[object] = []
        monkeypatch.setattr(rig.parts.events, "emit", lambda *args, **named: events.append((args, named)))
        await rig.register()
        for number, spec in enumerate(specs):
            told.append(str(await rig.apply(f"w{number}", spec=spec)))
            told.append(str(await rig.control.ListWorkloads(pb.ListWorkloadsRequest())))
        assert events
        told.append(str(events))
    out, err = capfd.readouterr()
    assert secret not in "".join([*told, out, err, caplog.text])
