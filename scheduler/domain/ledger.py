"""The ledger: every commitment on a node. Capacity is decided here and nowhere else."""

from __future__ import annotations

from pydantic import Field

from scheduler.domain.record import Record


class Commitment(Record):
    """What one workload or sandbox has been promised on a node."""

    kind: str = "workload"
    cpu_millicores: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    ports: tuple[str, ...] = ()
    """Host ports, "8080/tcp"."""
    epoch: int = 0


class Ledger(Record):
    """`/allocations/{node}`: workload or sandbox id to commitment."""

    node_id: str
    commitments: dict[str, Commitment] = Field(default_factory=dict)

    def with_commitment(self, holder: str, commitment: Commitment) -> Ledger:
        """Return the ledger after this holder's commitment is set."""
        return self.replace(commitments={**self.commitments, holder: commitment})

    def without(self, holder: str) -> Ledger:
        """Return the ledger after this holder's commitment is released."""
        return self.replace(commitments={k: v for k, v in self.commitments.items() if k != holder})

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
