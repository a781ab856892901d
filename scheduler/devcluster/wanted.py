"""What the user asks of `fleetbeat up`."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options of the command line; None: left to us."""

    data: pathlib.Path
    agents: int
    shards: int | None
    workers_per_shard: int
    fronts: int
    port: int | None
    flower_port: int | None

    def arguments(self) -> list[str]:
        """Return the command line that asks for the same."""
        options = {
            "--data": self.data,
            "--agents": self.agents,
            "--shards": self.shards,
            "--workers-per-shard": self.workers_per_shard,
            "--fronts": self.fronts,
            "--port": self.port,
            "--flower-port": self.flower_port,
        }
        return [word for flag, value in options.items() if value is not None for word in (flag, str(value))]
