"""Each filter, on a node that violates only that rule."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Node, Taint
from scheduler.domain.workload import ManagedVolume, WorkloadSpec
from scheduler.placement.capacity import MAX_COMMITMENTS, Overcommit
from scheduler.placement.choose import Choice, choose
from scheduler.placement.explain import Explanation
from scheduler.placement.filters import first_objection
from scheduler.placement.fleet import Fleet
from scheduler.placement.request import request_of
from tests.support.placement import EXACT, node, spec

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def reject(one: Node, workload: WorkloadSpec, ledger: Ledger | None = None, **upsert: Any) -> tuple[str, str]:
    """Return filter and example of the only rejection; the fleet and the transaction's check must agree."""
    ledger = ledger or Ledger(node_id=one.node_id)
    fleet = Fleet()
    fleet.upsert(one, ledger, **upsert)
    request = request_of(workload)
    explanation = choose(fleet, request)
    assert isinstance(explanation, Explanation)
    (rejection,) = explanation.rejections
    assert rejection.nodes == explanation.nodes_total == 1
    objection = first_objection(one, ledger, request, EXACT)
    assert upsert or (objection is not None and str(objection) == f"{rejection.filter}: {rejection.example}")
    return rejection.filter, rejection.example


def fits(one: Node, workload: WorkloadSpec, ledger: Ledger | None = None) -> bool:
    """Tell whether fleet and check both let the workload onto the node."""
    fleet = Fleet()
    fleet.upsert(one, ledger or Ledger(node_id=one.node_id))
    objection = first_objection(one, ledger or Ledger(node_id=one.node_id), request_of(workload), EXACT)
    chosen = isinstance(choose(fleet, request_of(workload)), Choice)
    assert chosen is (objection is None)
    return chosen


def holding(**commitment: Any) -> Ledger:
    """Return a ledger of n-1 with one commitment, by "api"."""
    return Ledger(node_id="n-1", commitments={"api": Commitment(**commitment)})


def test_F52_a_node_that_is_not_ready_is_rejected_by_status() -> None:
    """The words are the reference system's: status, reason, by, at."""
    lost = node(status="NotReady", status_reason="silent", status_updated_by="monitor", status_updated_at=AT)
    expected = "n-1 status=NotReady reason=silent by=monitor at=2026-01-02T03:04:05+00:00"
    assert reject(lost, spec()) == ("status", expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"drain": "Draining"}, "n-1 status=Draining"),
        ({"drain": "Drained"}, "n-1 status=Drained"),
        ({"schedulable": False}, "n-1 status=Unschedulable"),
    ],
)
def test_F52_a_node_that_its_operator_closed_is_rejected_by_status(changes: dict[str, Any], words: str) -> None:
    """Cordoned and draining nodes get no new work."""
    assert reject(node(**changes), spec()) == ("status", words)


@pytest.mark.parametrize("status", ["Ready", "ready", "Active", "ACTIVE"])
def test_F52_ready_and_active_are_ready_in_any_case(status: str) -> None:
    """Both words of the reference system count."""
    assert fits(node(status=status), spec())


def test_F56_a_node_known_to_be_silent_is_rejected_as_stale() -> None:
    """There is no threshold here: whoever judges liveness says so."""
    assert reject(node(), spec(), silent=True) == ("heartbeat_stale", "n-1 has been silent for too long")


def test_scenario_P4_readiness_is_the_only_freshness_rule() -> None:
    """A Ready node takes work however long ago its record was written: the monitor alone judges silence."""
    assert fits(node(status_updated_at=datetime(2000, 1, 1, tzinfo=UTC)), spec())


def test_F52_labels_must_all_match() -> None:
    """A node selector is equality on every label."""
    labelled = node(labels={"zone": "b", "disk": "ssd"})
    assert reject(labelled, spec(labels={"zone": "a"})) == ("label_mismatch", "n-1 has zone=b, zone=a asked")
    assert reject(labelled, spec(labels={"rack": "1"})) == ("label_mismatch", "n-1 has no label rack, rack=1 asked")
    assert fits(labelled, spec(labels={"zone": "b", "disk": "ssd"}))


def test_F52_a_workload_named_for_a_node_goes_nowhere_else() -> None:
    """Metadata fleetbeat.node pins."""
    assert reject(node(), spec(metadata={"fleetbeat.node": "n-2"}))[0] == "node_mismatch"
    assert fits(node(), spec(metadata={"fleetbeat.node": "n-1"}))


@pytest.mark.parametrize("effect", ["", "NoSchedule", "NoExecute"])
def test_F52_F53_a_taint_keeps_work_away_unless_tolerated(effect: str) -> None:
    """A blank effect means NoSchedule."""
    tainted = node(taints=(Taint(key="gpu", value="a100", effect=effect),))
    shown = effect or "NoSchedule"
    assert reject(tainted, spec()) == ("tainted", f"n-1 has taint gpu=a100:{shown}")
    assert fits(tainted, spec(metadata={"fleetbeat.tolerations": f"gpu=a100:{shown}"}))
    assert fits(tainted, spec(metadata={"fleetbeat.tolerations": "*"}))


def test_F53_prefer_no_schedule_does_not_block() -> None:
    """It is a wish."""
    assert fits(node(taints=(Taint(key="spot", effect="PreferNoSchedule"),)), spec())


def test_F52_every_blocking_taint_must_be_tolerated() -> None:
    """One toleration for two taints is not enough."""
    tainted = node(taints=(Taint(key="a"), Taint(key="b")))
    workload = spec(metadata={"fleetbeat.tolerations": "a"})
    assert reject(tainted, workload) == ("tainted", "n-1 has taint b:NoSchedule")


def test_F52_a_type_that_the_node_does_not_run_is_rejected() -> None:
    """A stated list is the whole list; aliases count."""
    composes = node(supported_workload_types=("docker-compose",))
    assert reject(composes, spec()) == ("workload_type_unsupported", "n-1 runs compose; container asked")
    assert fits(composes, spec(type="compose"))


def test_F55_a_vm_needs_a_node_that_says_it_has_a_hypervisor() -> None:
    """A node without a list runs everything but VMs; the reference layout's hypervisor field is such a signal."""
    vm = spec(type="vm")
    assert reject(node(), vm) == ("workload_type_unsupported", "n-1 runs anything but VMs; vm asked")
    assert fits(node(supported_workload_types=("vm",)), vm)
    assert fits(node(hypervisor={"type": "kvm", "status": ""}), vm)
    assert fits(node(hypervisor={"type": "", "status": "active"}), vm)
    assert not fits(node(hypervisor={"type": "", "status": "down"}), vm)


def test_F54_a_volume_goes_only_where_its_driver_is() -> None:
    """By the list, by the label storage.nfs=true; local is everywhere."""
    nfs = spec(managed_volumes=(ManagedVolume(name="data", driver="nfs"),))
    assert reject(node(), nfs) == ("storage_driver_unsupported", "n-1 has storage local; nfs asked")
    assert fits(node(supported_storage_drivers=("nfs",)), nfs)
    assert fits(node(labels={"storage.nfs": "true"}), nfs)
    assert not fits(node(labels={"storage.nfs": "false"}), nfs)
    local = spec(managed_volumes=(ManagedVolume(name="data"),))
    assert fits(node(supported_storage_drivers=("nfs",)), local)


def test_F52_cpu_is_what_is_left_of_the_capacity() -> None:
    """Commitments count, whether or not they are used."""
    busy = holding(cpu_millicores=1500)
    expected = ("cpu_insufficient", "n-1 has 500m free of 2000m, 1000m asked")
    assert reject(node(), spec(cpu=1), busy) == expected
    assert fits(node(), spec(cpu=0.5), busy)


def test_scenario_C19_memory_is_a_hard_limit_too() -> None:
    """Not only CPU."""
    busy = holding(memory_mb=2000)
    expected = ("memory_insufficient", "n-1 has 48 MB free of 2048 MB, 49 MB asked")
    assert reject(node(), spec(memory=49), busy) == expected
    assert fits(node(), spec(memory=48), busy)


def test_scenario_P1_disk_is_a_real_filter_where_the_node_states_it() -> None:
    """A node that states no disk is not limited."""
    busy = holding(disk_gb=8)
    expected = ("disk_insufficient", "n-1 has 2 GB free of 10 GB, 3 GB asked")
    assert reject(node(total_disk=10), spec(disk=3), busy) == expected
    assert fits(node(total_disk=10), spec(disk=2), busy)
    assert fits(node(), spec(disk=1000), busy)


def test_F52_a_taken_host_port_names_its_holder() -> None:
    """Another protocol is another port."""
    busy = holding(ports=("8080/tcp",))
    expected = ("port_conflict", 'n-1 has port 8080/tcp taken by "api"')
    assert reject(node(), spec(ports=("8080:80/tcp",)), busy) == expected
    assert fits(node(), spec(ports=("8080:80/udp",)), busy)


def test_a_ledger_has_a_bound() -> None:
    """A node takes no more holders than fit into one value of etcd."""
    full = Ledger(node_id="n-1", commitments={f"w{i}": Commitment() for i in range(MAX_COMMITMENTS)})
    assert reject(node(), spec(), full)[0] == "node_full"


def test_a_workload_is_not_its_own_rival_in_the_check() -> None:
    """What the ledger already holds for it does not count against it."""
    own = Ledger(node_id="n-1", commitments={"web": Commitment(cpu_millicores=2000, ports=("80/tcp",))})
    assert first_objection(node(), own, request_of(spec(cpu=2, ports=("80:80",))), EXACT) is None


def test_nothing_asked_is_granted_even_by_an_oversubscribed_node() -> None:
    """A node whose capacity shrank below its commitments still takes what asks for nothing."""
    assert fits(node(), spec(cpu=0, memory=0), holding(cpu_millicores=9000, memory_mb=9000))


def test_overcommit_multiplies_what_may_be_promised() -> None:
    """By resource, rounded down."""
    fleet = Fleet(Overcommit(cpu=1.5, memory=1, disk=1))
    fleet.upsert(node(), Ledger(node_id="n-1"))
    assert isinstance(choose(fleet, request_of(spec(cpu=3))), Choice)
    assert isinstance(choose(fleet, request_of(spec(cpu=3.001))), Explanation)
    assert isinstance(choose(fleet, request_of(spec(memory=2049))), Explanation)


def test_F52_the_first_failing_filter_is_told() -> None:
    """A node that fails everything is told by the first rule in the order."""
    bad = node(status="NotReady", taints=(Taint(key="a"),), total_cpu=0)
    assert reject(bad, spec(labels={"zone": "a"}))[0] == "status"
    assert reject(bad.replace(status="Ready"), spec(labels={"zone": "a"}))[0] == "label_mismatch"
    assert reject(bad.replace(status="Ready"), spec())[0] == "tainted"


def test_scenario_C4_a_node_with_another_of_the_group_is_rejected() -> None:
    """Hard anti-affinity; F87: copies inherit the group. The workload itself and other groups do not count."""
    apart = spec(metadata={"fleetbeat.anti_affinity": "db"})
    expected = ("anti_affinity", 'n-1 has "api" of the anti-affinity group db')
    assert reject(node(), apart, holding(group="db")) == expected
    assert fits(node(), apart, holding(group="cache"))
    assert fits(node(), spec(), holding(group="db"))
