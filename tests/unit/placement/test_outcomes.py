"""What the placer tells of its attempts, and the one word that metrics say of a summary."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler.domain.errors import Fenced
from scheduler.placement.capacity import Overcommit
from scheduler.placement.explain import NO_NODES, NOT_TRIED, OTHER, Explanation, NearestFit, Rejection, main_filter
from scheduler.placement.filters import FILTERS
from scheduler.store.assign import Placed, Vanished
from scheduler.store.cache import Cache
from scheduler.store.keys import ASSIGNMENTS, LEDGERS, NODES, SPECS, STATUSES
from scheduler.store.memory import MemoryEtcd
from scheduler.store.placements import Outcome, Placer
from scheduler.store.store import Store
from scheduler.store.write import Guard
from scheduler.telemetry.metrics import Metrics
from tests.support.placement import node, put_nodes, put_workload, spec

Told = list[tuple[type | None, float]]


@pytest.fixture
async def placer() -> AsyncIterator[tuple[Placer, Store, Told]]:
    """A placer over one node, and what it told."""
    etcd = MemoryEtcd()
    cache = Cache(etcd, (NODES, LEDGERS, SPECS, STATUSES, ASSIGNMENTS))
    store = Store(etcd, cache=cache)
    await put_nodes(store, [node("n-1")])
    await cache.start()
    told: Told = []

    def tell(outcome: Outcome | None, seconds: float) -> None:
        told.append((type(outcome) if outcome else None, seconds))

    yield Placer(store, cache, Overcommit(), on_outcome=tell), store, told
    await cache.close()
    await etcd.close()


async def test_F89_each_attempt_is_told_once_with_what_came_of_it(placer: tuple[Placer, Store, Told]) -> None:
    """Placed, no fit, vanished, nowhere to move to, failed."""
    places, store, told = placer
    await put_workload(store, spec())
    await put_workload(store, spec("big", cpu=900))
    await places.place("web")
    await places.place("big")
    await places.place("ghost")
    await places.move("web", from_node="n-1")
    await put_workload(store, spec("other"))
    with pytest.raises(Fenced):
        await places.place("other", guards=[Guard("/fence", 7)])
    assert [kind for kind, _ in told] == [Placed, Explanation, Vanished, Explanation, None]
    assert all(seconds >= 0 for _, seconds in told)


async def test_F44_a_workload_that_stays_pending_is_known_as_such_without_a_call(
    placer: tuple[Placer, Store, Told],
) -> None:
    """Once the reason is stored, and until something fits; it counts as an attempt."""
    places, store, told = placer
    etcd = store.etcd
    assert isinstance(etcd, MemoryEtcd)
    await put_workload(store, spec("big", cpu=900))
    await store_seen(places, etcd)
    assert not places.stays_pending("big"), "the reason is not stored yet"
    await places.place("big")
    await store_seen(places, etcd)
    calls = etcd.calls
    assert places.stays_pending("big")
    assert etcd.calls == calls
    assert [kind for kind, _ in told] == [Explanation, Explanation]
    await put_nodes(store, [node("n-2", total_cpu=1000)])
    await store_seen(places, etcd)
    assert not places.stays_pending("big")
    assert isinstance(await places.place("big"), Placed)
    await store_seen(places, etcd)
    assert not places.stays_pending("big")
    assert not places.stays_pending("ghost")


async def store_seen(places: Placer, etcd: MemoryEtcd) -> None:
    """Wait until the placer's cache shows all that was written."""
    await places._cache.wait_revision(etcd.revision, 5)


def test_F89_attempts_are_counted_by_result_and_rejections_by_node() -> None:
    """Each rejected node counts under the first filter that it failed."""
    metrics = Metrics(process=False)
    metrics.place_attempted(Placed("n-1", 1, 0.0, ""), 0.1)
    metrics.place_attempted(Explanation((Rejection("tainted", 3, ""), Rejection("status", 1, "")), None, 4), 0.1)
    metrics.place_attempted(Vanished("web", "gone"), 0.1)
    metrics.place_attempted(None, 0.1)
    text = metrics.exposition().decode()
    for result in ("placed", "no_fit", "vanished", "error"):
        assert f'persys_scheduler_placements_total{{result="{result}"}} 1.0' in text
    assert 'persys_scheduler_placement_rejections_total{filter="tainted"} 3.0' in text
    assert 'persys_scheduler_placement_rejections_total{filter="status"} 1.0' in text
    assert "persys_scheduler_placement_duration_seconds_count 4.0" in text


@pytest.mark.parametrize("name", [each.name for each in FILTERS])
def test_F89_the_word_for_a_summary_is_its_commonest_rejection(name: str) -> None:
    """Whatever else it tells."""
    rejections = (Rejection("excluded", 9, "n-0 is ruled out"), Rejection(name, 2, "n-1 is not right (at all)"))
    summary = Explanation(rejections, NearestFit("n-2", "lacks x"), 11).summary
    assert main_filter(summary) == name


@pytest.mark.parametrize(
    ("summary", "word"),
    [
        (Explanation((), None, 0).summary, NO_NODES),
        ("", NOT_TRIED),
        ("does not suit its node any more: too large", OTHER),
        ("no node fits: 1 of 1 nodes anything_at_all (x)", OTHER),
    ],
)
def test_F89_any_other_text_is_one_of_a_few_words(summary: str, word: str) -> None:
    """So that no text of anybody becomes a label."""
    assert main_filter(summary) == word
