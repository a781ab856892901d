"""Random histories of everything that may happen to a fleet, each step checked, and peace in the end.

No model stands in for the decisions: the real loops run (`next_action`, liveness, brake, drain, placement, and
every transaction's own decision), one worker over the etcd in memory, with simulated nodes and a simulated clock.
There is no I/O. What users, operators and nodes do comes one after the other here, so that a history that fails
shrinks to a few lines; concurrent turns are the business of test_interleavings.py and its neighbours. A worker may
die between any two of its calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from scheduler.agents.classify import NOT_NOW
from scheduler.convergence.actions import Nothing, Place, next_action
from scheduler.convergence.drain import is_vacating
from scheduler.convergence.failures import RUNTIME_UNAVAILABLE
from scheduler.convergence.loss import ORPHANED, Wait
from scheduler.domain.errors import NotFound, Refused
from scheduler.domain.node import DrainJob, Health, Node, Taint
from scheduler.domain.workload import Actual, Desired, ManagedVolume, WorkloadStatus
from scheduler.loops.holds import Holds
from scheduler.loops.look import action_for, glance
from scheduler.store import intent
from scheduler.store.fences import fence_node
from scheduler.store.intent import Wish
from scheduler.store.keys import ASSIGNMENTS, ATTACHMENTS, LEDGERS, NODES, SPECS, STATUSES, TOMBSTONES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.nodes import register, set_health
from scheduler.store.workloads import apply_spec, mark_deleted, record_missing, record_report, retry, set_desired
from tests.support.loop_world import Clock, FakePulses, World, world
from tests.support.placement import EXACT, check_capacity, check_epochs, commitments, records, spec
from tests.support.simulated import LEASE, STOP_AFTER, Host, Hosts

T = TypeVar("T")
Key = tuple[str, str]
"""A node and a workload."""
What = tuple[str, str]
"""A revision and a state."""

NODE_IDS = ("n-1", "n-2", "n-3")
EXCLUSIVE = ("x", "y")
WORKLOADS = ("a", "b", "c", *EXCLUSIVE)
"""`a` may have replicas, `c` may become exclusive and cease to be; `y` has a volume that one node at a time may use."""
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
LONGEST_WAIT = timedelta(minutes=15)
ROUNDS, ROUND_SECONDS = 60, 30.0
"""Within half an hour of peace all is as wanted: the longest wait of all is a quarter of one."""
VOLUME = ManagedVolume(name="data", driver="nfs", size_gb=1, access_mode="ReadWriteOnce", retain_policy="Delete")

node_ids = st.sampled_from(NODE_IDS)
names = st.sampled_from(WORKLOADS)
returns = st.sampled_from(["keep_replacement", "keep_original", "best_score", "longest_running"])
deaths = st.none() | st.integers(1, 30)
"""After how many calls of its own a worker dies; None: it lives."""
lives = st.sampled_from([0, 0, 1, 3, 8])
"""For how many rounds everybody goes on as usual after something has happened."""


def happens(**given: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """Make a rule of something that happens, after which life goes on for a while."""

    def make(act: Callable[..., None]) -> Any:
        @wraps(act)
        def whole(self: Histories, then: int, **drawn: Any) -> None:
            act(self, **drawn)
            for _ in range(then):
                self.live(4.0)

        as_rule: Callable[..., Any] = rule
        return as_rule(then=lives, **given)(whole)

    return make


class Histories(RuleBasedStateMachine):
    """One fleet; each rule is something that happens."""

    def __init__(self) -> None:
        """Start three nodes and a worker."""
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.clock = Clock()
        self.pulses = FakePulses(self.clock)
        self.hosts = Hosts(self.clock, NODE_IDS, self._turn)
        self.etcd = MemoryEtcd()
        self.worker: asyncio.Future[Any] | None = None
        self.calls_left: int | None = None
        self.epochs: dict[str, int] = {}
        self.before: dict[str, WorkloadStatus] = {}
        self.checked = 1
        self.this: World = self.run(self._open())
        self.hosts.on_change = self.check_copies
        self.etcd.pause = self._turn

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something to its end."""
        return self.runner.run(work)

    async def _open(self) -> World:
        opened = world(
            self.etcd,
            agents=self.hosts,
            clock=self.clock,
            pulses=self.pulses,
            exclusive_stop_after_seconds=STOP_AFTER,
            node_lease_seconds=LEASE,
            orphan_after_seconds=300.0,
        )
        this = await self.stack.enter_async_context(opened)
        for node_id in NODE_IDS:
            await register(this.store, _record(node_id), now=self.clock())
            self.pulses.beat(node_id)
        return this

    async def _turn(self) -> None:
        """Let a worker die when its time has come."""
        if self.calls_left is not None and self.worker:
            self.calls_left -= 1
            if self.calls_left <= 0:
                self.worker.cancel()
                await asyncio.Event().wait()  # for its end
        await asyncio.sleep(0)

    def work(self, act: Coroutine[Any, Any, Any], dies_after: int | None) -> bool:
        """Have a worker do something; say whether it lived to the end of it."""

        async def mortal() -> bool:
            self.worker = task = asyncio.ensure_future(act)
            self.calls_left = dies_after
            await asyncio.wait([task])
            self.calls_left = self.worker = None
            if not task.cancelled():
                task.result()
            await self.this.settle()
            return not task.cancelled()

        return self.run(mortal())

    # Users

    @initialize(image=st.integers(0, 1))
    def some_work(self, image: int) -> None:
        """Begin with one workload that may run twice for a moment and one that may not."""
        for name in ("a", "x"):
            wanted = {"name": name, "image": image, "cpu": 0.1, "on_return": "keep_replacement", "replicas": 1}
            self.user_applies(then=0, flag=False, **wanted)

    @happens(
        name=names, image=st.integers(0, 2), cpu=st.sampled_from([0.1, 0.6]), flag=st.booleans(), on_return=returns,
        replicas=st.integers(1, 3),
    )  # fmt: skip
    def user_applies(self, name: str, image: int, cpu: float, *, flag: bool, on_return: str, replicas: int) -> None:
        """A user asks for a workload, or changes what it is, or how it is to be treated."""
        rules = {"fleetbeat.on_return": on_return}
        if name in EXCLUSIVE:
            rules |= {"fleetbeat.exclusive": "true", "fleetbeat.stop_after": "5s" if flag else "20s"}
        if name == "c":
            rules["fleetbeat.exclusive"] = str(flag).lower()
        if name == "b" and flag:
            rules["persys.scheduling.persistence_class"] = "node-local"
        wanted = spec(name, image=f"v{image}", cpu=cpu, metadata=rules, replicas=replicas if name == "a" else 1)
        wanted = wanted.replace(managed_volumes=(VOLUME,) if name == "y" else ())
        self.ask(apply_spec(self.this.store, wanted, now=self.clock()))

    @happens(name=names, desired=st.sampled_from([Desired.STOPPED, Desired.RUNNING]))
    def user_stops_or_starts(self, name: str, desired: str) -> None:
        """A user changes what is desired."""
        self.ask(set_desired(self.this.store, name, desired, now=self.clock()))

    @happens(name=names)
    def user_deletes(self, name: str) -> None:
        """A user has had enough."""
        self.ask(mark_deleted(self.this.store, name, now=self.clock()))

    @happens(name=st.sampled_from(EXCLUSIVE), rounds=st.sampled_from([0, 3]), cut=st.booleans())
    def user_deletes_and_creates_anew(self, name: str, rounds: int, *, cut: bool) -> None:
        """A user wants something else by the same name; cut: the node of the old one is cut off just then."""
        if cut:
            self.node_of_exclusive_work_is_cut_off(name=name, then=0)
        self.ask(mark_deleted(self.this.store, name, now=self.clock()))
        for _ in range(rounds):
            self.live(4.0)
        wanted = {"name": name, "image": 2, "cpu": 0.1, "on_return": "keep_replacement", "replicas": 1}
        self.user_applies(then=0, flag=False, **wanted)

    @happens(name=names)
    def user_retries(self, name: str) -> None:
        """A user has mended something."""
        self.ask(retry(self.this.store, name, now=self.clock()))

    def ask(self, call: Coroutine[Any, Any, Any]) -> None:
        """Ask the control plane for something; it may say no."""

        async def ask() -> None:
            with suppress(NotFound, Refused):
                await call
            await self.this.settle()

        self.run(ask())
        self.check()

    # Operators

    @happens(node_id=node_ids, parallel=st.integers(1, 2), healthy=st.sampled_from([0.0, 10.0]), hurried=st.booleans())
    def operator_drains(self, node_id: str, parallel: int, healthy: float, *, hurried: bool) -> None:
        """An operator wants a node empty, perhaps until some time."""
        deadline = self.clock() + timedelta(seconds=20) if hurried else None
        wish = Wish(max_parallel=parallel, min_healthy_seconds=healthy, deadline=deadline, ignore_pinned=True)
        self.ask(intent.drain(self.this.store, node_id, wish, DrainJob(), total=5, now=self.clock()))

    @happens(node_id=node_ids)
    def operator_undrains(self, node_id: str) -> None:
        """An operator wants the node to be used again."""
        self.ask(intent.undrain(self.this.store, node_id))

    @happens(node_id=node_ids, effect=st.sampled_from(EFFECTS))
    def operator_taints(self, node_id: str, effect: str) -> None:
        """An operator keeps work away from a node."""
        self.ask(intent.add_taint(self.this.store, node_id, Taint(key="k", effect=effect)))

    @happens(node_id=node_ids)
    def operator_untaints(self, node_id: str) -> None:
        """An operator lets work in again."""
        self.ask(self._untaint(node_id))

    async def _untaint(self, node_id: str) -> None:
        for effect in EFFECTS:
            await intent.remove_taint(self.this.store, node_id, "k", effect)

    @happens(node_id=node_ids, schedulable=st.booleans())
    def operator_cordons(self, node_id: str, *, schedulable: bool) -> None:
        """An operator closes a node for new work, or opens it."""
        self.ask(intent.set_schedulable(self.this.store, node_id, schedulable=schedulable))

    @happens(node_id=node_ids, wiped=st.booleans())
    def operator_fences(self, node_id: str, *, wiped: bool) -> None:
        """An operator turns a node off and vouches for it."""
        self.hosts.by_id[node_id].turn_off(wiped=wiped)
        self.ask(fence_node(self.this.store, node_id, "off", force=True, now=self.clock()))

    # Nodes

    @happens(node_id=node_ids, heard=st.booleans(), reachable=st.booleans())
    def node_is_cut_off_or_heals(self, node_id: str, *, heard: bool, reachable: bool) -> None:
        """The network between a node and us breaks, in one direction or in both, or mends."""
        host = self.hosts.by_id[node_id]
        host.heard, host.reachable = heard, reachable

    @happens(name=st.sampled_from(EXCLUSIVE))
    def node_of_exclusive_work_is_cut_off(self, name: str) -> None:
        """The network breaks where it hurts."""
        for node_id in self.hosts.running(name):
            host = self.hosts.by_id[node_id]
            host.heard = host.reachable = False

    @happens(node_id=node_ids, wiped=st.booleans())
    def node_loses_power(self, node_id: str, *, wiped: bool) -> None:
        """A node goes off."""
        self.hosts.by_id[node_id].turn_off(wiped=wiped)

    @happens(node_id=node_ids)
    def node_boots(self, node_id: str) -> None:
        """A node is on; its agent registers if it is connected."""
        self.run(self._boot(node_id))
        self.check()

    async def _boot(self, node_id: str) -> None:
        host = self.hosts.by_id[node_id]
        host.on = True
        if host.heard:
            await register(self.this.store, _record(node_id), now=self.clock())
            await self._beat(node_id, host, reports=True)
        await self.this.settle()

    @happens(node_id=node_ids, code=st.sampled_from(["", "INTERNAL", NOT_NOW, RUNTIME_UNAVAILABLE]), slow=st.booleans())
    def agent_changes_its_mood(self, node_id: str, code: str, *, slow: bool) -> None:
        """An agent begins to refuse orders, or to take them again; its copies begin to start slowly or at once."""
        host = self.hosts.by_id[node_id]
        host.refuses, host.slow = code, slow

    @happens(
        node_id=node_ids, name=names,
        end=st.sampled_from([(Actual.FAILED, ""), (Actual.FAILED, "INVALID_IMAGE"), (Actual.PENDING, "")]),
    )  # fmt: skip
    def copy_ends(self, node_id: str, name: str, end: tuple[str, str]) -> None:
        """A copy crashes, fails for good, or starts anew by itself."""
        self.hosts.by_id[node_id].end(name, *end)

    @happens(node_id=node_ids, name=names)
    def copy_vanishes(self, node_id: str, name: str) -> None:
        """Somebody removes a copy by hand."""
        self.hosts.by_id[node_id].copies.pop(name, None)

    @happens(node_id=node_ids)
    def copies_start(self, node_id: str) -> None:
        """What was starting runs."""
        self.hosts.by_id[node_id].progress()

    @happens(fate=st.sampled_from(["lost", "late", "answer lost"]))
    def a_call_goes_wrong(self, fate: str) -> None:
        """The next call to an agent is lost, delayed, or its answer is."""
        self.hosts.fate = fate

    # Time and workers

    @rule(seconds=st.sampled_from([1, 2, 4, 10, 70, 400]), reports=st.booleans())
    def time_passes(self, seconds: int, *, reports: bool) -> None:
        """Nodes that are connected beat each second; reports: and tell of their copies in the end."""
        self.run(self._pass(seconds, reports=reports))
        self.check()

    async def _pass(self, seconds: float, *, reports: bool) -> None:
        connected = {n: h for n, h in self.hosts.by_id.items() if h.on and h.heard}
        for second in range(int(seconds)):
            self.clock.forward(1.0)
            self.check_copies()
            self.hosts.deliver_late()
            for node_id, host in connected.items():
                host.beat()
                self.pulses.beat(node_id)
                if second == 0:
                    await self._beat(node_id, host, reports=False)
        for node_id, host in connected.items() if reports else ():
            await self._beat(node_id, host, reports=True)
        await self.this.settle()

    async def _beat(self, node_id: str, host: Host, *, reports: bool) -> None:
        """Do what a front does with a heartbeat."""
        store, now = self.this.store, self.clock()
        self.pulses.beat(node_id)
        host.beat()
        await set_health(store, node_id, Health.READY, "heard", "heartbeat", now=now, expect_status=Health.NOT_READY)
        if not reports:
            return
        await self.this.settle()
        expected = {w: self.this.cache.get(STATUSES, w) for w in self.this.ctx.index.on_node(node_id)}
        for workload_id in list(host.copies):
            await record_report(store, node_id, host.report(workload_id), now=now)
        for workload_id, seen in expected.items():
            if workload_id not in host.copies and seen.record:
                epoch, revision = seen.record.epoch, seen.mod_revision
                await record_missing(store, node_id, workload_id, epoch, now=now, seen_revision=revision)

    @rule(loop=st.sampled_from(["reconcile", "reconcile", "monitor_nodes"]), dies_after=deaths)
    def worker_runs_a_cycle(self, loop: str, dies_after: int | None) -> None:
        """A worker runs one cycle of a loop, or dies in the middle of it."""
        homeless = self._homeless()
        lived = self.work(self.this.cycle(loop), dies_after)
        self.check()
        if lived and loop == "reconcile":
            self.check_told(homeless)

    @rule(name=names, dies_after=deaths)
    def worker_wakes(self, name: str, dies_after: int | None) -> None:
        """A worker looks at one workload."""
        self.work(self.this.wake(name), dies_after)
        self.check()

    def live(self, seconds: float) -> None:
        """Let some time pass as usual: nodes report, a worker runs its cycles."""
        self.run(self._pass(seconds, reports=True))
        for loop in ("monitor_nodes", "reconcile"):
            self.work(self.this.cycle(loop), None)
        self.check()

    # What must hold

    def check_copies(self) -> None:
        """Guardians act; no exclusive workload runs twice."""
        for host in self.hosts.by_id.values():
            if host.on:
                host.guard()
        for name in EXCLUSIVE:
            where = self.hosts.running(name)
            assert len(where) <= 1, f"{name} runs on {where}: {[self.hosts.by_id[n].copies[name] for n in where]}"

    def check(self) -> None:
        """Check the copies, all revisions since the last look, and what each workload waits for."""
        self.check_copies()
        self.run(self._check_revisions())
        self.run(self._check_waits())

    async def _check_revisions(self) -> None:
        """At every revision: capacity, one story in all records, epochs that only grow."""
        for at in range(self.checked + 1, self.etcd.revision + 1):
            ledgers, statuses = await records(self.etcd, LEDGERS, at), await records(self.etcd, STATUSES, at)
            tombstones = await records(self.etcd, TOMBSTONES, at)
            check_capacity(await records(self.etcd, NODES, at), ledgers, EXACT)
            _check_agreement(ledgers, statuses, await records(self.etcd, ASSIGNMENTS, at))
            _check_left(ledgers, statuses, tombstones)
            check_epochs(self.epochs, self.before, statuses, tombstones)
            self.before = statuses
        self.checked = self.etcd.revision

    async def _check_waits(self) -> None:
        """Each workload is as wanted, waits with a reason and a due time, is over with a reason, or is acted on."""
        holds, now = Holds(self.this.ctx), self.clock()
        for workload_id in self.this.cache.all(SPECS):
            seen = glance(self.this.ctx, workload_id)
            assert seen
            action = await action_for(self.this.ctx, seen, holds)
            if isinstance(action, Wait):
                assert action.why, seen
                assert now <= action.until <= now + LONGEST_WAIT, (action, seen)
            if isinstance(action, Nothing):
                _check_settled(seen.spec.desired_state, seen.status)

    def check_told(self, before: set[str]) -> None:
        """Who had no node before a whole cycle and has none after it is told why."""
        for workload_id in before & self._homeless():
            seen = glance(self.this.ctx, workload_id)
            assert seen
            assert seen.status.pending_reason, seen

    def _homeless(self) -> set[str]:
        found = (glance(self.this.ctx, workload_id) for workload_id in self.this.cache.all(SPECS))
        now, policy = self.clock(), self.this.ctx.policy
        return {s.spec.id for s in found if s and next_action(s.spec, s.status, s.node, now, policy) == Place()}

    # Peace

    def teardown(self) -> None:
        """All faults end; within a bound all is as wanted, and nothing is left of the rest."""
        try:
            self.run(self._make_peace())
            for _ in range(ROUNDS):
                if not self._round():
                    break
            trouble = self.run(self._trouble())
            assert not trouble, trouble
            assert set(self.run(self.this.cycle())) <= {"NoAction"}
        finally:
            self.run(self.stack.aclose())
            self.runner.close()

    def _round(self) -> list[str]:
        """Let some time pass, and everybody do his work; return what is not yet as it should be."""
        for host in self.hosts.by_id.values():
            host.progress()
        self.live(ROUND_SECONDS)
        return self.run(self._trouble())

    async def _make_peace(self) -> None:
        self.hosts.fate = "ok"
        for node_id, host in self.hosts.by_id.items():
            host.on = host.heard = host.reachable = True
            host.refuses, host.slow = "", False
            await intent.undrain(self.this.store, node_id)
            await intent.set_schedulable(self.this.store, node_id, schedulable=True)
            await self._untaint(node_id)
            await self._boot(node_id)
        for name in self.this.cache.all(SPECS):  # what has failed for good waits for its user
            with suppress(Refused):
                await retry(self.this.store, name, now=self.clock())

    async def _trouble(self) -> list[str]:
        wanted, trouble = await self._wanted()
        copies = {(n, name): copy for n, host in self.hosts.by_id.items() for name, copy in host.copies.items()}
        shown = {key: (copy.revision, copy.state) for key, copy in copies.items()}
        # A stopped workload need not have a copy: somebody may have removed it by hand.
        expected = {key: what for key, what in wanted.items() if key in copies or what[1] != Actual.STOPPED}
        if shown != expected:
            trouble.append(f"copies {shown}, wanted {expected}")
        if owed := await records(self.etcd, TOMBSTONES):
            trouble.append(f"tombstones {owed}")
        ledgers = await records(self.etcd, LEDGERS)
        held = {(node_id, holder) for node_id, ledger in ledgers.items() for holder in ledger.commitments}
        if held != set(wanted):
            trouble.append(f"committed {held}, wanted {set(wanted)}")
        attached = {(a.node_id, a.workload_id) for a in (await records(self.etcd, ATTACHMENTS)).values()}
        if attached != {key for key in wanted if key[1] == "y"}:
            trouble.append(f"attached {attached}, wanted {wanted}")
        return trouble

    async def _wanted(self) -> tuple[dict[Key, What], list[str]]:
        specs, statuses = await records(self.etcd, SPECS), await records(self.etcd, STATUSES)
        ids = {i for one in specs.values() if not one.replica_of for i in _copies_of(one.id, one.replicas)}
        trouble = [] if ids == set(specs) else [f"specs {sorted(specs)}, wanted {sorted(ids)}"]
        wanted: dict[Key, What] = {}
        for name, one in specs.items():
            status = statuses.get(name, WorkloadStatus(id=name))
            state = Actual.STOPPED if one.desired_state == Desired.STOPPED else Actual.RUNNING
            states = (Actual.STOPPED, Actual.MISSING, Actual.FAILED) if state == Actual.STOPPED else (state,)
            shown = (Actual.STOPPED, Actual.FAILED) if state == Actual.STOPPED else (state,)
            if one.desired_state == Desired.DELETED or status.actual not in states or status.status not in shown:
                trouble.append(f"{name} is to be {one.desired_state}: {status}")
            wanted[status.node_id, name] = (one.revision_id, state)
        return wanted, trouble


def _record(node_id: str) -> Node:
    return Node(
        node_id=node_id, total_cpu=2.0, total_memory=2048, reports_epochs=True, enforces_stop_after=True,
        supported_storage_drivers=("local", "nfs"),
    )  # fmt: skip


def _copies_of(workload_id: str, replicas: int) -> list[str]:
    return [workload_id, *(f"{workload_id}.{number}" for number in range(2, replicas + 1))]


def _check_agreement(ledgers: dict[str, Any], statuses: dict[str, Any], assignments: dict[str, Any]) -> None:
    """One node for each workload in all records; only what was orphaned has no share of its node any more."""
    assigned = {(s.id, s.node_id, s.epoch) for s in statuses.values() if s.node_id}
    assert assigned == {(a.workload_id, a.node_id, a.epoch) for a in assignments.values()}
    held = set(commitments(ledgers.values()))
    assert held <= assigned, (held, assigned)
    assert all(_was_orphaned(statuses[name]) for name, _, _ in assigned - held), (held, assigned)


def _was_orphaned(status: WorkloadStatus) -> bool:
    """Whether its share was released; it is committed anew by the next order, which must not have been taken yet."""
    reason = status.status_info.reason
    return bool(reason and reason.code == ORPHANED) or status.observed_generation == 0


def _check_left(ledgers: dict[str, Any], statuses: dict[str, Any], tombstones: dict[str, Any]) -> None:
    """What a copy that is left behind takes up is held only as long as its stop is owed or under way."""
    for node_id, ledger in ledgers.items():
        for name in ledger.leaving:
            status = statuses.get(name)
            under_way = status is not None and status.node_id == node_id and is_vacating(status)
            assert under_way or f"{node_id}/{name}" in tombstones, (node_id, name, ledger)


def _check_settled(desired: str, status: WorkloadStatus) -> None:
    """Nothing is to be done: it is as wanted, or it is over and says why."""
    if status.terminal:
        reason = status.status_info.reason
        assert reason, status
        assert reason.code, status
        assert not reason.retryable, status
    elif desired == Desired.STOPPED:
        assert status.actual in (Actual.STOPPED, Actual.FAILED, Actual.MISSING), status
    else:
        assert status.actual == Actual.RUNNING, status


def test_F20_F32_F64_scenario_L15_whatever_happens_in_the_end_all_is_as_wanted() -> None:
    """Capacity, single copies, epochs and told reasons hold at every step; peace brings everything in line."""
    given = settings(max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Histories, settings=given)
