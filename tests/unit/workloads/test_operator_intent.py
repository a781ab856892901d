"""What operators want of nodes, as it is stored: drains, taints, labels, removal, at any turn of others."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.domain.errors import InvalidInput, NotFound, Refused
from scheduler.domain.ledger import Commitment, Ledger
from scheduler.domain.node import Drain, DrainJob, Health, Node, Taint
from scheduler.store import intent, transact
from scheduler.store.intent import NO_DEADLINE, Wish
from scheduler.store.keys import LEDGERS, NODES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from scheduler.store.placements import Placer
from scheduler.store.store import Store
from tests.support.placement import EXACT, TABLES, node, put, put_workload, spec
from tests.support.turns import Turns

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
OFFER = Node(node_id="n-1", agent_endpoint="10.0.0.1:1", total_cpu=4.0, total_memory=8192, labels={"zone": "a"})
JOB = DrainJob(reason="asked", max_parallel=2)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back off for no time: the turns decide who goes on, however busy the machine is."""
    monkeypatch.setattr(transact, "_BACKOFF_SECONDS", 0)


@pytest.fixture
def etcd() -> MemoryEtcd:
    """An etcd in memory."""
    return MemoryEtcd()


@pytest.fixture
async def store(etcd: MemoryEtcd) -> Store:
    """A store in which n-1 is registered."""
    store = Store(etcd)
    await register(store, OFFER, now=NOW)
    return store


async def node_of(store: Store) -> Node:
    """Read the node."""
    record = (await store.get(NODES, "n-1")).record
    assert record
    return record


async def drain(store: Store, **wish: object) -> intent.Changed:
    """Ask for a drain."""
    return await intent.drain(store, "n-1", Wish(**wish), JOB, total=3, now=NOW)  # type: ignore[arg-type]


async def test_F64_a_drain_is_stored_with_its_options_and_asking_again_changes_nothing(
    etcd: MemoryEtcd, store: Store
) -> None:
    """Options that are not given stay; given ones change the job, which keeps its beginning."""
    await drain(store, max_parallel=5, reason="new disks")
    job = (await node_of(store)).drain_job
    assert job == DrainJob(reason="new disks", started_at=NOW, total=3, max_parallel=5)
    revision = etcd.revision
    assert not (await drain(store)).anything
    assert etcd.revision == revision
    after = (await drain(store, deadline=LATER, min_healthy_seconds=9.0)).after
    assert after.drain_job == job.replace(deadline=LATER, min_healthy_seconds=9.0)
    after = (await drain(store, deadline=NO_DEADLINE)).after
    assert after.drain_job == job.replace(min_healthy_seconds=9.0)


async def test_F65_an_undrained_node_has_no_job_and_the_health_it_had(store: Store) -> None:
    """A dead node is not made Ready by it."""
    await drain(store)
    await set_health(store, "n-1", Health.NOT_READY, "silent", "monitor", now=NOW)
    changed = await intent.undrain(store, "n-1")
    assert (changed.after.drain, changed.after.drain_job, changed.after.state_shown) == ("", None, "NotReady")
    assert not (await intent.undrain(store, "n-1")).anything


async def test_F64_a_node_is_drained_only_when_its_ledger_is_empty_and_the_drain_is_the_same(store: Store) -> None:
    """A commitment that came in between, another drain or a loss keeps it Draining."""
    seen = (await drain(store)).after
    await put(store, LEDGERS, "n-1", Ledger(node_id="n-1", commitments={"db": Commitment()}))
    assert not await intent.mark_drained(store, seen, frozenset(), now=LATER)
    await drain(store, max_parallel=7)
    assert not await intent.mark_drained(store, seen, frozenset({"db"}), now=LATER)
    seen = await node_of(store)
    assert await intent.mark_drained(store, seen, frozenset({"db"}), now=LATER)
    assert not await intent.mark_drained(store, seen, frozenset({"db"}), now=LATER)
    after = await node_of(store)
    assert (after.state_shown, after.drain_job) == (Drain.DRAINED, seen.drain_job.replace(finished_at=LATER))  # type: ignore[union-attr]


async def test_F64_a_node_drained_except_for_pinned_work_drains_on_when_that_matters(store: Store) -> None:
    """Ignoring what is pinned can be taken back."""
    seen = (await drain(store, ignore_pinned=True)).after
    assert await intent.mark_drained(store, seen, frozenset(), now=LATER)
    assert (await drain(store, ignore_pinned=False)).after.drain == Drain.DRAINING


async def test_F53_a_taint_is_known_by_key_and_effect(store: Store) -> None:
    """Another effect makes another taint; a new value replaces the old one; a blank effect is NoSchedule."""
    await intent.add_taint(store, "n-1", Taint(key="gpu", value="old"))
    await intent.add_taint(store, "n-1", Taint(key="gpu", effect="NoExecute"))
    await intent.add_taint(store, "n-1", Taint(key="gpu", value="new"))
    taints = {(t.key, t.value, t.effect) for t in (await node_of(store)).taints}
    assert taints == {("gpu", "new", "NoSchedule"), ("gpu", "", "NoExecute")}
    assert not (await intent.add_taint(store, "n-1", Taint(key="gpu", value="new"))).anything
    assert (await intent.remove_taint(store, "n-1", "gpu", "NoSchedule")).anything
    assert not (await intent.remove_taint(store, "n-1", "gpu", "NoSchedule")).anything
    assert [t.effect for t in (await node_of(store)).taints] == ["NoExecute"]


async def test_F53_taints_and_labels_are_bounded(store: Store) -> None:
    """A record must not grow for ever."""
    await put(store, NODES, "n-1", OFFER.replace(taints=tuple(Taint(key=f"k{i}") for i in range(intent.MAX_TAINTS))))
    with pytest.raises(Refused, match="at most 64"):
        await intent.add_taint(store, "n-1", Taint(key="more"))
    await put(store, NODES, "n-1", OFFER.replace(operator_labels={f"k{i}": "" for i in range(intent.MAX_LABELS)}))
    with pytest.raises(Refused, match="no more"):
        await intent.set_label(store, "n-1", "more", "")


async def test_F66_a_label_is_set_and_deleted_and_does_not_come_back(store: Store) -> None:
    """Neither does registering again remove one that is set, nor bring back one that was deleted."""
    await intent.set_label(store, "n-1", "rack", "7")
    assert not (await intent.set_label(store, "n-1", "rack", "7")).anything
    await register(store, OFFER.replace(instance_id="i2"), now=LATER)
    assert (await node_of(store)).labels == {"zone": "a", "rack": "7", "scheduler_shard": "genesis"}
    await intent.delete_label(store, "n-1", "rack")
    await register(store, OFFER.replace(instance_id="i3"), now=LATER)
    assert (await node_of(store)).labels == {"zone": "a", "scheduler_shard": "genesis"}


async def test_F3_the_agents_label_wins_and_hides_the_operators(store: Store) -> None:
    """The operator's shows again when the agent gives none; the agent's own cannot be changed from here."""
    await intent.set_label(store, "n-1", "disk", "ssd")
    await register(store, OFFER.replace(labels={"disk": "hdd"}), now=LATER)
    assert (await node_of(store)).labels["disk"] == "hdd"
    with pytest.raises(Refused, match="comes from its agent"):
        await intent.set_label(store, "n-1", "disk", "nvme")
    await register(store, OFFER.replace(labels={}), now=LATER)
    assert (await node_of(store)).labels == {"disk": "ssd", "scheduler_shard": "genesis"}


async def test_F66_labels_of_others_are_left_alone(store: Store) -> None:
    """The scheduler's own, the agent's, and those of a node that is not there."""
    with pytest.raises(InvalidInput, match="scheduler_shard"):
        await intent.set_label(store, "n-1", "scheduler_shard", "x")
    with pytest.raises(InvalidInput, match="scheduler_shard"):
        await intent.delete_label(store, "n-1", "scheduler_shard")
    with pytest.raises(Refused, match="comes from its agent"):
        await intent.delete_label(store, "n-1", "zone")
    with pytest.raises(NotFound):
        await intent.set_label(store, "n-9", "rack", "7")


async def test_F3_labels_of_a_record_that_does_not_tell_whose_they_are_stay(store: Store) -> None:
    """A record of the reference layout: what its agent does not give is an operator's, and can be deleted."""
    await put(store, NODES, "n-1", Node(node_id="n-1", labels={"zone": "old", "rack": "7"}))
    await register(store, OFFER, now=LATER)
    assert (await node_of(store)).labels == {"zone": "a", "rack": "7", "scheduler_shard": "genesis"}
    await intent.delete_label(store, "n-1", "rack")
    await register(store, OFFER.replace(instance_id="i2"), now=LATER)
    assert "rack" not in (await node_of(store)).labels


def test_F86_a_draining_node_of_the_reference_layout_is_draining_here() -> None:
    """There, health and drain are one field."""
    old = Node.from_json(b'{"nodeId": "n-1", "status": "Draining"}')
    assert (old.status, old.drain, old.state_shown) == ("Ready", "Draining", "Draining")


async def test_a_node_is_removed_only_when_it_is_silent_and_empty_unless_forced(store: Store) -> None:
    """Never silently: a refusal says what is in the way; records of node and ledger go together."""
    with pytest.raises(Refused, match="is heard"):
        await intent.remove_node(store, "n-1", force=False)
    await set_health(store, "n-1", Health.NOT_READY, "silent", "monitor", now=NOW)
    await put(store, LEDGERS, "n-1", Ledger(node_id="n-1", commitments={"db": Commitment()}))
    with pytest.raises(Refused, match="holds 1 workload;"):
        await intent.remove_node(store, "n-1", force=False)
    with pytest.raises(Refused, match="holds 1 workload;"):
        await intent.check_removal(store, "n-1", 0, force=False)
    assert await intent.remove_node(store, "n-1", force=True)
    assert (await store.get(NODES, "n-1")).record is None
    assert (await store.get(LEDGERS, "n-1")).record is None
    assert await intent.remove_node(store, "n-1", force=True) is None
    with pytest.raises(NotFound):
        await intent.check_removal(store, "n-1", 0, force=True)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_F3_no_turn_of_the_others_loses_what_an_operator_set(data: st.DataObject) -> None:
    """Drain, taint, label, registration, loss and return at once: the intent is what the operators said."""
    asyncio.run(_all_at_once(lambda count: data.draw(st.integers(0, count - 1))))


async def _all_at_once(choose: object) -> None:
    etcd = MemoryEtcd()
    store = Store(etcd)
    await register(store, OFFER, now=NOW)
    await intent.set_label(store, "n-1", "old", "1")
    turns = Turns(choose)  # type: ignore[arg-type]
    etcd.pause = turns.pause
    outcomes = await turns.run([
        drain(store, max_parallel=3),
        intent.add_taint(store, "n-1", Taint(key="gpu", effect="NoExecute")),
        intent.set_label(store, "n-1", "rack", "7"),
        intent.delete_label(store, "n-1", "old"),
        register(store, OFFER.replace(total_cpu=8.0, labels={"zone": "b"}), now=LATER),
        set_health(store, "n-1", Health.NOT_READY, "silent", "monitor", now=LATER),
        set_health(store, "n-1", Health.READY, "heard", "heartbeat", now=LATER, expect_status="NotReady"),
    ])  # fmt: skip
    assert not [o for o in outcomes if isinstance(o, Exception)]
    etcd.pause = lambda: asyncio.sleep(0)
    after = await node_of(store)
    assert (after.drain, after.drain_job and after.drain_job.max_parallel) == ("Draining", 3)
    assert [t.effect for t in after.taints] == ["NoExecute"]
    assert after.labels == {"zone": "b", "rack": "7", "scheduler_shard": "genesis"}
    assert after.total_cpu == 8.0


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_F65_drain_and_undrain_leave_no_half_of_either_and_no_placement_slips_in(data: st.DataObject) -> None:
    """At every turn of a placement, a heartbeat and a registration: a node under drain takes nothing new."""
    asyncio.run(_drain_against_placing(lambda count: data.draw(st.integers(0, count - 1))))


async def _drain_against_placing(choose: object) -> None:
    etcd = MemoryEtcd()
    from scheduler.store.cache import Cache  # noqa: PLC0415 - only this test runs a placer

    cache = Cache(etcd, TABLES)
    store = Store(etcd, cache=cache)
    await put(store, NODES, "n-1", node("n-1"))
    await put_workload(store, spec("web"))
    await cache.start()
    await cache.ready(5)
    turns = Turns(choose)  # type: ignore[arg-type]
    etcd.pause = turns.pause
    try:
        await turns.run([
            Placer(store, cache, EXACT).place("web"),
            drain(store),
            intent.undrain(store, "n-1"),
            register(store, OFFER, now=LATER),
        ])  # fmt: skip
    finally:
        etcd.pause = lambda: asyncio.sleep(0)
        await cache.close()
    for revision in range(2, etcd.revision + 1):
        nodes, _ = await etcd.scan(NODES.prefix, revision=revision)
        ledgers, _ = await etcd.scan(LEDGERS.prefix, revision=revision)
        record = Node.from_json(nodes[0].value)
        assert bool(record.drain) == (record.drain_job is not None)
        if ledgers and ledgers[0].mod_revision == revision:
            assert not record.drain
