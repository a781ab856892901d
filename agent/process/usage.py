"""What process trees use, by psutil."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import psutil

from agent.process import table
from agent.runtimes import Sample


class UsageMeter:
    """Measures sessions; CPU is the share of one core since the measurement before."""

    def __init__(self) -> None:
        """Begin with nothing measured."""
        self._before: dict[str, tuple[float, float]] = {}

    def measure(self, sessions: Mapping[int, str]) -> list[Sample]:
        """Return a sample for each session (leader pid → workload id) that has processes."""
        pids: dict[str, list[int]] = defaultdict(list)
        for process in table.read_all():
            if process.session in sessions:
                pids[sessions[process.session]].append(process.pid)
        now = time.monotonic()
        samples = [self._sample(workload_id, members, now) for workload_id, members in pids.items()]
        self._before = {key: value for key, value in self._before.items() if key in pids}
        return samples

    def _sample(self, workload_id: str, pids: list[int], now: float) -> Sample:
        cpu, memory, reads, writes = 0.0, 0, 0, 0
        for pid in pids:
            try:
                process = psutil.Process(pid)
                with process.oneshot():
                    times = process.cpu_times()
                    cpu += times.user + times.system + times.children_user + times.children_system
                    memory += process.memory_info().rss
                    counters = process.io_counters()
                    reads += counters.read_bytes
                    writes += counters.write_bytes
            except psutil.Error:  # it ended, or it is not ours to look into
                continue
        then, cpu_before = self._before.get(workload_id, (now, cpu))
        self._before[workload_id] = (now, cpu)
        percent = max(0.0, cpu - cpu_before) / (now - then) * 100 if now > then else 0.0
        return Sample(workload_id, round(percent, 1), memory, reads, writes)
