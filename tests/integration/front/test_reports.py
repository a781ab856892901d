"""What heartbeats say about workloads: row F6, and what it may cost."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from scheduler.domain.workload import Actual, WorkloadStatus
from scheduler.pb import control_pb2 as pb
from scheduler.pb import fleetbeat_pb2
from scheduler.store.keys import STATUSES, TOMBSTONES
from scheduler.store.kv import EtcdApi
from scheduler.store.memory import MemoryEtcd, Mishap
from scheduler.store.workloads import finalize_delete, mark_deleted
from tests.support.counting import CountingEtcd
from tests.support.fronts import Heartbeat, Rig, eventually, front_on, refused, status


async def beat(rig: Rig, *statuses: pb.WorkloadStatus, node_id: str = "n1", **fields: Any) -> pb.HeartbeatResponse:
    """Send a heartbeat and wait until what it says is written."""
    answer: pb.HeartbeatResponse = await rig.control.Heartbeat(
        Heartbeat(node_id=node_id, workload_statuses=statuses, **fields)
    )
    await rig.settled()
    return answer


async def stored(rig: Rig, workload_id: str = "web") -> WorkloadStatus:
    """Read a workload's status from etcd."""
    record = (await rig.parts.store.get(STATUSES, workload_id)).record
    assert record
    return record


async def running(rig: Rig, workload_id: str = "web") -> tuple[int, str]:
    """Place a workload on n1 and let it run there; return its epoch and revision."""
    answer = await rig.apply(workload_id)
    epoch = (await stored(rig, workload_id)).epoch
    await beat(rig, status(workload_id, "Running", epoch=epoch, revision=answer.revision_id))
    return epoch, answer.revision_id


async def test_F6_state_reason_and_message_are_seen_afterwards(etcd: EtcdApi) -> None:
    """What the assigned node reports is what GetWorkload shows."""
    async with front_on(etcd) as rig:
        await rig.register()
        epoch, revision = await running(rig)
        assert (await rig.workload()).status == "Running"
        reason = pb.ReasonDetail(code="RUNTIME_ERROR", message="exit 1", retryable=True)
        await beat(rig, status("web", "Failed", epoch=epoch, revision=revision, message="exit 1", reason=reason))
        view = await rig.workload()
        assert (view.status, view.reason.code, view.failure_reason) == ("Failed", "RUNTIME_ERROR", "exit 1")
        assert view.reason.retryable


async def test_F6_unknown_and_malformed_ids_are_ignored() -> None:
    """They neither fail the heartbeat nor store anything; the known one beside them is taken."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        before = await rig.stored()
        others = [status(i, "Running", epoch=1, revision="r") for i in ("", "ghost", "a/b", "x" * 500, "-")]
        answer = await beat(rig, *others, status("web", "Running", epoch=epoch, revision=revision))
        assert answer.acknowledged
        assert await rig.stored() == before


async def test_F6_only_the_assigned_node_is_believed() -> None:
    """Another node's report changes nothing; its copy is owed a stop, once, and the shard is woken."""
    async with front_on() as rig:
        await rig.register("n1")
        epoch, _ = await running(rig)
        await rig.register("n2")
        before = await stored(rig)
        rig.woken.clear()
        await beat(rig, status("web", "Failed", epoch=epoch - 1, revision="old"), node_id="n2")
        assert await stored(rig) == before
        tombstone = (await rig.parts.store.get(TOMBSTONES, "n2/web")).record
        assert tombstone
        assert tombstone.epoch == epoch - 1
        assert rig.woken == [("web", "n2")]
        writes = rig.parts.store.writes.total()
        await beat(rig, status("web", "Failed", epoch=epoch - 1, revision="old"), node_id="n2")
        assert rig.parts.store.writes.total() == writes


async def test_F6_a_report_of_an_earlier_epoch_is_not_believed() -> None:
    """What ran under the assignment before does not speak for the current one."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        await beat(rig, status("web", "Failed", epoch=epoch - 1, revision=revision))
        assert (await stored(rig)).actual != Actual.FAILED


async def test_F6_agents_that_send_no_epoch_are_believed_on_their_node() -> None:
    """Agents of the reference system know neither epoch nor revision, and spell states as they like."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        await beat(rig, status("web", "RUNNING"))
        assert (await stored(rig)).actual == Actual.RUNNING
        await beat(rig, status("web", "dancing"))
        assert (await stored(rig)).actual == Actual.UNKNOWN
        await beat(rig, status("web", "UNKNOWN", message="Container not found: web"))
        assert (await stored(rig)).actual == Actual.MISSING


async def test_a_heartbeat_without_news_reads_and_writes_nothing() -> None:
    """With 20 workloads that run, ten heartbeats cost no call to etcd at all, whatever their messages say."""
    etcd = CountingEtcd(MemoryEtcd())
    async with front_on(etcd) as rig:
        await rig.register(cpu_total_millicores=100_000, memory_total_mb=100_000)
        known = {f"w{i}": await running(rig, f"w{i}") for i in range(20)}
        statuses = [
            status(w, "Running", epoch=epoch, revision=revision, message=f"up for {i} s")
            for i, (w, (epoch, revision)) in enumerate(known.items())
        ]
        await beat(rig, *statuses, full=True)
        await beat(rig, *statuses, full=True)
        calls = len(etcd.of_work)
        for sequence in range(10):
            usage = pb.NodeUsage(cpu_used_millicores=sequence)
            await rig.control.Heartbeat(
                Heartbeat(node_id="n1", workload_statuses=statuses, usage=usage, sequence=sequence, full=True)
            )
            assert len(rig.front.heartbeats.reports.pump) == 0
        assert len(etcd.of_work) == calls


async def test_a_failed_workload_costs_no_further_call_while_it_says_the_same() -> None:
    """States whose message counts are remembered once they are written."""
    etcd = CountingEtcd(MemoryEtcd())
    async with front_on(etcd) as rig:
        await rig.register()
        epoch, revision = await running(rig)
        failed = status("web", "Failed", epoch=epoch, revision=revision, message="exit 1")
        for _ in range(3):
            await beat(rig, failed)
        calls = len(etcd.of_work)
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[failed, status("ghost", "Running")]))
        await rig.settled()
        first = len(etcd.of_work) - calls
        await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[failed, status("ghost", "Running")]))
        assert len(rig.front.heartbeats.reports.pump) == 0
        assert len(etcd.of_work) == calls + first
        assert first <= 2, "an unknown workload is looked up once"


async def test_F6_news_costs_one_write_for_each_workload_it_is_about(etcd: EtcdApi) -> None:
    """Of 20 workloads 3 changed: 3 writes of a status, one each; the other records stay byte for byte."""
    async with front_on(etcd) as rig:
        await rig.register(cpu_total_millicores=100_000, memory_total_mb=100_000)
        known = {f"w{i}": await running(rig, f"w{i}") for i in range(20)}
        changed = {"w3", "w7", "w11"}
        before, writes = await rig.stored(), rig.parts.store.writes.total()
        statuses = [
            status(w, "Stopped" if w in changed else "Running", epoch=epoch, revision=revision)
            for w, (epoch, revision) in known.items()
        ]
        await beat(rig, *statuses)
        assert rig.parts.store.writes.total() == writes + 3
        after = await rig.stored()
        assert {k for k in after if after[k] != before.get(k)} == {f"/workloads-status/{w}" for w in changed}


async def test_what_needs_action_wakes_the_shard() -> None:
    """A workload that should run and was found stopped is looked at before the next cycle."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        rig.woken.clear()
        await beat(rig, status("web", "Stopped", epoch=epoch, revision=revision))
        assert ("web", "n1") in rig.woken


async def test_a_whole_roster_that_lacks_a_workload_marks_it_missing_once_it_cannot_be_old_news(etcd: EtcdApi) -> None:
    """The first roster may have been made up before the workload was started: only the second one counts."""
    async with front_on(etcd) as rig:
        await rig.register()
        await running(rig)
        answer = await beat(rig, instance_id="a", sequence=1, full=True)
        assert answer.send_full
        assert (await stored(rig)).actual == Actual.RUNNING
        answer = await beat(rig, instance_id="a", sequence=2, full=True)
        assert not answer.send_full
        assert (await stored(rig)).actual == Actual.MISSING
        assert ("web", "n1") in rig.woken


async def test_a_workload_started_since_the_last_heartbeat_is_not_missing() -> None:
    """A roster on its way while the agent took an order lacks what was ordered, rightly."""
    async with front_on() as rig:
        await rig.register()
        await beat(rig, instance_id="a", sequence=1, full=True)
        await running(rig)  # reported by an instance that the next heartbeat does not know
        seen = rig.front.heartbeats._seen["n1"]
        seen.instance_id, seen.sequence, seen.answered_revision = "a", 1, 1
        answer = await beat(rig, instance_id="a", sequence=2, full=True)
        assert answer.send_full
        assert (await stored(rig)).actual == Actual.RUNNING


async def test_a_workload_that_was_never_seen_on_its_node_is_not_missing() -> None:
    """It is merely not applied yet."""
    async with front_on() as rig:
        await rig.register()
        await rig.apply()
        for sequence in (1, 2, 3):
            await beat(rig, instance_id="a", sequence=sequence, full=True)
        assert (await stored(rig)).actual != Actual.MISSING


async def test_a_front_asks_for_the_whole_roster_when_it_may_have_missed_something() -> None:
    """First heartbeat here, a new instance, a gap in the sequence: ask. An unbroken sequence: do not."""
    async with front_on() as rig:
        await rig.register()
        assert (await beat(rig, instance_id="a", sequence=1)).send_full
        assert not (await beat(rig, instance_id="a", sequence=2)).send_full
        assert (await beat(rig, instance_id="a", sequence=4)).send_full
        assert (await beat(rig, instance_id="b", sequence=1)).send_full
        assert not (await beat(rig, instance_id="b", sequence=2, full=True)).send_full


async def test_a_heartbeat_that_was_overtaken_tells_nothing() -> None:
    """Sequence 1 arrives after sequence 2: the older report does not replace the newer one."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        ids = {"epoch": epoch, "revision": revision}
        await beat(rig, status("web", "Failed", **ids), instance_id="a", sequence=2)
        await beat(rig, status("web", "Running", **ids), instance_id="a", sequence=1)
        assert (await stored(rig)).actual == Actual.FAILED


async def test_news_waits_for_etcd_and_the_newest_wins() -> None:
    """Reports taken while etcd is away are written when it is back; what was overtaken meanwhile never is."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        epoch, revision = await running(rig)
        etcd.mishap = lambda call: Mishap.UNAVAILABLE if call in ("txn", "get_many") else None
        for state in ("Failed", "Stopped", "Running"):
            report = status("web", state, epoch=epoch, revision=revision)
            assert (await rig.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[report]))).acknowledged
        writes = rig.parts.store.writes.total()
        etcd.mishap = lambda _call: None
        await rig.settled()
        assert (await stored(rig)).actual == Actual.RUNNING
        assert rig.parts.store.writes.total() == writes


async def test_news_that_found_no_room_is_asked_for_again_once_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents answer such a question at once, so it is not put while the front is full: that would be a storm."""
    monkeypatch.setattr("scheduler.front.reports.CAPACITY", 2)
    monkeypatch.setattr("scheduler.front.reports.IN_FLIGHT", 1)
    etcd = MemoryEtcd()
    async with front_on(etcd) as rig:
        await rig.register()
        known = {f"w{i}": await running(rig, f"w{i}") for i in range(4)}
        await beat(rig, instance_id="a", sequence=1)
        etcd.mishap = lambda call: Mishap.UNAVAILABLE if call in ("txn", "get_many") else None
        stopped = [status(w, "Stopped", epoch=epoch, revision=revision) for w, (epoch, revision) in known.items()]
        news = Heartbeat(node_id="n1", workload_statuses=stopped, instance_id="a", sequence=2)
        assert not (await rig.control.Heartbeat(news)).send_full
        etcd.mishap = lambda _call: None
        await rig.settled()
        assert (await beat(rig, instance_id="a", sequence=3)).send_full
        await beat(rig, *stopped, instance_id="a", sequence=4, full=True)
        assert {(await stored(rig, workload_id)).actual for workload_id in known} == {Actual.STOPPED}


async def test_a_report_ahead_of_the_cache_is_judged_by_etcd() -> None:
    """The agent was given a workload that this front has not heard of yet: its report counts all the same."""
    etcd = MemoryEtcd()
    async with front_on(etcd) as one, front_on(etcd) as two:
        await one.register()
        await eventually(lambda: len(two.front.reader.index.node_ids) == 1)
        await two.parts.cache.close()
        answer = await one.apply()
        epoch = (await stored(one)).epoch
        report = status("web", "Running", epoch=epoch, revision=answer.revision_id)
        await two.control.Heartbeat(Heartbeat(node_id="n1", workload_statuses=[report]))
        await eventually(lambda: len(two.front.heartbeats.reports.pump) == 0)
        assert (await stored(one)).actual == Actual.RUNNING


async def test_messages_are_bounded_before_they_are_stored() -> None:
    """An agent's endless message is cut, not refused: the heartbeat counts."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        await beat(rig, status("web", "Failed", epoch=epoch, revision=revision, message="x" * 100_000))
        assert len((await rig.stored())["/workloads-status/web"]) < 5_000


async def test_F36_F43_a_copy_that_nobody_knows_opens_one_finding() -> None:
    """From a whole roster, whatever is said of the copy; it is listed, counted, and written once."""
    async with front_on() as rig:
        await rig.register("n1")
        stranger = status("stranger", "Running", epoch=3)
        await beat(rig, stranger, full=True)
        answer = await rig.fleet.ListDrifts(fleetbeat_pb2.ListDriftsRequest())
        (found,) = answer.drifts
        assert (found.node_id, found.workload_id, found.type) == ("n1", "stranger", "orphan_on_agent")
        assert (found.action, found.sightings) == ("operator_investigation", 1)
        revision = rig.parts.store.last_revision
        await beat(rig, stranger, full=True)
        assert rig.parts.store.last_revision == revision
        assert 'drifts_open{type="orphan_on_agent"} 1.0' in rig.parts.metrics.exposition().decode()
        assert not (await rig.fleet.ListDrifts(fleetbeat_pb2.ListDriftsRequest(node_id="n2"))).drifts
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "node_id"):
            await rig.fleet.ListDrifts(fleetbeat_pb2.ListDriftsRequest(node_id="a/b"))


async def test_F36_F42_the_front_tells_of_an_unknown_copy_that_it_finds() -> None:
    """Once, whatever the number of sightings that a deletion needs: no drift cycle has to come."""
    told: list[tuple[str, dict[str, Any]]] = []
    async with front_on() as rig:
        rig.parts.events.emit = lambda kind, **about: told.append((str(kind), about))  # type: ignore[method-assign]
        await rig.register("n1")
        for _ in range(3):
            await beat(rig, status("stranger", "Running", epoch=3), full=True)
        ((_, about),) = [one for one in told if one[0] == "DriftDetected"]
        assert (about["workload_id"], about["node_id"]) == ("stranger", "n1")
        assert (about["details"]["resolved"], about["details"]["action"]) == ("false", "operator_investigation")


async def test_F36_a_roster_older_than_a_removal_opens_no_finding() -> None:
    """It was made up before the copy was removed, and arrives after the records went; the next one is asked for."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        await mark_deleted(rig.parts.store, "web", now=rig.parts.now())
        assert await finalize_delete(rig.parts.store, "web", tombstone=False, now=rig.parts.now())
        await rig.parts.cache.wait_revision(rig.parts.store.last_revision, 5)
        answer = await beat(rig, status("web", "Running", epoch=epoch, revision=revision), full=True)
        assert answer.send_full
        assert not (await rig.fleet.ListDrifts(fleetbeat_pb2.ListDriftsRequest())).drifts


async def test_scenario_O3_a_restarted_agents_work_is_listed_before_it_confirms_it() -> None:
    """It registers anew and says nothing yet: the list is the store's; the first roster confirms it, for no write."""
    async with front_on() as rig:
        await rig.register()
        epoch, revision = await running(rig)
        await rig.register(supported_workload_types=["container"])
        await beat(rig, sequence=1)
        for _ in range(2):
            listed = (await rig.control.ListWorkloads(pb.ListWorkloadsRequest(node_id="n1"))).workloads
            assert [(w.workload_id, w.status) for w in listed] == [("web", "Running")]
            before = await rig.stored()
            await beat(rig, status("web", "Running", epoch=epoch, revision=revision), full=True, sequence=2)
            assert await rig.stored() == before
