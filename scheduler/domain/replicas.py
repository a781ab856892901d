"""Replicas: further copies of a workload, which are workloads of their own.

A workload with N replicas is itself the first copy; the others are `{id}.2` to `{id}.N`. Their
content, policies and desired state are the workload's; nobody sets them but through it.
"""

from __future__ import annotations

from scheduler.domain.errors import InvalidInput
from scheduler.domain.ids import MAX_ID_LENGTH, project_name
from scheduler.domain.policy import MAX_REPLICAS, REPLICAS_KEY
from scheduler.domain.revision import revision_of
from scheduler.domain.workload import VmSpec, WorkloadSpec

FIRST_NUMBER = 2
"""Of the copies beside the workload itself."""


def replica_id(workload_id: str, number: int) -> str:
    """Return the id of a further copy."""
    return f"{workload_id}.{number}"


def split_replica_id(identifier: str) -> tuple[str, int] | None:
    """Return the workload and the number in an id that a further copy could have; None when none could."""
    workload_id, dot, digits = identifier.rpartition(".")
    if not (dot and workload_id and digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MAX_REPLICAS))):
        return None
    number = int(digits)
    canonical = str(number) == digits and FIRST_NUMBER <= number <= MAX_REPLICAS
    return (workload_id, number) if canonical else None


def number_of(replica: WorkloadSpec) -> int:
    """Return which copy this is; 0 when its id is not that of a copy of its workload."""
    split = split_replica_id(replica.id)
    return split[1] if split and split[0] == replica.replica_of else 0


def replica_set(spec: WorkloadSpec) -> str:
    """Return the workload of whose copies this is one; blank: there is one copy only."""
    return spec.replica_of or (spec.id if spec.replicas > 1 else "")


def check_replicas(spec: WorkloadSpec) -> None:
    """Refuse a number of copies that is out of bounds, leaves no room in ids, or cannot be had of this content."""
    if not 1 <= spec.replicas <= MAX_REPLICAS:
        raise InvalidInput("replicas", f"{spec.replicas} is not allowed; it must be 1 to {MAX_REPLICAS}")
    if spec.replicas == 1:
        return
    if len(last := replica_id(spec.id, spec.replicas)) > MAX_ID_LENGTH:
        raise InvalidInput(
            "replicas",
            f"the id of the last copy would have {len(last)} characters, at most {MAX_ID_LENGTH} are allowed; "
            "choose a shorter id for the workload",
        )
    if spec.vm and (what := _only_once(spec.vm)):
        raise InvalidInput("replicas", f"{spec.replicas} is not allowed for a VM with {what}: copies would share it")


def _only_once(vm: VmSpec) -> str:
    """Name what two copies of a VM cannot both have."""
    if any(disk.path for disk in vm.disks):
        return "a disk at a path of its own"
    if any(network.mac_address or network.ip_address for network in vm.networks):
        return "a fixed MAC or IP address"
    return ""


def replica_spec(parent: WorkloadSpec, number: int) -> WorkloadSpec:
    """Return the spec of a further copy, without generation and time of creation of its own."""
    identifier = replica_id(parent.id, number)
    copy = parent.replace(
        id=identifier,
        name=identifier if parent.name == parent.id else parent.name and replica_id(parent.name, number),
        project_name=parent.project_name and project_name(identifier),
        vm=_copied_vm(parent, number),
        metadata=inherited_metadata(parent),
        replicas=1,
        replica_of=parent.id,
        replica_revision=parent.revision_id,
        created_at=None,
    )
    return copy.replace(revision_id=revision_of(copy))


def _copied_vm(parent: WorkloadSpec, number: int) -> VmSpec | None:
    vm = parent.vm
    return vm.replace(name=replica_id(vm.name, number)) if vm and vm.name else vm


def inherited_metadata(parent: WorkloadSpec) -> dict[str, str]:
    """Return the metadata that copies have: all but the number of copies."""
    return {key: value for key, value in parent.metadata.items() if key != REPLICAS_KEY}


def follows(replica: WorkloadSpec, parent: WorkloadSpec) -> bool:
    """Whether a copy has the content, the policies and the desired state of its workload."""
    return (
        replica.replica_revision == parent.revision_id
        and replica.desired_state == parent.desired_state
        and replica.metadata == inherited_metadata(parent)
    )
