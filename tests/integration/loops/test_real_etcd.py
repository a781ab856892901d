"""The loops over a real etcd: one life of a workload."""

from __future__ import annotations

from scheduler.domain.workload import Desired
from scheduler.store.etcd import Etcd
from scheduler.store.keys import SPECS
from scheduler.store.workloads import set_desired
from tests.support.loop_world import world
from tests.support.placement import spec
from tests.support.servers import Server


async def test_F8_a_workload_lives_moves_and_ends_on_a_real_etcd(etcd_server: Server, etcd_prefix: str) -> None:
    """Placed, applied, stopped, started, moved off a lost node, removed there on its return, deleted."""
    etcd = Etcd([etcd_server.address], prefix=etcd_prefix)
    async with world(etcd) as fleet:
        await fleet.add_node("n-1")
        await fleet.add_node("n-2")
        await fleet.apply(spec(image="nginx"))
        assert await fleet.wake("web") == "Assign ReapplyRunning"
        old = (await fleet.status()).node_id
        assert fleet.copies() == [old]
        for desired, copies in ((Desired.STOPPED, []), (Desired.RUNNING, [old])):
            await set_desired(fleet.store, "web", desired, now=fleet.clock())
            await fleet.cycle()
            assert fleet.copies() == copies
        await fleet.lose(old)
        assert (await fleet.cycle())["Reschedule"] == 1
        new = (await fleet.status()).node_id
        assert {old, new} == {"n-1", "n-2"}
        await fleet.come_back(old)
        await fleet.cycle()
        assert fleet.copies() == [new]
        await fleet.delete("web")
        assert await fleet.cycle() == {"FinalizeDelete": 1}
        assert not await fleet.exists(SPECS, "web")
        assert await fleet.cycle() == {}
    await etcd.close()
