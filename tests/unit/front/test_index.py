"""The index follows the cache: whatever happens to the records, it counts what a count from scratch would."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.convergence.phase import phase_shown
from scheduler.domain.legacy import LegacyWorkload
from scheduler.domain.node import Node
from scheduler.domain.record import Record
from scheduler.domain.workload import WorkloadSpec, WorkloadStatus
from scheduler.front.index import FleetIndex, SortedIds
from scheduler.store.cache import Cache, Change
from scheduler.store.keys import LEGACY, NODES, SPECS, STATUSES, Table
from scheduler.store.memory import MemoryEtcd
from scheduler.store.write import Versioned

IDS = st.sampled_from([f"i{n}" for n in range(6)])
NODE_IDS = st.sampled_from(["", "i0", "i1", "i2"])
RECORDS = st.one_of(
    st.tuples(st.just(NODES), IDS, st.none() | st.sampled_from(["Ready", "NotReady", ""])),
    st.tuples(st.just(SPECS), IDS, st.none() | st.sampled_from(["Running", "Stopped", "Deleted"])),
    st.tuples(
        st.just(STATUSES),
        IDS,
        st.none() | st.tuples(st.sampled_from(["Running", "Failed", "Pending", "Deleted", ""]), NODE_IDS),
    ),
    st.tuples(st.just(LEGACY), IDS, st.none() | st.tuples(st.sampled_from(["Running", "lambda"]), NODE_IDS)),
)


def record(table: Table[Record], identifier: str, what: object) -> Record | None:
    """Build the record of a change."""
    if what is None:
        return None
    if table is NODES:
        return Node(node_id=identifier, status=str(what))
    if table is SPECS:
        return WorkloadSpec(id=identifier, type="container", desired_state=str(what))
    assert isinstance(what, tuple)
    if table is LEGACY and what[0] == "lambda":
        return LegacyWorkload(flaw="type")
    if table is LEGACY:
        status = WorkloadStatus(id=identifier, status=what[0], node_id=what[1])
        return LegacyWorkload(spec=WorkloadSpec(id=identifier, type="container"), status=status)
    return WorkloadStatus(id=identifier, status=what[0], node_id=what[1])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(RECORDS, max_size=5, unique_by=lambda r: (r[0].prefix, r[1])), max_size=12))
def test_F86_the_index_agrees_with_a_count_from_scratch(
    revisions: list[list[tuple[Table[Record], str, object]]],
) -> None:
    """After any sequence of changes, whole revisions at a time, whole records of the reference scheduler's included."""
    cache = Cache(MemoryEtcd(), (NODES, SPECS, STATUSES, LEGACY))
    index = FleetIndex(cache)
    for number, changes in enumerate(revisions, 1):
        told = []
        for table, identifier, what in changes:
            records = cache._records[table]
            before, after = records.get(identifier), Versioned(identifier, record(table, identifier, what), number)
            if after.record is None:
                records.pop(identifier, None)
                if before is None:
                    continue
            else:
                records[identifier] = after
            told.append(Change(table, identifier, before, after))
        cache._tell(cache._listeners, told)
    assert cache.failures == 0
    nodes = {i: v.record for i, v in cache.all(NODES).items() if v.record}
    specs = {i: v.record for i, v in cache.all(SPECS).items() if v.record}
    statuses = {i: v.record for i, v in cache.all(STATUSES).items() if v.record}
    for identifier, whole in cache.all(LEGACY).items():
        old = whole.record
        if old and old.spec and old.status and identifier not in specs and identifier not in statuses:
            specs[identifier], statuses[identifier] = old.spec, old.status
    assert list(index.node_ids) == sorted(nodes)
    assert list(index.workload_ids) == sorted(specs)
    assert index.desired() == Counter(s.desired_state for s in specs.values())
    shown = Counter(phase_shown(s, nodes.get(s.node_id))[0] or "Unknown" for s in statuses.values())
    assert index.workloads() == shown
    for node_id in ("i0", "i1", "i2"):
        assert index.on_node(node_id) == {i for i, s in statuses.items() if s.node_id == node_id}
    assert index.nodes().total() == len(nodes)
    gone = [i for i, s in statuses.items() if s.status == "Deleted"]
    assert index.deleted() == len({*gone, *(i for i, s in specs.items() if s.desired_state == "Deleted")})


@given(st.lists(st.tuples(st.lists(st.text(max_size=2), max_size=100), st.lists(st.text(max_size=2), max_size=9))))
def test_ids_stay_sorted_and_unique(rounds: list[tuple[list[str], list[str]]]) -> None:
    """Whether few or many come at once; `after` begins behind an id that need not be there."""
    ids, expected = SortedIds(), set[str]()
    for new, gone in rounds:
        ids.update(new, gone)
        expected = (expected - set(gone)) | set(new)
        assert list(ids) == sorted(expected)
        assert list(ids.after("m")) == sorted(i for i in expected if i > "m")
