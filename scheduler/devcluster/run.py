"""Prepare the data folder of an embedded cluster and run the cluster in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from scheduler.devcluster import probes
from scheduler.devcluster.binaries import CannotStart, find_etcd, find_redis
from scheduler.devcluster.display import Display, make_display
from scheduler.devcluster.folder import Folder, Layout
from scheduler.devcluster.leftovers import end_leftovers
from scheduler.devcluster.plan import Options, Site, environment, plan, port_names
from scheduler.devcluster.ports import assign_ports
from scheduler.devcluster.supervisor import Supervisor
from scheduler.devcluster.wanted import Wanted

_DEFAULT_SHARDS = 2
_DOCKER_SOCKET = "/var/run/docker.sock"


def run(wanted: Wanted) -> None:
    """Run the cluster until it is told to stop; raises CannotStart."""
    if sys.platform != "linux":
        raise CannotStart(
            "the embedded cluster needs Linux; on other systems run it in a container or a virtual machine"
        )
    folder = Folder(wanted.data)
    folder.create()
    folder.lock()
    display = make_display()
    try:
        asyncio.run(_run(wanted, folder, display))
    finally:
        display.close()
        folder.unlock()


async def _run(wanted: Wanted, folder: Folder, display: Display) -> None:
    await end_leftovers(folder, display.say, agents_get=signal.SIGKILL)
    layout = folder.read_layout()
    options = Options(wanted.agents, _shards(wanted, layout, folder), wanted.workers_per_shard, wanted.fronts)
    site = await _prepare(wanted, options, layout, folder)
    folder.write_layout(Layout(options.shards, site.etcd.version[:2], {**layout.ports, **site.ports}))
    site.redis_folder.mkdir(mode=0o700, exist_ok=True)
    await Supervisor(site, plan(site), environment(site, os.environ), display).run()


def _shards(wanted: Wanted, layout: Layout, folder: Folder) -> int:
    """Return the shard count: a cluster keeps that of its first start."""
    if layout.shards and wanted.shards and wanted.shards != layout.shards:
        raise CannotStart(
            f"{folder.shown} holds a cluster of {layout.shards} shards; "
            f"leave out --shards, or choose a new folder with --data"
        )
    return layout.shards or wanted.shards or _DEFAULT_SHARDS


async def _prepare(wanted: Wanted, options: Options, layout: Layout, folder: Folder) -> Site:
    search_path = os.environ.get("PATH", os.defpath)
    asked = {"front-1": wanted.port, "flower": wanted.flower_port}
    return Site(
        options=options,
        folder=folder,
        etcd=find_etcd(search_path, layout.etcd_version),
        redis=find_redis(search_path),
        ports=assign_ports(port_names(options), layout.ports, {name: port for name, port in asked.items() if port}),
        has_docker=await _docker_may_answer(),
    )


async def _docker_may_answer() -> bool:
    """Say whether agents should look for a Docker engine: at an address of the user's, or where one answers."""
    if os.environ.get("DOCKER_HOST"):
        return True
    return await probes.docker_answers(_DOCKER_SOCKET)
