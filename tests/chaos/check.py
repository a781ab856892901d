"""Checks a recorded history: `python -m tests.chaos.check FILE` prints every violation and counts what it looked at.

What is checked of the store, after each revision as a whole:
    capacity    no ledger holds more than its node has, no host port is held twice
    epoch       the epoch of a workload never falls, also over delete and re-create
    ledger      an assigned workload is committed on its node, with its epoch, and on no other
    fence       the (term, slot) of a fence never falls
and of the processes:
    exclusive   an exclusive workload is never two processes
    converged   at the end each workload runs as exactly one process, is stopped, or is gone, as it is wanted
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from scheduler.domain.policy import is_exclusive
from scheduler.domain.workload import WorkloadSpec
from tests.chaos.history import Line, read

LEFT_MARK = "~"
"""In the name of a holder that a workload has left behind on a node: no id of a workload has one."""
_WATCHED = ("/nodes/", "/allocations/", "/workloads-spec/", "/workloads-status/", "/shards/")

Record = dict[str, Any]


class Checker:
    """Follows a history and keeps what was wrong."""

    def __init__(self) -> None:
        """Start with an empty store."""
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self._tables: dict[str, dict[str, Record]] = {table: {} for table in _WATCHED}
        self._epochs: dict[str, int] = {}
        self._fences: dict[str, tuple[int, int]] = {}
        self._exclusive: dict[str, bool] = {}
        self._last: dict[str, list[int]] = {}
        self._last_at = -1.0
        self._ended = False

    def follow(self, lines: Iterable[Line]) -> None:
        """Take the whole history."""
        for line in lines:
            self._take(line)
        if not self._ended:
            self._wrong("the history has no end")
        self._check_end()

    def _take(self, line: Line) -> None:
        kind = line["kind"]
        self.counts[kind] += 1
        if kind == "store":
            for key, value in line["changes"]:
                self._store(line["revision"], key, value)
            self._check_ledgers(line["revision"])
        elif kind == "copies":
            self._last, self._last_at = line["copies"], line["at"]
            self._check_exclusive(line)
        elif kind == "end":
            self._ended = True

    def _wrong(self, text: str) -> None:
        self.violations.append(text)

    # The store

    def _store(self, revision: int, key: str, value: Record | None) -> None:
        table = next((t for t in _WATCHED if key.startswith(t)), None)
        if table is None:
            return
        name = key[len(table) :]
        if value is None:
            self._tables[table].pop(name, None)
            return
        self._tables[table][name] = value
        if table == "/workloads-status/":
            self._check_epoch(name, value, revision)
        elif table == "/shards/" and "/" in name:
            self._check_fence(name, value, revision)
        elif table == "/workloads-spec/":
            self._exclusive[name] = is_exclusive(WorkloadSpec.from_json(json.dumps(value).encode()))

    def _check_epoch(self, name: str, status: Record, revision: int) -> None:
        epoch = status.get("epoch", 0)
        if epoch and epoch < self._epochs.get(name, 0):
            self._wrong(f"revision {revision}: the epoch of {name} fell from {self._epochs[name]} to {epoch}")
        self._epochs[name] = max(epoch, self._epochs.get(name, 0))

    def _check_fence(self, name: str, fence: Record, revision: int) -> None:
        now = (fence["term"], fence["slot"])
        if now < self._fences.get(name, (0, -1)):
            self._wrong(f"revision {revision}: the fence {name} fell from {self._fences[name]} to {now}")
        self._fences[name] = now

    def _check_ledgers(self, revision: int) -> None:
        held: dict[str, list[tuple[str, int]]] = {}
        for node_id, ledger in self._tables["/allocations/"].items():
            commitments = ledger.get("commitments", {})
            self._check_capacity(revision, node_id, commitments)
            for holder, commitment in commitments.items():
                if LEFT_MARK not in holder:
                    held.setdefault(holder, []).append((node_id, commitment.get("epoch", 0)))
        for name, status in self._tables["/workloads-status/"].items():
            node_id = status.get("nodeId", "")
            wanted = [(node_id, status.get("epoch", 0))] if node_id else []
            if held.pop(name, []) != wanted:
                self._wrong(f"revision {revision}: {name} is on {wanted}, the ledgers disagree")
        for name, places in held.items():
            self._wrong(f"revision {revision}: {name} has no record, {places} hold something for it")

    def _check_capacity(self, revision: int, node_id: str, commitments: dict[str, Record]) -> None:
        node = self._tables["/nodes/"].get(node_id)
        if node is None:
            return
        sums = [sum(c.get(k, 0) for c in commitments.values()) for k in ("cpuMillicores", "memoryMb", "diskGb")]
        limits = [round(node["totalCpu"] * 1000), node["totalMemory"], node.get("totalDisk") or sums[2]]
        if any(total > limit for total, limit in zip(sums, limits, strict=True)):
            self._wrong(f"revision {revision}: {node_id} holds {sums} of {limits}")
        ports = Counter(port for c in commitments.values() for port in c.get("ports", ()))
        if doubled := [port for port, count in ports.items() if count > 1]:
            self._wrong(f"revision {revision}: ports {doubled} of {node_id} are held twice")

    # The processes

    def _check_exclusive(self, line: Line) -> None:
        for name, pids in line["copies"].items():
            if len(pids) > 1 and self._exclusive.get(name):
                self._wrong(f"at {line['at']} s: the exclusive {name} is {len(pids)} processes: {pids}")

    def _check_end(self) -> None:
        specs, statuses = self._tables["/workloads-spec/"], self._tables["/workloads-status/"]
        for name in self._last.keys() - specs.keys():
            self._wrong(f"at the end: {name} was deleted and still runs: {self._last[name]}")
        for name, spec in specs.items():
            for text in self._unconverged(spec, statuses.get(name, {}), len(self._last.get(name, []))):
                self._wrong(f"at the end: {name} {text}")

    def _unconverged(self, spec: Record, status: Record, copies: int) -> Iterator[str]:
        desired = spec.get("desiredState")
        self.counts[f"desired {desired}"] += 1
        if desired == "Deleted":
            yield "is still being deleted"
        elif desired == "Stopped" and (copies or status.get("status") not in ("Stopped", "Pending", "Failed")):
            yield f"is wanted Stopped, is {status.get('status')} and {copies} processes"
        elif desired == "Running" and (copies != 1 or status.get("status") != "Running"):
            yield f"is wanted Running, is {status.get('status')} and {copies} processes"


def check(path: pathlib.Path) -> Checker:
    """Follow the history in a file."""
    checker = Checker()
    checker.follow(read(path))
    return checker


def main() -> int:
    """Check the file that the command line names; the exit code says whether all is well."""
    checker = check(pathlib.Path(sys.argv[1]))
    for violation in checker.violations:
        print(violation)
    print(f"{len(checker.violations)} violations;", *(f"{k} {v}" for k, v in sorted(checker.counts.items())))
    return 1 if checker.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
