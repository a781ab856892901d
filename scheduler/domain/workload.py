"""Workloads: the spec (what is wanted) and the status (what is), stored apart.

The spec is written by the API only; the status by whoever observes or decides.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from scheduler.domain.record import Record

Int32 = Annotated[int, Field(gt=-(2**30), lt=2**30)]
Int64 = Annotated[int, Field(gt=-(2**62), lt=2**62)]
"""Numbers that the wire has so much room for, and half of it to grow: one that does not fit makes its own record
undecodable, not each list that would show it."""


class Desired(StrEnum):
    """What the user wants of a workload."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    DELETED = "Deleted"


class Actual(StrEnum):
    """What the node reports of a workload; Missing means the node does not have it."""

    NONE = ""
    PENDING = "Pending"
    RUNNING = "Running"
    STOPPED = "Stopped"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    MISSING = "Missing"


class Phase(StrEnum):
    """The `status` that users see."""

    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    UPDATING = "Updating"
    RETRY_PENDING = "RetryPending"
    RUNNING = "Running"
    STOPPED = "Stopped"
    FAILED = "Failed"
    UNKNOWN = "Unknown"
    DELETING = "Deleting"
    DELETED = "Deleted"
    LOST = "Lost"
    """Its node has been silent for its lost_after, and it is not to be replaced."""
    ORPHANED = "Orphaned"
    """Its node has been silent so long that what was committed there is released."""


class Resources(Record):
    """What a workload asks for. The stored names are snake_case, as in the reference layout."""

    model_config = ConfigDict(alias_generator=None, populate_by_name=True, frozen=True, extra="allow")

    cpu_usage: float = 0.0
    """Cores."""
    memory_usage: int = 0
    """MB."""
    disk_usage: int = 0
    """GB."""


class ManagedVolume(Record):
    """A volume that the platform keeps for a workload."""

    name: str
    driver: str = "local"
    size_gb: int = 0
    access_mode: str = ""
    fs_type: str = ""
    mount_path: str = ""
    read_only: bool = False
    retain_policy: str = "Delete"
    disk_id: str = ""
    """The standalone disk that this is; blank: a volume of the workloads that name it."""


class VmDisk(Record):
    """A disk of a VM."""

    path: str = ""
    device: str = "vda"
    format: str = "qcow2"
    size_gb: int = 0
    type: str = "disk"
    boot: bool = False
    pool_name: str = ""
    mount_point: str = ""
    backing_file: str = ""
    storage: str = ""


class VmNetwork(Record):
    """A network interface of a VM."""

    network: str = ""
    mac_address: str = ""
    ip_address: str = ""
    bridge: str = ""
    dhcp: bool = False
    model: str = ""
    host_dev_name: str = ""


class CloudInit(Record):
    """The four cloud-init documents of a VM."""

    user_data: str = ""
    meta_data: str = ""
    network_config: str = ""
    vendor_data: str = ""


class VmSpec(Record):
    """What a VM is made of."""

    name: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    os_image: str = ""
    disks: tuple[VmDisk, ...] = ()
    networks: tuple[VmNetwork, ...] = ()
    cloud_init: str = ""
    cloud_init_config: CloudInit | None = None
    metadata: dict[str, str] = Field(default_factory=dict)


class WorkloadSpec(Record):
    """`/workloads-spec/{id}`: what the user asked for.

    `ports` are "host:container/proto", `volumes` "host:container[:ro]", as in the
    reference layout. `type` is container, compose or vm.
    """

    id: str
    name: str = ""
    type: str
    revision_id: str = ""
    """24 hex characters over the content; the same content has the same revision at any time."""
    generation: Int64 = 1
    """Grows by one with each change of content or of the desired state."""
    desired_state: str = Desired.RUNNING
    resources: Resources = Resources()
    image: str = ""
    command: str = ""
    command_list: tuple[str, ...] = ()
    env_vars: dict[str, str] = Field(default_factory=dict)
    ports: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    managed_volumes: tuple[ManagedVolume, ...] = ()
    restart_policy: str = ""
    privileged: bool = False
    compose: str = ""
    compose_yaml: str = ""
    project_name: str = ""
    git_repo: str = ""
    git_branch: str = ""
    """Branch, tag or commit that was asked for; blank: the repository's default branch."""
    git_commit: str = ""
    """What it was when the compose file was fetched."""
    vm: VmSpec | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    """Node selector: a node must carry all of these."""
    metadata: dict[str, str] = Field(default_factory=dict)
    created_at: datetime | None = None
    past_stop_after_ms: int | None = None
    """The longest stop_after before the present one; 0: it was not exclusive at some time; None: never another.
    Not content: what a node may still act on that has not taken the present one."""
    replicas: Int32 = 1
    """How many copies are wanted, this one included; not content. 0, in what is applied: as many as there are."""
    replica_of: str = ""
    """The workload that this is a further copy of; blank: it stands for itself."""
    replica_revision: str = ""
    """Of a further copy: the revision of the workload whose content it has."""


class Retry(Record):
    """How often the control plane failed to get this workload going."""

    attempts: Int32 = 0
    max_attempts: Int32 = 5
    next_retry_at: datetime | None = None
    failures: int = 0
    """All of the present episode, by which the waits grow; `attempts` stays below the last one for a time."""
    first_failure_at: datetime | None = None
    """Of the present episode: for a time from then on no failure is the last one."""

    @property
    def is_used_up(self) -> bool:
        """Whether there are no tries left."""
        return self.attempts >= self.max_attempts > 0


class Reason(Record):
    """Why a workload is in its state, structured."""

    code: str = ""
    message: str = ""
    last_transition: datetime | None = None
    next_retry_at: datetime | None = None
    retryable: bool = False


class StatusInfo(Record):
    """What was last observed."""

    actual_state: str = Actual.NONE
    last_updated: datetime | None = None
    failure_reason: str = ""
    reason: Reason | None = None


class Reapply(Record):
    """The guard against a crash loop: how often a dead copy was started again, and when next."""

    attempts: int = 0
    next_at: datetime | None = None
    revision_id: str = ""
    last_at: datetime | None = None


class WorkloadStatus(Record):
    """`/workloads-status/{id}`: where the workload is and how it does. Bounded in size."""

    id: str
    status: str = Phase.PENDING
    node_id: str = ""
    assigned_node: str = ""
    """Kept equal to node_id; the reference layout stores both."""
    epoch: Int64 = 0
    """The fencing number of the assignment: strictly greater with each new one, also over delete and re-create."""
    observed_generation: int = 0
    """The spec generation this status was decided for."""
    observed_revision: str = ""
    """The revision the node last said it has; blank: none."""
    status_info: StatusInfo = StatusInfo()
    retry: Retry = Retry()
    reapply: Reapply = Reapply()
    pending_reason: str = ""
    """Why no node was found; blank when placed."""
    terminal: str = ""
    """The code of the failure after which it is not started again, until a retry or a new spec; blank: none."""
    interruptions: Int32 = 0
    """How often a running copy has ceased to run by itself."""
    attached: tuple[str, ...] = ()
    """Ids of the volumes that are attached on the node for this assignment."""
    previous_node: str = ""
    told_stop_after_ms: int | None = None
    """The longest stop_after that the node was told for this assignment; 0: it was told that it is not exclusive."""
    vacating: int = 0
    """The epoch whose copy is being stopped so that the workload can leave its node; it is not started again there."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """Small facts from the agent and the reference layout's keys; bounded by the writer."""

    @property
    def actual(self) -> str:
        """The last observed state."""
        return self.status_info.actual_state


class Assignment(Record):
    """`/assignments/{id}`: the placement of a workload and why it was chosen."""

    workload_id: str
    node_id: str
    epoch: int = 0
    reason: str = ""
    score: float = 0.0
    created_at: datetime | None = None


class Tombstone(Record):
    """`/tombstones/{node}/{workload}`: a stop that an unreachable node still owes.

    Every copy of the workload with an epoch up to this one must go.
    """

    node_id: str
    workload_id: str
    epoch: int
    created_at: datetime | None = None
    lost: bool = False
    """The workload was replaced because the node was lost; on its return the two copies are weighed."""
    stop_after_ms: int | None = None
    """Of a deleted workload: the longest stop_after that its copy may act on; 0: it may have none. None: not said."""
    after_epoch: int = 0
    """The old copy stays until one of this epoch or a later one runs elsewhere; 0: it goes at once."""
    healthy_seconds: float = 0.0
    """… and has run for so long."""
    not_after: datetime | None = None
    """The time from which it waits for nothing."""
    volumes: tuple[str, ...] = ()
    """Ids of the volumes that stay attached on the node until the copy is gone."""
    confirmed: bool = False
    """The node has said that the copy is gone; until the workload runs elsewhere it counts as on its way."""
