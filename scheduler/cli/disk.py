"""`fleetbeat disk`: standalone disks, and the volumes that workloads have made."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli import show
from scheduler.cli.connect import Front
from scheduler.cli.options import CommandError, Options, asynchronous, common_options
from scheduler.cli.workload import warn_when_stale
from scheduler.domain.volume import ACCESS_MODES, DELETE, RETAIN
from scheduler.pb import control_pb2


@click.group()
@common_options
def disk() -> None:
    """Create, list, show and delete disks and volumes."""


@disk.command("create")
@click.argument("name")
@click.option("--driver", required=True, type=click.Choice(["local", "nfs", "ceph-rbd"]), help="What keeps the data.")
@click.option("--size-gb", default=1, show_default=True, type=click.IntRange(1), help="Its size.")
@click.option("--access-mode", default=ACCESS_MODES[0], show_default=True, type=click.Choice(ACCESS_MODES),
              help="Which nodes may use it at once.")  # fmt: skip
@click.option("--retain-policy", default=DELETE, show_default=True, type=click.Choice([DELETE, RETAIN]),
              help="What becomes of the data.")  # fmt: skip
@click.option("--fs-type", default="", metavar="TYPE", help="Its file system; ext4 unless it is local.")
@click.option("--mount-path", default="/data", show_default=True, metavar="PATH", help="Where workloads find it.")
@click.option(
    "--node", "node_id", default="", metavar="ID", help="The node of a local disk; else that of its first use."
)
@common_options
@click.pass_obj
@asynchronous
async def create(options: Options, /, **given: Any) -> None:
    """Create a disk that outlives the workloads that use it.

    Bind it by its id, in the metadata of a workload: persys.disk.ids.

    \b
    Example:
      fleetbeat disk create data --driver nfs --size-gb 20
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        response = await front.write(front.control.CreateDisk, control_pb2.CreateDiskRequest(**given))
    show.write(options.output, {"disk": show.plain(response.disk)}, response.disk.id)


@disk.command("list")
@common_options
@click.pass_obj
@asynchronous
async def list_disks(options: Options) -> None:
    """List disks and volumes, ordered by id.

    \b
    Example:
      fleetbeat disk list -o json
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        response = await front.read(front.control.ListDisks, control_pb2.ListDisksRequest())
    columns = ("ID", "NAME", "DRIVER", "GB", "ACCESS", "PHASE", "NODES", "WORKLOADS", "AGE")
    warn_when_stale(response.stale)
    data = {"disks": [show.plain(d) for d in response.disks], "stale": response.stale}
    show.write(options.output, data, show.Table(columns, [_row(d) for d in response.disks]))


def _row(d: control_pb2.DiskView) -> list[str]:
    nodes = ", ".join(d.attached_nodes) or d.node_id
    workloads = ", ".join(d.workload_refs)
    return [d.id, d.name, d.driver, str(d.size_gb), d.access_mode, d.phase, nodes, workloads, show.age(d.created_at)]


@disk.command("show")
@click.argument("disk_id", metavar="ID")
@common_options
@click.pass_obj
@asynchronous
async def show_disk(options: Options, disk_id: str) -> None:
    """Show a disk or a volume.

    \b
    Example:
      fleetbeat disk show local:data
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        response = await front.read(front.control.GetDisk, control_pb2.GetDiskRequest(disk_id=disk_id))
    show.write(options.output, {"disk": show.plain(response.disk)}, _described(response.disk))


def _described(d: control_pb2.DiskView) -> str:
    return show.pairs(
        [
            ("id", d.id),
            ("name", d.name),
            ("kind", "standalone disk" if d.standalone else "volume of its workloads"),
            ("driver", d.driver + (f", {d.device}" if d.device else "")),
            ("size", f"{d.size_gb} GB" + (f", {d.fs_type}" if d.fs_type else "")),
            ("access", d.access_mode),
            ("retain", d.retain_policy),
            ("phase", d.phase),
            ("error", d.last_error),
            ("data on", d.node_id),
            ("mounted at", d.mount_path),
            ("workloads", "\n".join(d.workload_refs)),
            ("attached on", "\n".join(d.attached_nodes)),
            ("created", f"{show.age(d.created_at)} ago" if d.created_at.seconds else ""),
            ("updated", f"{show.age(d.updated_at)} ago" if d.updated_at.seconds else ""),
        ]
    )


@disk.command("delete")
@click.argument("disk_ids", metavar="ID…", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also while workloads name it; they then cannot be placed any more.")
@common_options
@click.pass_obj
@asynchronous
async def delete(options: Options, *, disk_ids: tuple[str, ...], force: bool) -> None:
    """Remove disks and volumes that no workload uses.

    \b
    Example:
      fleetbeat disk delete disk-5f0c5b9e-7f0a-4c1c-9d8e-0f6a4f1f2b3c
    """  # noqa: D301 - \b is click's mark for a paragraph that is not wrapped
    async with Front(options) as front:
        for disk_id in disk_ids:
            request = control_pb2.DeleteDiskRequest(disk_id=disk_id, force=force)
            response = await front.write(front.control.DeleteDisk, request)
            if not response.success:
                raise CommandError(response.error_message)
            show.say(f"{disk_id} deleted")
