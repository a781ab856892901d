"""CPU time of a heartbeat with 20 workloads and no news, beside a floor: parsing the same bytes.

"handled" is what the front does in its own code; "over gRPC" adds the call, on the loopback, with the
client in the same process. Run it: python -m tests.bench.bench_heartbeats
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from scheduler.pb import control_pb2 as pb
from tests.integration.front.test_reports import running, status
from tests.support.fronts import Heartbeat, Rig, front_on

WORKLOADS = 20
_ENOUGH_SECONDS = 1.0


async def cpu_microseconds(action: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU time of one call of this process, averaged over enough of them."""
    calls, began = 0, time.process_time()
    while time.process_time() - began < _ENOUGH_SECONDS:
        await action()
        calls += 1
    return (time.process_time() - began) / calls * 1e6


async def request_of(rig: Rig) -> pb.HeartbeatRequest:
    """Return a heartbeat of a node with workloads that run, after the front has heard it once."""
    await rig.register(cpu_total_millicores=100_000, memory_total_mb=100_000)
    known = {f"w{i}": await running(rig, f"w{i}") for i in range(WORKLOADS)}
    statuses = [status(w, "Running", epoch=epoch, revision=revision) for w, (epoch, revision) in known.items()]
    usage = pb.NodeUsage(cpu_used_millicores=1500, memory_used_mb=2000)
    request = Heartbeat(node_id="n1", workload_statuses=statuses, usage=usage, full=True)
    for _ in range(2):
        await rig.control.Heartbeat(request)
        await rig.settled()
    return request


async def main() -> None:
    """Measure and print."""
    async with front_on() as rig:
        request = await request_of(rig)
        data = request.SerializeToString()

        async def parse() -> object:
            return pb.HeartbeatRequest.FromString(data)

        async def handle() -> object:
            return await rig.front.heartbeats.take(pb.HeartbeatRequest.FromString(data))

        async def call() -> object:
            return await rig.control.Heartbeat(request)

        floor = await cpu_microseconds(parse)
        print(f"{WORKLOADS} workloads, {len(data)} bytes: parsed  {floor:8.1f} µs")
        for name, action in (("handled", handle), ("over gRPC", call)):
            cost = await cpu_microseconds(action)
            print(f"{name:>38}  {cost:8.1f} µs {cost / floor:8.1f} x")


if __name__ == "__main__":
    asyncio.run(main())
