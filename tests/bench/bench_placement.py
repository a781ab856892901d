"""CPU time of choose() by fleet size, beside a floor: one numpy pass over the columns.

Run it: python -m tests.bench.bench_placement
"""

from __future__ import annotations

import time
from collections.abc import Callable

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node, Taint
from scheduler.placement.choose import choose
from scheduler.placement.fleet import Fleet
from scheduler.placement.request import Request, Toleration

SIZES = (100, 1_000, 10_000)
_ENOUGH_SECONDS = 0.3

REQUESTS = {
    "any node": Request("w", cpu_millicores=100, memory_mb=128),
    "one zone of three": Request("w", cpu_millicores=100, memory_mb=128, labels=(("zone", "z1"),)),
    "one host": Request("w", cpu_millicores=100, labels=(("hostname", "node-00007.example"),)),
    "tolerant, with a port": Request("w", cpu_millicores=100, ports=("80/tcp",), tolerations=(Toleration("*"),)),
    "nothing fits": Request("w", cpu_millicores=10**6),
}


def build(size: int) -> Fleet:
    """Return a fleet of nodes with labels, some taints and unequal load."""
    fleet = Fleet()
    for index in range(size):
        fleet.upsert(*described(index))
    return fleet


def described(index: int) -> tuple[Node, Ledger]:
    """Return one node and its ledger."""
    node_id = f"node-{index:05d}.example"
    commitments = {f"w-{index}-{i}": Commitment(cpu_millicores=100, memory_mb=100) for i in range(index % 20)}
    one = Node(
        node_id=node_id,
        total_cpu=16,
        total_memory=65536,
        labels={"zone": f"z{index % 3}", "hostname": node_id, "arch": "amd64"},
        taints=(Taint(key="gpu"),) if index % 10 == 0 else (),
    )
    return one, Ledger(node_id=node_id, commitments=commitments)


def cpu_microseconds(action: Callable[[], object]) -> float:
    """Return the CPU time of one call, averaged over enough of them."""
    calls, began = 0, time.process_time()
    while time.process_time() - began < _ENOUGH_SECONDS:
        action()
        calls += 1
    return (time.process_time() - began) / calls * 1e6


def measure(size: int) -> None:
    """Print a line for each kind of request."""
    fleet = build(size)
    used = slice(fleet.rows)

    def one_pass() -> object:
        return (fleet.available[:, used] - fleet.pending[:, used]).sum(), fleet.free[:, used].min()

    floor = cpu_microseconds(one_pass)
    print(f"{size:>6} nodes  {'one pass over the columns':<24} {floor:>8.0f} µs")
    for name, request in REQUESTS.items():
        taken = cpu_microseconds(lambda request=request: choose(fleet, request))  # type: ignore[misc]
        print(f"{'':>12}  {name:<24} {taken:>8.0f} µs  {taken / floor:>6.1f} x")
    one, ledger = described(size // 2)
    versions = [ledger, ledger.with_commitment("more", Commitment(cpu_millicores=1))]

    def change_ledger() -> None:
        versions.reverse()
        fleet.upsert(one, versions[0])

    fleet.upsert(one, ledger)
    taken = cpu_microseconds(change_ledger)
    print(f"{'':>12}  {'upsert of a ledger':<24} {taken:>8.0f} µs  {taken / floor:>6.1f} x")


if __name__ == "__main__":
    for each in SIZES:
        measure(each)
