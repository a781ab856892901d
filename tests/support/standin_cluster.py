"""An embedded cluster of stand-ins: the real supervisor and data folder, quick little processes as its children.

`python -m tests.support.standin_cluster DATA` runs one like `fleetbeat up --data DATA`; with a role
as the first word it is one of the children.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import time

from scheduler.devcluster import probes
from scheduler.devcluster.binaries import Binary
from scheduler.devcluster.display import PlainDisplay
from scheduler.devcluster.folder import Folder
from scheduler.devcluster.leftovers import end_leftovers
from scheduler.devcluster.plan import AGENTS, CONTROL, SERVERS, ChildSpec, Options, Site, port_names
from scheduler.devcluster.ports import assign_ports
from scheduler.devcluster.supervisor import Supervisor

_ME = (sys.executable, "-m", "tests.support.standin_cluster")


def specs(site: Site) -> list[ChildSpec]:
    """Return a server, a front and an agent that leaves a workload when it is killed."""
    ready = probes.log_says(b"ready")
    return [
        ChildSpec("etcd", SERVERS, (*_ME, "server"), ready),
        ChildSpec(
            "front-1", CONTROL, (*_ME, "front", str(site.ports["front-1"])), probes.listens(site.ports["front-1"])
        ),
        ChildSpec("worker", CONTROL, (*_ME, os.environ.get("STANDIN_WORKER", "server")), ready, grace_seconds=1),
        ChildSpec("agent-1", AGENTS, (*_ME, "agent"), ready),
    ]


async def up(data: pathlib.Path) -> None:
    """Run the cluster until it is told to stop."""
    folder = Folder(data)
    folder.create()
    folder.lock()
    display = PlainDisplay()
    await end_leftovers(folder, display.say, agents_get=signal.SIGKILL)
    options = Options(agents=1)
    etcd, redis = Binary("etcd", "etcd", (3, 5, 6)), Binary("redis", "redis", (7, 0, 0))
    site = Site(options, folder, etcd, redis, assign_ports(port_names(options), {}), has_docker=False)
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2]), "PYTHONUNBUFFERED": "1"}
    if "STANDIN_INTERRUPTED" in environment:
        signal.raise_signal(signal.SIGINT)
    await Supervisor(site, specs(site), environment, display).run()
    folder.unlock()


def server() -> None:
    """Run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("ready")
    time.sleep(600)


def deaf() -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready")
    time.sleep(600)


def parent() -> None:
    """Run with a child of its own in the same process group, as a Celery worker does."""
    subprocess.Popen(["/bin/sleep", "599"])
    server()


def mortal() -> None:
    """End at once."""
    print("no licence found")
    sys.exit(3)


def agent() -> None:
    """Run a workload in a session of its own; it is stopped with the agent, but outlives its being killed."""
    with subprocess.Popen(["/bin/sleep", "598"], start_new_session=True) as workload:
        try:
            server()
        finally:
            workload.terminate()


async def front(port: int) -> None:
    """Answer GetClusterStatus."""
    import grpc.aio  # noqa: PLC0415 - the other stand-ins start faster without it

    from scheduler.pb import fleetbeat_pb2, fleetbeat_pb2_grpc  # noqa: PLC0415

    class Fleet(fleetbeat_pb2_grpc.FleetServicer):
        async def GetClusterStatus(self, _request: object, _context: object) -> fleetbeat_pb2.GetClusterStatusResponse:
            answer = fleetbeat_pb2.GetClusterStatusResponse(cluster_id="stand-in", shard_count=2)
            answer.leader.instance_id = "beat@here"
            answer.summary.total_nodes = answer.summary.ready_nodes = 1
            return answer

    serving = grpc.aio.server()
    fleetbeat_pb2_grpc.add_FleetServicer_to_server(Fleet(), serving)  # type: ignore[abstract]
    serving.add_insecure_port(f"127.0.0.1:{port}")
    await serving.start()
    await serving.wait_for_termination()


def main(words: list[str]) -> None:
    """Play the role that the first word names, or run the cluster."""
    roles = {"server": server, "deaf": deaf, "parent": parent, "mortal": mortal, "agent": agent}
    if words[0] in roles:
        roles[words[0]]()
    elif words[0] == "front":
        asyncio.run(front(int(words[1])))
    else:
        asyncio.run(up(pathlib.Path(words[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
