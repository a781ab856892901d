"""The takeover of a workload, under any interleaving with users and with another migrator, with answers lost."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import FleetbeatError
from scheduler.domain.node import Node
from scheduler.domain.workload import Desired, WorkloadSpec
from scheduler.store import transact
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, LEGACY, NODES, SPECS, STATUSES
from scheduler.store.kv import Put
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.store import Store
from scheduler.store.takeover import take_over
from scheduler.store.workloads import apply_spec, mark_deleted, retry, set_desired
from tests.support.legacy import REVISION, spec_json, status_json, whole_json
from tests.support.turns import Turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXAMPLES = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
MISHAPS = st.sampled_from([None, None, None, *Mishap])
OTHER = WorkloadSpec(id="web", type="container", image="nginx:2")
USERS: dict[str, Callable[[Store], Coroutine[Any, Any, Any]]] = {
    "apply": lambda store: apply_spec(store, OTHER, now=NOW),
    "stop": lambda store: set_desired(store, "web", Desired.STOPPED, now=NOW),
    "delete": lambda store: mark_deleted(store, "web", now=NOW),
    "retry": lambda store: retry(store, "web", now=NOW),
}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back off for no time: the test decides who goes on."""
    monkeypatch.setattr(transact, "_BACKOFF_SECONDS", 0)


async def prepare(etcd: MemoryEtcd, *, whole: bool) -> None:
    """Store a node and, in one of the two forms, a workload that runs there."""
    node = Node(node_id="n-1", agent_endpoint="h:1", total_cpu=4, total_memory=8192)
    puts = [Put(NODES.key("n-1"), node.to_json())]
    if whole:
        puts.append(Put(LEGACY.key("web"), whole_json()))
    else:
        puts += [Put(SPECS.key("web"), spec_json()), Put(STATUSES.key("web"), status_json())]
    await etcd.txn((), puts)


@EXAMPLES
@given(
    data=st.data(),
    whole=st.booleans(),
    users=st.lists(st.sampled_from(sorted(USERS)), max_size=3),
    mishaps=st.booleans(),
)
async def test_F86_whoever_comes_first_the_workload_keeps_its_node_and_no_write_is_lost(
    data: st.DataObject,
    whole: bool,
    users: list[str],
    mishaps: bool,
) -> None:
    """Two migrators and some users at once: one commitment, one epoch, no user's word is lost."""
    etcd = MemoryEtcd()
    await prepare(etcd, whole=whole)
    turns = Turns(lambda count: data.draw(st.integers(0, count - 1), "turn"))
    etcd.pause = turns.pause

    def mishap(call: str) -> Mishap | None:
        if data.draw(st.integers(0, 5), "late") == 0:
            etcd.apply_late()
        return data.draw(MISHAPS, f"mishap of {call}") if mishaps and call == "txn" else None

    etcd.mishap = mishap
    store = Store(etcd)
    work = [take_over(Store(etcd), "web", now=NOW), take_over(Store(etcd), "web", now=NOW)]
    outcomes = await turns.run([*work, *(USERS[user](store) for user in users)])
    assert all(not isinstance(o, Exception) or isinstance(o, FleetbeatError) for o in outcomes), outcomes

    async def at_once() -> None:
        """Go on without turns."""

    etcd.pause, etcd.mishap = at_once, lambda _call: None
    etcd.apply_late()
    await take_over(store, "web", now=NOW)

    spec, status = (await store.get(SPECS, "web")).record, (await store.get(STATUSES, "web")).record
    ledger, placed = (await store.get(LEDGERS, "n-1")).record, (await store.get(ASSIGNMENTS, "web")).record
    assert (await store.get(LEGACY, "web")).record is None
    assert spec
    assert status
    assert ledger
    assert placed
    assert (status.node_id, placed.node_id) == ("n-1", "n-1")
    assert ledger.commitments.keys() == {"web"}
    assert ledger.commitments["web"].epoch == status.epoch == placed.epoch > 0
    done = {user for user, outcome in zip(users, outcomes[2:], strict=True) if not isinstance(outcome, Exception)}
    if "delete" in done:
        assert spec.desired_state == Desired.DELETED
    if "apply" in done and "delete" not in users:
        assert spec.image == OTHER.image
    if not users:
        assert spec.revision_id == REVISION
