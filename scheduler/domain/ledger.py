"""The ledger: every commitment on a node. Capacity is decided here and nowhere else."""

from __future__ import annotations

from pydantic import Field

from scheduler.domain.record import Record

LEFT_SUFFIX = "~left"
"""Ends the holder of what a workload that has moved on still takes up on its old node; no id can end so."""
LEFT = "left"
"""The kind of such a commitment."""


class Commitment(Record):
    """What one workload or sandbox has been promised on a node."""

    kind: str = "workload"
    cpu_millicores: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    ports: tuple[str, ...] = ()
    """Host ports, "8080/tcp"."""
    epoch: int = 0
    group: str = ""
    """Holders of the same group are never on one node; blank: none."""
    replica_set: str = ""
    """The workload whose copies this is one of; copies prefer different nodes. Blank: there is one copy."""


class Ledger(Record):
    """`/allocations/{node}`: workload or sandbox id to commitment."""

    node_id: str
    commitments: dict[str, Commitment] = Field(default_factory=dict)

    def with_commitment(self, holder: str, commitment: Commitment) -> Ledger:
        """Return the ledger after this holder's commitment is set."""
        return self.replace(commitments={**self.commitments, holder: commitment})

    def without(self, holder: str) -> Ledger:
        """Return the ledger after this holder's commitment is released, and what it may have left here earlier."""
        gone = (holder, left_by(holder))
        return self.replace(commitments={k: v for k, v in self.commitments.items() if k not in gone})

    def with_left(self, holder: str, epoch: int) -> Ledger:
        """Return the ledger after a workload has moved on and its old copy still takes up what it did."""
        kept = self.commitments.get(holder, Commitment()).replace(kind=LEFT, epoch=epoch)
        return self.without(holder).with_commitment(left_by(holder), kept)

    def without_left(self, holder: str) -> Ledger:
        """Return the ledger after the old copy of a workload that has moved on is gone."""
        return self.replace(commitments={k: v for k, v in self.commitments.items() if k != left_by(holder)})

    @property
    def leaving(self) -> list[str]:
        """The workloads that are on their way from here to another node."""
        return [holder.removesuffix(LEFT_SUFFIX) for holder in self.commitments if holder.endswith(LEFT_SUFFIX)]

    @property
    def cpu_millicores(self) -> int:
        """The sum of the committed CPU."""
        return sum(c.cpu_millicores for c in self.commitments.values())

    @property
    def memory_mb(self) -> int:
        """The sum of the committed memory."""
        return sum(c.memory_mb for c in self.commitments.values())

    @property
    def disk_gb(self) -> int:
        """The sum of the committed disk."""
        return sum(c.disk_gb for c in self.commitments.values())

    @property
    def ports(self) -> dict[str, str]:
        """Taken host ports, each with its holder."""
        return {port: holder for holder, c in self.commitments.items() for port in c.ports}


def left_by(workload_id: str) -> str:
    """Return the holder of what a workload has left behind."""
    return workload_id + LEFT_SUFFIX
