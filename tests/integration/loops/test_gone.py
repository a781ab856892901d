"""What was removed since: absence alone does not tell whether it is older than a report."""

from __future__ import annotations

from scheduler.domain.workload import WorkloadSpec
from scheduler.store.gone import Gone
from scheduler.store.workloads import finalize_delete
from tests.support.loop_world import world


async def test_F36_what_is_gone_is_remembered_and_what_is_forgotten_counts_as_gone() -> None:
    """Bounded: about what it does not remember any more it says yes, which only costs a look."""
    async with world() as fleet:
        gone = Gone(fleet.cache, most=1)
        for name in ("a", "b"):
            await fleet.apply(WorkloadSpec(id=name, type="container", image="nginx:1"))
        await fleet.settle()
        before = fleet.cache.revision
        assert not gone.since("a", before)
        for name in ("a", "b"):
            await fleet.delete(name)
            assert await finalize_delete(fleet.store, name, tombstone=False, now=fleet.clock())
        await fleet.settle()
        assert gone.since("a", before)
        assert gone.since("b", before)
        assert gone.since("c", before), "it may have been forgotten"
        assert not gone.since("a", fleet.cache.revision)
